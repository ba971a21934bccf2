"""What a site keeps to itself, and how what leaves it is bounded.

`admission` decides which rows are in sums at all, and `quantiles` to which bounds their columns are clipped.
`maps_of_neighbors`, `rows_per_feature` and `proofs` refuse what an honest neighbour never asks for. `mechanism` is
differential privacy for the sums, and `vault` keeps what was released. `history` knows which rows were in the sums of
earlier runs of a site, and `odometer` what private fits in one process spent together.
"""
