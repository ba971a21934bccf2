"""Ways to divide rows over sites."""

from typing import Any

import numpy as np

from ..types import Array


def by_response(y: Array, n_sites: int = 10, mix: float = 0.2, random_state: Any = None) -> np.ndarray:
    """Divide rows so that sites differ in |y|, the paper's first setting.

    Rows are sorted by |y|, highest first, and dealt out in equal runs; a share `mix` of every site's rows is
    drawn at random from all rows first, as the authors' code does.

    Parameters
    ----------
    y : ndarray of shape (n_rows,)
        Scaled responses, for the paper's setting.
    n_sites : int, default=10
    mix : float, default=0.2
    random_state : int or None

    Returns
    -------
    ndarray of int, shape (n_rows,)
        The site of every row, 0 to n_sites - 1.

    Examples
    --------
    >>> by_response(np.array([1.0, -9.0, 5.0, 0.0]), n_sites=2, mix=0.0)
    array([1, 0, 0, 1])
    """
    rng = np.random.default_rng(random_state)
    sites = np.empty(len(y), dtype=np.intp)
    shuffled = rng.permutation(len(y))
    n_mixed = round(mix * len(y))
    mixed, ordered = shuffled[:n_mixed], np.sort(shuffled[n_mixed:])
    ordered = ordered[np.argsort(-np.abs(y[ordered]), kind="stable")]
    for part in (mixed, ordered):
        for site, rows in enumerate(np.array_split(part, n_sites)):
            sites[rows] = site
    return sites


def halves(sites: np.ndarray, random_state: Any = None) -> np.ndarray:
    """Return True for a random half of every site's rows, to train on; the other half is for testing."""
    rng = np.random.default_rng(random_state)
    train = np.zeros(len(sites), dtype=bool)
    for site in np.unique(sites):
        rows = rng.permutation(np.flatnonzero(sites == site))
        train[rows[: (len(rows) + 1) // 2]] = True
    return train
