"""The units of training: columns scaled to [0, 1], responses changed and then scaled to [-1, 1], or none of it.

Columns and responses are scaled by bounds that the sites agree on. Responses are changed by a name or by a scikit-learn
transformer, and changed back in predictions. Sites train on the changed responses, and errors are measured on those
that are changed back. What is undone is monotone, so that the ends of intervals and medians stay what they are; a mean
does not. Names are functions that every site knows beforehand. A transformer that learns from rows would learn
something else at each site.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, logit

from .errors import DataError, SettingsError
from .types import Array, Block


@dataclass(frozen=True, eq=False)
class Scaling:
    """The bounds of the columns, followed by the bounds of each output.

    The number of outputs follows from the shape of the response; see `dekrr.types.Block`.
    """

    lower: Array  # lower, upper: shape (n_columns + n_outputs,): a constant column, or output, is mapped to 0
    upper: Array
    # shape (n_columns + n_outputs,): values outside these limits are moved to them first, in training and in prediction
    limits: tuple[Array, Array] | None = None

    @classmethod
    def of(cls, X: Array, y: Array) -> "Scaling":
        """Return the bounds of rows `X` (n_rows, n_columns) and responses `y` (n_rows,) or (n_rows, n_outputs)."""
        lower = np.append(X.min(axis=0), y.min(axis=0))
        upper = np.append(X.max(axis=0), y.max(axis=0))
        return cls(lower.astype(float), upper.astype(float))

    @classmethod
    def clipping(cls, lower: Array, upper: Array, n_columns: int, room: float = 0.0) -> "Scaling":
        """Return the scaling by bounds that rows are moved to where they lie outside by more than `room` spans.

        An output is moved where it is more than a span outside its bounds: clipped responses are another problem to
        solve, but a response of any size would outweigh all others in a sum.
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
        """Return the scaling with the span of each output multiplied by its factor; its centre stays."""
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
    """No scaling: the methods of `Scaling`, which here return rows and responses unchanged."""

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


_COMPARED = 1000  # responses that must come back
_RIGHT = 1e-6  # of the largest


class _Named(NamedTuple):
    forward: Callable[[Array], Array]
    back: Callable[[Array], Array]
    takes: Callable[[Array], np.ndarray]
    words: str
    instead: str


def _same(y: Array) -> Array:
    return y


def _floored(z: Array) -> Array:
    return np.maximum(z, 0.0)


_SIGNED = "a response that may be negative takes transform=None"
_NAMED = {
    "log": _Named(np.log, np.exp, lambda y: y > 0, "numbers above 0", '"log1p" and "sqrt" take 0 too'),
    "log1p": _Named(
        np.log1p, lambda z: np.expm1(_floored(z)), lambda y: y >= 0, "numbers that are not negative", _SIGNED
    ),
    "sqrt": _Named(np.sqrt, lambda z: _floored(z) ** 2, lambda y: y >= 0, "numbers that are not negative", _SIGNED),
    "logit": _Named(
        logit, expit, lambda y: (y > 0) & (y < 1), "shares strictly between 0 and 1", '"share" takes 0 and 1 too'
    ),
    "nonnegative": _Named(_same, _floored, lambda y: y >= 0, "numbers that are not negative", _SIGNED),
    "share": _Named(
        _same,
        lambda z: np.clip(z, 0.0, 1.0),
        lambda y: (y >= 0) & (y <= 1),
        "shares from 0 to 1",
        "divide percentages by 100",
    ),
}
NAMES = tuple(_NAMED)


@dataclass(frozen=True, eq=False)
class Response:
    """The way of responses to those that sites train on, and back."""

    # one of `NAMES`, or an object with the methods transform and inverse_transform, which is used as it is
    transform: Any = None

    @classmethod
    def of(cls, transform: Any) -> "Response":
        """Return the way of a setting; refuse a transformer that would learn from rows."""
        if transform is None or isinstance(transform, str):
            return cls(transform)
        from copy import deepcopy

        from sklearn.exceptions import NotFittedError
        from sklearn.utils import get_tags
        from sklearn.utils.validation import check_is_fitted

        if get_tags(transform).requires_fit:
            try:
                check_is_fitted(transform)
            except NotFittedError:
                raise SettingsError(
                    f"transform={transform!r} learns from rows, which sites do not pool, and would be another one at "
                    f"each: give a name ({', '.join(NAMES)}), a FunctionTransformer, or a transformer that is fitted "
                    "to public values, as in sklearn.frozen.FrozenEstimator(transformer.fit(values))"
                ) from None
        return cls(deepcopy(transform))

    @property
    def name(self) -> str | None:
        """The name that a model file keeps; None where there is none."""
        return self.transform if isinstance(self.transform, str) else None

    @property
    def is_learner(self) -> bool:
        """Whether the way is a transformer, which has no name."""
        return self.transform is not None and self.name is None

    def forward(self, y: Array, where: Callable[[int], str] = "row {}".format) -> Array:
        """Return the responses that sites train on; refuse those that cannot be changed, and say `where` they are."""
        if self.transform is None:
            return y
        if self.name is not None:
            named = _NAMED[self.name]
            _refuse(y, named.takes(y), where, f"transform={self.name!r} takes {named.words}", named.instead)
            return np.asarray(named.forward(y))
        changed = self._by_transformer("transform", y)
        _refuse(y, np.isfinite(changed), where, f"transform={self.transform!r} makes no finite number of it", "")
        some = y[:_COMPARED]
        if len(y) and np.max(np.abs(self.back(changed[:_COMPARED]) - some)) > _RIGHT * np.max(np.abs(some)):
            raise SettingsError(
                f"transform={self.transform!r} does not give responses back: inverse_transform must undo transform, as "
                "in FunctionTransformer(numpy.log, inverse_func=numpy.exp)"
            )
        return changed

    def back(self, z: Array) -> Array:
        """Return responses in their own units, of the shape (n_rows, ...) of `z`; they are in the range of a name."""
        if self.transform is None:
            return z
        with np.errstate(over="ignore"):  # far outside training, the exponential of a large number is infinite
            return np.asarray(_NAMED[self.name].back(z) if self.name else self._by_transformer("inverse_transform", z))

    def ends_back(self, ends: Array) -> Array:
        """Return `back` of the ends of intervals, shape (n_rows, 2) or (n_rows, 2, n_outputs), the lower one first."""
        if self.transform is None:
            return ends
        finite = np.clip(ends, -np.finfo(float).max, np.finfo(float).max)  # a transformer may refuse infinite ends
        found = np.stack([self.back(finite[:, end] if self.is_learner else ends[:, end]) for end in (0, 1)], axis=1)
        return np.sort(found, axis=1)

    def _by_transformer(self, method: str, y: Array) -> Array:
        flat = np.asarray(getattr(self.transform, method)(_flat(y)), dtype=float)
        return flat.reshape(y.shape)

    def changed(self, block: Block, whose: str) -> Block:
        """Return rows with their responses changed; `whose` they are is for errors."""
        return block._replace(y=self.forward(block.y, lambda row: f"{whose}, a row"))


AS_IT_IS = Response()


def _flat(y: np.ndarray) -> np.ndarray:
    return y.reshape(len(y), math.prod(y.shape[1:]))


def _refuse(y: Array, takes: np.ndarray, where: Callable[[int], str], what: str, instead: str) -> None:
    wrong = ~_flat(takes)
    if wrong.any():
        row, output = np.argwhere(wrong)[0]
        count = int(wrong.any(axis=1).sum())
        more = f" ({count} rows are like that)" if count > 1 else ""
        value = _flat(y)[row, output]
        raise DataError(
            f"{where(int(row))}: the response is {value:g}{more}, but {what}. Correct the row, or give another "
            f"transform{': ' + instead if instead else ''}"
        ).about(code="transform")
