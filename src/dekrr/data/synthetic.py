"""A made-up problem whose sites differ visibly."""

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from ..types import Array


def make_sites(
    n_sites: int = 10,
    rows_per_site: int = 60,
    n_columns: int = 3,
    noise: float = 0.2,
    random_state: Any = None,
) -> tuple[Array, Array, np.ndarray]:
    """Make stations along a coast: one smooth field, of which each station sees its own stretch.

    Station j's rows lie around its own place, with overlap to the next ones. What drives the response changes
    from the first station to the last, so that different features suit them, and they differ in size by up to
    three times.

    Parameters
    ----------
    n_sites : int, default=10
    rows_per_site : int, default=60
        On average.
    n_columns : int, default=3
        The first is the place along the coast.
    noise : float, default=0.2
        Standard deviation of the response's noise.
    random_state : int, RandomState instance or None

    Returns
    -------
    X : ndarray of shape (n_rows, n_columns)
    y : ndarray of shape (n_rows,)
    sites : ndarray of shape (n_rows,)
        Names, "station 00" on.

    Examples
    --------
    >>> X, y, sites = make_sites(n_sites=4, random_state=0)
    >>> X.shape, sorted(set(sites.tolist()))
    ((240, 3), ['station 00', 'station 01', 'station 02', 'station 03'])
    """
    rng = np.random.default_rng(check_random_state(random_state).randint(np.iinfo(np.int32).max))
    shares = rng.uniform(1, 3, n_sites)
    sizes = np.maximum(1, np.floor(rows_per_site * n_sites * shares / shares.sum()).astype(int))
    sizes[-1] += rows_per_site * n_sites - sizes.sum()
    index = np.repeat(np.arange(n_sites), sizes)
    place = (index + 0.5) / n_sites + rng.normal(scale=0.15, size=index.size)
    X = np.column_stack([place, rng.uniform(size=(index.size, n_columns - 1))])
    field = np.sin(2 * np.pi * place)
    if n_columns > 1:
        field += place * np.cos(np.pi * X[:, 1:].sum(axis=1)) + 0.3 * X[:, 1]
    y = field + rng.normal(scale=noise, size=index.size)
    return X, y, np.array([f"station {j:02d}" for j in range(n_sites)])[index]
