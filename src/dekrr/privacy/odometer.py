"""What private fits in one process spent on the same rows, together.

A promise is for one fit. Two fits on the same row spend the sum of their budgets on it (basic composition), and
`cross_val_score` with five folds fits four times on every row. A node keeps a history on its disk and refuses. Here the
odometer of a process adds up what each row had, by a hash under a key of the process, so that the total can be told.
"""

import hashlib
import secrets
from collections.abc import Iterable

import numpy as np

from ..types import Block


def row_hashes(values: np.ndarray, secret: bytes) -> np.ndarray:
    """Return a keyed 64-bit hash of each row of numbers, shape (n_rows,); -0.0 and 0.0 are the same number.

    It is multilinear over the 64-bit words, with odd keys from the secret, and then mixed. Two different rows share it
    with a chance of about 2^-32 (Lemire and Kaser, Strongly universal string hashing is fast, 2014).
    """
    words = np.ascontiguousarray(values + 0.0, dtype=np.float64).view(np.uint64)
    stream = hashlib.shake_256(secret).digest(8 * (words.shape[1] + 1))
    keys = np.frombuffer(stream, dtype="<u8").astype(np.uint64) | np.uint64(1)
    words = keys[-1] + (mixed(words) * keys[:-1]).sum(axis=1, dtype=np.uint64)
    return mixed(words)


def mixed(words: np.ndarray) -> np.ndarray:
    """Return words with their bits spread (the finaliser of SplitMix64; Steele, Lea and Flood, OOPSLA 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(words ^ (words >> np.uint64(31)))


class Odometer:
    """The budgets that rows had so far.

    Examples
    --------
    >>> odometer = Odometer()
    >>> X, y = np.arange(6.0).reshape(3, 2), np.zeros(3)
    >>> odometer.add([Block(X, y)], 1.0), odometer.add([Block(X[1:], y[1:])], 0.5), odometer.add([Block(-X, y)], 2.0)
    ((1.0, 1), (1.5, 2), (2.0, 1))
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._hashes = np.empty(0, dtype=np.uint64)
        self._spent = np.empty((0, 2))  # epsilon and fits of each hash

    def add(self, blocks: Iterable[Block], epsilon: float) -> tuple[float, int]:
        """Note a fit; return the largest total that a row has had, and in how many fits; equal rows count once."""
        parts = [row_hashes(np.column_stack([block.X, block.y]), self._secret) for block in blocks]
        new = np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *parts]))
        if not len(new):
            return 0.0, 0
        hashes = np.union1d(self._hashes, new)
        spent = np.zeros((len(hashes), 2))
        spent[np.searchsorted(hashes, self._hashes)] = self._spent
        places = np.searchsorted(hashes, new)
        spent[places] += (epsilon, 1)
        self._hashes, self._spent = hashes, spent
        total, fits = spent[places[np.argmax(spent[places, 0])]]
        return float(total), int(fits)


PROCESS = Odometer()
