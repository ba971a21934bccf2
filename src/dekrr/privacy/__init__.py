"""What leaves a site, what it gives away, and how to bound it.

`attack` plays the neighbour who wants the rows, `guards` refuses what an honest neighbour never asks for,
`mechanism` is differential privacy for the sums, and `audit` checks that guarantee from the outside.
"""
