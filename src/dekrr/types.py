"""Types that every module shares: arrays, and blocks of rows."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Block(NamedTuple):
    """Some rows of a site: inputs, responses, and the weight of each row.

    One rule for shapes holds in rows, sums, systems, solvers, protocols and models. Axis 0 is the axis of rows or
    features. Arrays with an entry per output (responses, Z'y, right sides, coefficients, predictions) have the trailing
    axes of `y`: none for one output, ``(n_outputs,)`` for several. With one output the coefficients are therefore a
    vector of shape (n_features,), in memory, in messages and in files. With several outputs they are a matrix of shape
    (n_features, n_outputs). Batches of systems (`dekrr.protocols.run`) have the axes of the batch in front, and
    always an axis of outputs at the end.
    """

    X: Array  # shape (n_rows, n_columns)
    y: Array  # shape (n_rows,) or (n_rows, n_outputs)
    # shape (n_rows,): row i counts `weight[i]` times in every sum. None means that each row counts once.
    weight: Array | None = None

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.y)

    def take(self, rows: np.ndarray | slice) -> "Block":
        """Return the rows of a mask, of indices or of a slice; the arrays of a slice are views."""
        return Block(*(None if part is None else part[rows] for part in self))  # type: ignore[arg-type]

    def copy(self) -> "Block":
        """Return a copy of the rows."""
        return Block(*(None if part is None else part.copy() for part in self))  # type: ignore[arg-type]
