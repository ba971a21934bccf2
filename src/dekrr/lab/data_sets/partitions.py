"""Partitions of rows over sites.

Each function returns the site of every row, 0 to n_sites - 1. Partitions by an order have a parameter `mix`: the share
of every site's rows that is first drawn at random from all rows. It is 0.2 in the authors' code; the paper's text does
not mention it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...errors import DataError, SettingsError
from ...labels import factorise
from ...types import Array


def by_response(y: Array, n_sites: int = 10, mix: float = 0.2, random_state: Any = None) -> np.ndarray:
    """Divide rows so that sites differ in |y|, the paper's first setting.

    Rows are sorted by |y|, highest first, and divided into runs of equal length. Before that, a share `mix` of every
    site's rows is drawn at random from all rows, as in the authors' code.

    Parameters
    ----------
    y : ndarray of shape (n_rows,)
        The responses; the paper's setting has scaled ones.
    random_state : int or None

    Returns
    -------
    ndarray of int, shape (n_rows,)
        The site of every row, 0 to n_sites - 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dekrr.data import by_response
    >>> by_response(np.array([1.0, -9.0, 5.0, 0.0]), n_sites=2, mix=0.0)
    array([1, 0, 0, 1])
    """
    return _ordered(-np.abs(y), _equal(n_sites), mix, random_state)


def by_norm(X: Array, n_sites: int = 10, mix: float = 0.2, random_state: Any = None) -> np.ndarray:
    """Divide rows so that sites differ in |x|, the paper's second setting; see `by_response`.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_columns)

    Examples
    --------
    >>> import numpy as np
    >>> from dekrr.data import by_norm
    >>> by_norm(np.array([[1.0, 0.0], [3.0, 4.0], [0.0, 2.0], [0.0, 0.0]]), n_sites=2, mix=0.0)
    array([1, 0, 0, 1])
    """
    return _ordered(-np.linalg.norm(X, axis=1), _equal(n_sites), mix, random_state)


def imbalanced(n_rows: int, n_sites: int = 10, random_state: Any = None) -> np.ndarray:
    """Divide rows at random into sites of very different sizes, N_j = (2j - 1) / J^2 N for j = 1 to J.

    Examples
    --------
    >>> import numpy as np
    >>> from dekrr.data import imbalanced
    >>> np.bincount(imbalanced(1000, 10, random_state=0)).tolist()
    [10, 30, 50, 70, 90, 110, 130, 150, 170, 190]
    """
    shares = (2 * np.arange(1, n_sites + 1) - 1) / n_sites**2
    return _ordered(np.zeros(n_rows), shares, 1.0, random_state)


def iid(n_rows: int, n_sites: int = 10, random_state: Any = None) -> np.ndarray:
    """Divide rows at random into sites of equal size.

    Examples
    --------
    >>> import numpy as np
    >>> from dekrr.data import iid
    >>> np.bincount(iid(8, 4, random_state=0)).tolist()
    [2, 2, 2, 2]
    """
    return _ordered(np.zeros(n_rows), _equal(n_sites), 1.0, random_state)


def dirichlet(
    y: Array,
    n_sites: int = 10,
    concentration: float = 0.5,
    n_quantiles: int = 10,
    mix: float = 0.0,
    random_state: Any = None,
) -> np.ndarray:
    """Divide the rows of every quantile of y by shares that are drawn from a Dirichlet distribution.

    Parameters
    ----------
    concentration : float, default=0.5
        If it is small, a site has rows of few quantiles, and sites differ in size. If it is large, all sites are alike.

    Examples
    --------
    >>> import numpy as np
    >>> from dekrr.data import dirichlet
    >>> sites = dirichlet(np.arange(1000.0), n_sites=4, concentration=1e6, random_state=0)
    >>> np.bincount(sites // 1).tolist()
    [250, 250, 250, 250]
    """
    if concentration <= 0:
        raise SettingsError(f"the concentration must be positive, got {concentration}")
    _check(len(y), n_sites, mix)
    rng = np.random.default_rng(random_state)
    sites = np.empty(len(y), dtype=np.intp)
    mixed, rest = _mixed(len(y), mix, rng)
    _deal(sites, mixed, _equal(n_sites))
    rest = rest[np.argsort(y[rest], kind="stable")]
    for quantile in np.array_split(rest, n_quantiles):
        shares = rng.dirichlet(np.full(n_sites, float(concentration)))
        _deal(sites, rng.permutation(quantile), shares)
    return sites


def by_column(values: Any, n_sites: int | None = None, mix: float = 0.0, random_state: Any = None) -> np.ndarray:
    """Divide rows by a column: by its distinct values, or by its order into runs of equal length.

    Parameters
    ----------
    values : array-like of shape (n_rows,)
        One column of labels or numbers.
    n_sites : int, optional
        None makes a site of each distinct value. A number sorts the rows by the column and divides them into that many
        runs.

    Examples
    --------
    >>> from dekrr.data import by_column
    >>> by_column(["b", "a", "b"])
    array([1, 0, 1])
    >>> by_column([0.3, 0.1, 0.9, 0.4], n_sites=2)
    array([0, 0, 1, 1])
    """
    values = np.asarray(values)
    if n_sites is not None:
        return _ordered(values.astype(float), _equal(n_sites), mix, random_state)
    labels, sites = factorise(values, len(values))
    _check(len(values), len(labels), mix)
    rng = np.random.default_rng(random_state)
    mixed, _ = _mixed(len(values), mix, rng)
    sites = np.asarray(sites, dtype=np.intp).copy()
    sites[mixed] = sites[rng.permutation(mixed)]
    return sites


PARTITIONS: Mapping[str, Callable[..., np.ndarray]] = {
    "response": lambda X, y, **settings: by_response(y, **settings),
    "norm": lambda X, y, **settings: by_norm(X, **settings),
    "imbalanced": lambda X, y, mix=0.0, **settings: imbalanced(len(y), **settings),
    "iid": lambda X, y, mix=0.0, **settings: iid(len(y), **settings),
    "dirichlet": lambda X, y, **settings: dirichlet(y, **settings),
}


def partition(name: str, X: Array, y: Array, **settings: Any) -> np.ndarray:
    """Divide rows by the partition called `name`, one of `PARTITIONS`.

    Parameters
    ----------
    **settings
        `n_sites`, `mix` (which has no effect on "imbalanced" and "iid") and `random_state`.
    """
    if name not in PARTITIONS:
        raise SettingsError(f"unknown partition {name!r}; choose one of {', '.join(PARTITIONS)}")
    return PARTITIONS[name](X, y, **settings)


def halves(sites: np.ndarray, random_state: Any = None) -> np.ndarray:
    """Return a mask of training rows: a random half of every site's rows. The other half are test rows.

    Parameters
    ----------
    sites : ndarray of shape (n_rows,)
    """
    rng = np.random.default_rng(random_state)
    train = np.zeros(len(sites), dtype=bool)
    for site in np.unique(sites):
        rows = rng.permutation(np.flatnonzero(sites == site))
        train[rows[: (len(rows) + 1) // 2]] = True
    return train


def _equal(n_sites: int) -> Array:
    return np.full(n_sites, 1 / n_sites)


def _check(n_rows: int, n_sites: int, mix: float) -> None:
    if not 0 <= mix <= 1:
        raise SettingsError(f"mix is a share of rows, between 0 and 1; got {mix}")
    if n_rows < n_sites:
        raise DataError(f"{n_rows} rows cannot be divided over {n_sites} sites")


def _mixed(n_rows: int, mix: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return a random share `mix` of the rows, shuffled, and the other rows in order."""
    shuffled = rng.permutation(n_rows)
    n_mixed = round(mix * n_rows)
    return shuffled[:n_mixed], np.sort(shuffled[n_mixed:])


def _ordered(key: Array, shares: Array, mix: float, random_state: Any) -> np.ndarray:
    """Divide a share `mix` of the rows at random, and the other rows in the order of `key`."""
    _check(len(key), len(shares), mix)
    sites = np.empty(len(key), dtype=np.intp)
    mixed, ordered = _mixed(len(key), mix, np.random.default_rng(random_state))
    for part in (mixed, ordered[np.argsort(key[ordered], kind="stable")]):
        _deal(sites, part, shares)
    return sites


def _deal(sites: np.ndarray, rows: np.ndarray, shares: Array) -> None:
    """Give site j the next run of `rows`, of length shares[j] len(rows)."""
    ends = np.round(np.cumsum(shares) * len(rows)).astype(int)
    ends[-1] = len(rows)
    for site, run in enumerate(np.split(rows, ends[:-1])):
        sites[run] = site
