"""Folds of a site's rows, by a keyed hash of each row.

The sums over all rows but a fold are sums that leave a site. If a run's seed moved the folds, a series of runs would
give linear equations for the rows, and who knows the seeds would solve them. So the fold of a row depends on the row
and on a key of the site alone: not on other rows, not on their order, not on a seed, and not on what the fold is for.
The key of a node is a secret, and stays there. In one process there is nothing to keep from anybody: the key is a
constant, and fits repeat.

A row is its columns and its response. Its weight does not count: a run with other weights must not move folds, and a
row of weight 2 is the same as the row twice. Equal rows are in the same fold.

All folds are made of the same 20 cells. Runs may ask for different numbers of folds. Any combination of their sums is
then still one of sums over cells.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .types import Block

CELLS = 20
_OPEN = b"rows of one process"
_LEAST, LARGEST = 2 / 3, 3 / 2  # of an equal share of the rows, that a fold may have where guards count on its size

HashOf = Callable[[Block], np.ndarray]
"""Gives each row of a block its hash, of type uint64, shape (n_rows,)."""


@dataclass(frozen=True)
class RowHash:
    """A keyed hash of rows.

    Parameters
    ----------
    key : bytes
        At most 64.
    order : tuple of int, optional
        The places of the columns in the order of their names: runs with the columns in another order have the same
        folds.

    Examples
    --------
    >>> rows = Block(np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]]), np.zeros(3))
    >>> hashes = RowHash()(rows)
    >>> bool(hashes[0] == hashes[2] != hashes[1])
    True
    >>> bool((hashes == RowHash(b"another key")(rows)).any())
    False
    """

    key: bytes = _OPEN
    order: tuple[int, ...] | None = None

    def __call__(self, block: Block) -> np.ndarray:
        """Return the hash of each row, shape (n_rows,); rows are as the site has them, before they are scaled."""
        X = block.X if self.order is None else block.X[:, self.order]
        cells = np.column_stack([X, block.y]).astype("<f8") + 0.0  # -0.0 and 0.0 are the same number
        width, numbers = cells.shape[1] * cells.itemsize, memoryview(cells.tobytes())
        start, digests = hashlib.blake2b(key=self.key, digest_size=8), []
        for place in range(0, len(numbers), width):
            one = start.copy()
            one.update(numbers[place : place + width])
            digests.append(one.digest())
        return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def fold_of(hashes: np.ndarray, n_folds: int) -> np.ndarray:
    """Return the fold of each row, shape (n_rows,).

    Folds have equally many rows in the mean where 20 is a multiple of their number. A fold can be empty.

    Examples
    --------
    >>> fold_of(np.array([0, 21, 104], dtype=np.uint64), 5)
    array([0, 1, 4])
    """
    cells = hashes % np.uint64(CELLS) if n_folds <= CELLS else hashes
    return np.asarray(cells % np.uint64(n_folds), dtype=np.intp)


def is_usual(n_held: float, n_rows: float, n_folds: int) -> bool:
    """Return whether a fold has about as many rows as others: guards count on it, and a hash does not promise it.

    Examples
    --------
    >>> is_usual(20, 100, 5), is_usual(10, 100, 5), is_usual(40, 100, 5)
    (True, False, False)
    """
    return _LEAST * n_rows <= n_held * n_folds <= LARGEST * n_rows


def rows_per_feature_outside(rows_per_feature: float, n_outside: int, n_rows: int, n_folds: int) -> float:
    """Return how many rows per feature the sums over all rows but a fold need.

    Two such sums differ by a sum over the rows of one fold, a (folds - 1)th of the others, and these are to be
    `rows_per_feature`. Where a fold is larger, fewer rows are left for each of its own, and they suffice.

    Examples
    --------
    >>> rows_per_feature_outside(1.5, 80, 100, 5), rows_per_feature_outside(1.5, 72, 100, 5)
    (6.0, 5.4)
    """
    equal = n_rows - -(-n_rows // n_folds)
    return rows_per_feature * (n_folds - 1) * min(1.0, n_outside / max(equal, 1))


def signs_of(hashes: np.ndarray, n_signs: int) -> np.ndarray:
    """Return `n_signs` random signs of each row, at most 64, shape (n_rows, n_signs).

    Signs of the second, third ... of equal rows do not depend on those of the first.
    """
    order = np.argsort(hashes, kind="stable")
    place: np.ndarray = np.empty(len(hashes), dtype=np.uint64)
    place[order] = np.arange(len(hashes)) - np.searchsorted(hashes[order], hashes[order])
    halves = np.column_stack([hashes >> np.uint64(32), hashes & np.uint64(0xFFFFFFFF)]).astype(float)
    signs = RowHash()(Block(halves, place.astype(float)))
    return np.where(signs[:, None] >> np.arange(n_signs, dtype=np.uint64) & np.uint64(1), 1.0, -1.0)
