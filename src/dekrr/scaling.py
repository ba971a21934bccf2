"""Scaling of columns to [0, 1] and of the response to [-1, 1], by bounds that the sites agree on."""

from dataclasses import dataclass

import numpy as np

from .types import Array


@dataclass(frozen=True, eq=False)
class Scaling:
    """The bounds of the columns and, last, of the response.

    Parameters
    ----------
    lower, upper : ndarray of shape (n_columns + 1,)
        A constant column, or response, is mapped to 0.

    Examples
    --------
    >>> import numpy as np
    >>> scaling = Scaling(lower=np.array([0.0, 10.0]), upper=np.array([4.0, 20.0]))
    >>> scaling.rows(np.array([[1.0], [4.0]]))
    array([[0.25],
           [1.  ]])
    >>> scaling.undo(scaling.responses(np.array([10.0, 15.0])))
    array([10., 15.])
    """

    lower: Array
    upper: Array

    @classmethod
    def of(cls, X: Array, y: Array) -> "Scaling":
        """Return the bounds of rows `X` (n_rows, n_columns) and responses `y` (n_rows,)."""
        lower, upper = np.append(X.min(axis=0), y.min()), np.append(X.max(axis=0), y.max())
        return cls(lower.astype(float), upper.astype(float))

    @property
    def _spans(self) -> Array:
        spans = self.upper - self.lower
        return np.where(spans > 0, spans, 1.0)

    @property
    def _response(self) -> tuple[float, float]:
        """The centre and half of the span of the response."""
        return float(self.lower[-1] + self.upper[-1]) / 2, float(self._spans[-1]) / 2

    def rows(self, X: Array) -> Array:
        """Return rows scaled so that the agreed bounds become 0 and 1."""
        return (X - self.lower[:-1]) / self._spans[:-1]

    def responses(self, y: Array) -> Array:
        """Return responses scaled so that the agreed bounds become -1 and 1."""
        centre, half_span = self._response
        return (y - centre) / half_span

    def undo(self, y: Array) -> Array:
        """Return scaled responses in their own units."""
        centre, half_span = self._response
        return y * half_span + centre
