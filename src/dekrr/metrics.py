"""The error measure of all comparisons: the relative squared error (RSE)."""

from typing import Any

import numpy as np

from .errors import DataError
from .types import Array

__all__ = ["rse"]


def rse(y: Any, prediction: Any, sample_weight: Any = None) -> float:
    """Return the relative squared error, sum w (f - y)^2 / sum w (y - mean y)^2; its mean over several outputs.

    Parameters
    ----------
    y, prediction : array-like of shape (n_rows,) or (n_rows, n_outputs)
    sample_weight : array-like of shape (n_rows,), optional
        w; all 1 by default.

    Examples
    --------
    >>> from dekrr import rse
    >>> rse([0.0, 2.0], [0.0, 1.0])
    0.5
    >>> rse([[0.0, 0.0], [2.0, 2.0]], [[0.0, 0.0], [1.0, 2.0]])
    0.25
    """
    y, prediction = (_columns(values) for values in (y, prediction))
    if y.shape != prediction.shape:
        raise DataError(
            f"{len(prediction)} predictions for {len(y)} responses"
            if len(y) != len(prediction)
            else f"predictions of {prediction.shape[1]} outputs for responses of {y.shape[1]}"
        )
    weight = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
    if weight.shape != (len(y),):
        raise DataError(f"weights of shape {weight.shape} for {len(y)} responses; give one weight per row")
    return relative(weight @ (prediction - y) ** 2, y, weight)


def _columns(values: Any) -> Array:
    columns = np.atleast_1d(np.asarray(values, dtype=float))
    return columns if columns.ndim == 2 else columns[:, None]


def relative(squared_errors: Any, y: Array, weight: Array | None = None) -> float:
    """Return squared errors relative to the squared deviations of `y` from its mean: the mean over outputs.

    They are summed over rows already, one sum or one for each output.
    """
    if not len(y) or (weight is not None and not weight.sum() > 0):
        raise DataError("there are no rows to score")
    y = _columns(y)
    mean = np.average(y, axis=0, weights=weight)
    spread = (np.ones(len(y)) if weight is None else weight) @ (y - mean) ** 2
    errors = np.broadcast_to(np.asarray(squared_errors, dtype=float), spread.shape)
    shares = np.where(errors == 0, 0.0, np.inf)
    np.divide(errors, spread, out=shares, where=spread > 0)
    return float(shares.mean())


def excess(losses: Array, others: Array, weight: Array | None = None) -> tuple[float, float]:
    """Return how much larger losses of rows are than others of the same rows, in the mean, and its standard error."""
    more, weights = losses - others, np.ones(len(losses)) if weight is None else weight
    mean = np.average(more, weights=weights)
    n_rows = weights.sum() ** 2 / (weights @ weights)  # as many as rows of equal weight would be
    spread = np.average((more - mean) ** 2, weights=weights)
    return float(mean), float(np.sqrt(spread / (n_rows - 1))) if n_rows > 1 else float("inf")


def accuracy(y: Any, predicted: Any, sample_weight: Any = None) -> float:
    """Return the share of rows whose class is predicted, by their weights where they have some."""
    return float(np.average(np.asarray(y) == np.asarray(predicted), weights=sample_weight))
