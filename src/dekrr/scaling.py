"""Scaling of columns to [0, 1] and of responses to [-1, 1], by bounds that the sites agree on; or no scaling."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from .types import Array


@dataclass(frozen=True, eq=False)
class Scaling:
    """The bounds of the columns, followed by the bounds of each output.

    The number of outputs follows from the shape of the response; see `dekrr.types.Block`.

    Parameters
    ----------
    lower, upper : ndarray of shape (n_columns + n_outputs,)
        A constant column, or output, is mapped to 0.
    limits : pair of ndarray of shape (n_columns + n_outputs,), optional
        Values outside these limits are moved to them first, in training and in prediction.

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
    limits: tuple[Array, Array] | None = None

    @classmethod
    def of(cls, X: Array, y: Array) -> "Scaling":
        """Return the bounds of rows `X` (n_rows, n_columns) and responses `y` (n_rows,) or (n_rows, n_outputs)."""
        lower = np.append(X.min(axis=0), y.min(axis=0))
        upper = np.append(X.max(axis=0), y.max(axis=0))
        return cls(lower.astype(float), upper.astype(float))

    @classmethod
    def clipping(cls, lower: Array, upper: Array, n_columns: int, room: float = 0.0) -> "Scaling":
        """Return the scaling by bounds that rows are moved to where they lie outside.

        An output is moved where it is more than a span outside its bounds: clipped responses are another problem to
        solve, but a response of any size would outweigh all others in a sum.

        Parameters
        ----------
        lower, upper : ndarray of shape (n_columns + n_outputs,)
        room : float, default=0
            How far outside its bounds a column may be before it is moved, in spans.

        Examples
        --------
        >>> import numpy as np
        >>> scaling = Scaling.clipping(np.array([0.0, 10.0]), np.array([4.0, 20.0]), n_columns=1)
        >>> scaling.rows(np.array([[-1.0], [9.97e36]])).ravel(), scaling.responses(np.array([25.0, 99.0]))
        (array([0., 1.]), array([2., 3.]))
        """
        rooms = np.where(np.arange(len(lower)) < n_columns, room, 1.0) * (upper - lower)
        return cls(lower, upper, (lower - rooms, upper + rooms))

    @cached_property
    def spans(self) -> Array:
        """The upper bounds minus the lower; 1 where they are equal."""
        spans = self.upper - self.lower
        return np.where(spans > 0, spans, 1.0)

    def _responses(self, y: Array) -> tuple[Array, Array]:
        """Return the centre and half the span of each output in `y`."""
        outputs = _outputs(y)
        centres: Array = (self.lower[outputs] + self.upper[outputs]) / 2
        half_spans: Array = self.spans[outputs] / 2
        return centres, half_spans

    def rows(self, X: Array) -> Array:
        """Return rows scaled so that the agreed bounds become 0 and 1."""
        columns = slice(X.shape[1])
        if self.limits is not None:
            X = np.clip(X, self.limits[0][columns], self.limits[1][columns])
        return (X - self.lower[columns]) / self.spans[columns]

    def responses(self, y: Array) -> Array:
        """Return responses scaled so that the agreed bounds become -1 and 1."""
        centres, half_spans = self._responses(y)
        if self.limits is not None:
            y = np.clip(y, self.limits[0][_outputs(y)], self.limits[1][_outputs(y)])
        return (y - centres) / half_spans

    def undo(self, y: Array) -> Array:
        """Return scaled responses in their own units."""
        centres, half_spans = self._responses(y)
        return y * half_spans + centres

    def with_spans(self, factors: Array) -> "Scaling":
        """Return the scaling with the span of each output multiplied by a factor; its centre stays.

        Parameters
        ----------
        factors : ndarray of shape (n_outputs,)
        """
        outputs = slice(-len(factors), None)
        lower, upper = self.lower.copy(), self.upper.copy()
        centres, half_spans = (lower[outputs] + upper[outputs]) / 2, self.spans[outputs] / 2 * factors
        lower[outputs], upper[outputs] = centres - half_spans, centres + half_spans
        return replace(self, lower=lower, upper=upper)

    @property
    def tensors(self) -> Mapping[str, Array]:
        """The arrays that a model file stores."""
        limits = {} if self.limits is None else {"lowest": self.limits[0], "highest": self.limits[1]}
        return {"lower": self.lower, "upper": self.upper, **limits}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Array]) -> "Scaling":
        """Return the scaling of a model file."""
        limits = (tensors["lowest"], tensors["highest"]) if "lowest" in tensors else None
        return cls(tensors["lower"], tensors["upper"], limits)


def _outputs(y: Array) -> slice | int:
    """Return the places of the outputs of `y` among the bounds."""
    return slice(-y.shape[1], None) if y.ndim == 2 else -1


@dataclass(frozen=True)
class Unscaled:
    """No scaling: the methods of `Scaling`, which here return rows and responses unchanged.

    Examples
    --------
    >>> import numpy as np
    >>> Unscaled().undo(np.array([3.0]))
    array([3.])
    """

    def rows(self, X: Array) -> Array:
        """Return the rows."""
        return X

    def responses(self, y: Array) -> Array:
        """Return the responses."""
        return y

    def undo(self, y: Array) -> Array:
        """Return the responses."""
        return y

    @property
    def tensors(self) -> Mapping[str, Array]:
        """The arrays that a model file stores: none."""
        return {}


AnyScaling = Scaling | Unscaled
UNSCALED = Unscaled()
