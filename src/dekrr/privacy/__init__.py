"""What a site keeps to itself, and how what leaves it is bounded.

`admission` decides which rows are in sums at all, and refuses what an honest neighbour never asks for. `mechanism` is
differential privacy for the sums. `masks` hide a site's part of a sum. `odometer`
knows what private fits in one process spent together.
"""
