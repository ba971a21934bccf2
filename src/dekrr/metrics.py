"""The two figures that every comparison here reports."""

from typing import Any

import numpy as np

from .types import Array


def rse(y: Any, prediction: Any) -> float:
    """Return the relative square error, sum (f - y)^2 / sum (y - mean y)^2.

    Examples
    --------
    >>> rse([0.0, 2.0], [0.0, 1.0])
    0.5
    """
    y, prediction = np.asarray(y, dtype=float), np.asarray(prediction, dtype=float)
    errors: Array = prediction - y
    return relative(float(np.sum(errors**2)), y)


def relative(squared_error: float, y: Array) -> float:
    """Return a sum of squared errors relative to the responses' own around their mean."""
    spread = float(np.sum((y - y.mean()) ** 2))
    if spread == 0:
        return 0.0 if squared_error == 0 else float("inf")
    return squared_error / spread
