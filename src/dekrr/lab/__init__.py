"""What judges the library from outside: attacks on it, and the paper's experiments.

- `attacks`: what curious neighbours learn.
- `experiments`: the paper's tables and figures, and pages about results.
- `data_sets`: the data sets of the paper, from their publishers' files, made-up sites, and partitions.
- `baselines`: the estimators that DeKRR is compared with.
- `comparing`: each site alone beside all together; `yardsticks`: the methods that it compares with.
- `commands`: `dekrr attack`, `bench`, `compare`, `data`, `demo`, `report` and `reproduce`.
"""
