"""What a site keeps to itself, and how what leaves it is bounded.

`admission` decides which rows are in sums at all, `guards` refuses what an honest neighbour never asks for, `mechanism`
is differential privacy for the sums, and `vault` keeps what was released.
"""
