"""Bounds of columns from rounded counts of rows, so that nobody is told anybody's smallest or largest value.

Sites count how many of their rows lie below each edge of a grid, and sum the counts over all sites. The first grid is
the same for all data: 0 and the powers of 2^16, of both signs. The next one divides the cells that hold the bounds into
equal cells, and so on. A bound is the innermost edge outside which a share q of all rows lies at most.

A site rounds its own counts before it sends them. A count below the site's middle is rounded down to a multiple of k,
a count above it is rounded so that the number of rows beyond the edge is a multiple of k. What is sent for an edge
depends on that edge alone, not on the rest of the grid. So all grids of a run together tell of any interval how many
rows are in it up to k, and nothing where fewer than k rows lie beyond an edge. At most q N + (k - 1) J rows of N at J
sites lie outside a bound.
"""

import numpy as np

from ..types import Array

SHARE = 1e-3
ROOM = 0.25  # how far outside its bounds a column is clipped, in spans
N_CELLS = 128
FEWEST_CELLS = 32  # between two bounds that need no further grid
MOST_GRIDS = 8


def first_edges() -> Array:
    """Return the edges of the first grid, shape (257,)."""
    powers = np.ldexp(1.0, 16 * np.arange(1, 128) - 1023)
    positive = np.append(powers, np.finfo(float).max)
    return np.concatenate([-positive[::-1], [0.0], positive])


def equal_edges(lower: Array, upper: Array) -> Array:
    """Return the edges of equal cells between two bounds of each column, shape (N_CELLS + 1, n_columns)."""
    steps = np.linspace(0.0, 1.0, N_CELLS + 1)[:, None]
    return np.asarray(lower * (1 - steps) + upper * steps)


def rounded_counts(values: Array, edges: Array, fewest: int) -> Array:
    """Return how many values lie below each edge, rounded so that no edge separates fewer than `fewest` of them.

    Parameters
    ----------
    values : ndarray of shape (n_rows, n_columns)
    edges : ndarray of shape (n_edges, n_columns)
        Ascending.
    fewest : int

    Returns
    -------
    ndarray of shape (n_edges, n_columns)

    Examples
    --------
    >>> rounded_counts(np.arange(25.0)[:, None], np.array([[3.0], [12.0], [14.0], [21.0]]), fewest=10).ravel()
    array([ 0., 10., 15., 25.])
    """
    n_rows = len(values)
    pairs = zip(np.sort(values, axis=0).T, edges.T, strict=True)
    below = np.column_stack([np.searchsorted(column, edge) for column, edge in pairs])
    above = n_rows - below
    rounded = np.where(below <= above, below // fewest * fewest, n_rows - above // fewest * fewest)
    return rounded.astype(float)


def bounds_between(edges: Array, below: Array, n_rows: float, share: float = SHARE) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the innermost edges that leave out a share of the rows of each column at most.

    Parameters
    ----------
    edges : ndarray of shape (n_edges, n_columns)
    below : ndarray of shape (n_edges, n_columns)
        Counts over all sites. The first edge has no row below it and the last one all rows, whatever is counted.
    n_rows : float
        Of all sites.
    share : float
    """
    lowest = below <= share * n_rows
    highest = n_rows - below <= share * n_rows
    lowest[0], highest[-1] = True, True
    last = len(edges) - 1 - np.argmax(lowest[::-1], axis=0)
    return np.minimum(last, len(edges) - 2), np.maximum(np.argmax(highest, axis=0), 1)
