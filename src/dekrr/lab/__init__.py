"""What judges the library from outside: attacks on it, the paper's experiments, and a network that fails on purpose.

- `attacks`: what curious neighbours learn.
- `experiments`: the paper's tables and figures, and pages about results.
- `comparing`: each site alone beside all together; `yardsticks`: the methods that it compares with.
- `testing`: a network with faults, from a seed.
- `commands`: `dekrr attack`, `bench`, `compare`, `demo`, `report` and `reproduce`.
"""
