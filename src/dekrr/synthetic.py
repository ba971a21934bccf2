"""Made-up sites that differ visibly, to try dekrr on."""

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from .types import Array


def make_sites(
    n_sites: int = 10,
    rows_per_site: int = 60,
    n_columns: int = 3,
    noise: float = 0.2,
    random_state: Any = None,
) -> tuple[Array, Array, np.ndarray]:
    """Make stations along a coast: one smooth function, of which each station sees its own section.

    The rows of station j lie around its own place, and overlap with those of the next stations. The dependence of the
    response on the columns changes from the first station to the last, so that different features suit different
    stations. The largest station has up to three times the rows of the smallest.

    Parameters
    ----------
    rows_per_site : int, default=60
        The average number of rows of a site.
    n_columns : int, default=3
        The number of columns; the first column is the place along the coast.
    noise : float, default=0.2
        The standard deviation of the response's noise.
    random_state : int, RandomState instance or None

    Returns
    -------
    X : ndarray of shape (n_rows, n_columns)
    y : ndarray of shape (n_rows,)
    sites : ndarray of shape (n_rows,)
        The names of the sites: "station 00", "station 01", ...

    Examples
    --------
    >>> from dekrr.data import make_sites
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
