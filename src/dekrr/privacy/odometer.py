"""What private fits in one process spent on the same rows, together.

A promise is for one fit. Two fits on the same row spend the sum of their budgets on it (basic composition), and
`cross_val_score` with five folds fits four times on every row. A node keeps a history on its disk and refuses. Here the
odometer of a process adds up what each row had, by a hash under a key of the process, so that the total can be told.
"""

import secrets
from collections.abc import Iterable

import numpy as np

from ..types import Block
from .ledger import row_hashes


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
        """Note a fit; return the largest total that one of its rows has had, and in how many fits.

        Parameters
        ----------
        blocks : iterable of Block
            The rows of the fit. A row that repeats counts once.
        """
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
