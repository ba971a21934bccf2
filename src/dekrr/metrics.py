"""The error measure of all comparisons: the relative square error (RSE)."""

from typing import Any

import numpy as np

from .errors import DataError
from .types import Array


def rse(y: Any, prediction: Any) -> float:
    """Return the relative square error, sum (f - y)^2 / sum (y - mean y)^2.

    Examples
    --------
    >>> rse([0.0, 2.0], [0.0, 1.0])
    0.5
    """
    y, prediction = (_vector(values) for values in (y, prediction))
    if y.shape != prediction.shape:
        raise DataError(f"{len(prediction)} predictions for {len(y)} responses")
    errors: Array = prediction - y
    return relative(float(np.sum(errors**2)), y)


def _vector(values: Any) -> Array:
    vector = np.asarray(values, dtype=float)
    return vector[:, 0] if vector.ndim == 2 and vector.shape[1] == 1 else np.atleast_1d(vector)


def relative(squared_error: float, y: Array) -> float:
    """Return a sum of squared errors divided by the sum of squared deviations of `y` from its mean."""
    if not len(y):
        raise DataError("there are no rows to score")
    spread = float(np.sum((y - y.mean()) ** 2))
    if spread == 0:
        return 0.0 if squared_error == 0 else float("inf")
    return squared_error / spread
