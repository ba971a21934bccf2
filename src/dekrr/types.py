"""Types that every module shares: arrays, and blocks of rows."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Block(NamedTuple):
    """Some rows of a site: inputs, responses, and how often each row counts.

    One rule for shapes holds in rows, sums, systems, solvers, protocols and models. Axis 0 counts rows or features. An
    array that has an entry per output (responses, Z'y, right sides, coefficients, predictions) has the trailing axes of
    `y`: none for one output, ``(n_outputs,)`` for several. With one output coefficients are therefore a vector of shape
    (n_features,), in memory, in messages and in files; with several they are a matrix of shape (n_features, n_outputs).
    Batches of systems (`dekrr.protocols.tuning`) have their axes in front, and always an axis for outputs at the end.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_columns)
    y : ndarray of shape (n_rows,) or (n_rows, n_outputs)
    weight : ndarray of shape (n_rows,), optional
        Row i counts `weight[i]` times in every sum; None counts each row once.
    withheld : ndarray of bool, shape (n_rows,), optional
        Which rows are in no sum that leaves the site (`dekrr.privacy.admission`); None where none is.

    Examples
    --------
    >>> import numpy as np
    >>> block = Block(np.zeros((3, 2)), np.arange(3.0), weight=np.array([1.0, 1.0, 2.0]))
    >>> block.n_rows, block.take(slice(1, 3)).y.tolist()
    (3, [1.0, 2.0])
    """

    X: Array
    y: Array
    weight: Array | None = None
    withheld: np.ndarray | None = None

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return len(self.y)

    def take(self, rows: np.ndarray | slice) -> "Block":
        """Return some of the rows, by a mask, indices or a slice; a slice gives views."""
        return Block(*(None if part is None else part[rows] for part in self))  # type: ignore[arg-type]

    def copy(self) -> "Block":
        """Return the rows in memory of their own."""
        return Block(*(None if part is None else part.copy() for part in self))  # type: ignore[arg-type]
