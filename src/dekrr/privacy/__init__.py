"""What leaves a site, what it gives away, and how to bound it.

`attack` plays the neighbour who wants the rows, `guards` refuses what an honest neighbour never asks for,
`mechanism` is differential privacy for the sums, `vault` keeps what was released, and `audit` checks the guarantee.
"""
