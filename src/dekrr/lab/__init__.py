"""What judges the library from outside: attacks on it, the paper's experiments, and a network that fails on purpose.

- `attacks`: what curious neighbours learn.
- `experiments`: the paper's tables and figures, and pages about results.
- `testing`: a network with faults, from a seed.
- `commands`: `dekrr attack`, `bench`, `report` and `reproduce`.
"""
