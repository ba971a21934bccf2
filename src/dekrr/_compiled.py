"""Loops of `dekrr.cosines` and `dekrr.statistics` that numba compiles, once per machine and precision.

Each loop runs over all rows without Python's global lock (GIL), so that sites in threads do not wait for each other.
"""

from typing import Any

import numpy as np
from numba import njit


def _compile(loop: Any) -> Any:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "nsz"}}
    try:
        return njit(cache=True, **options)(loop)
    except RuntimeError:  # no folder is writable for numba's cache of compiled code
        return njit(**options)(loop)


@_compile
def overwrite(turns: Any, phases: Any, amplitudes: Any, quarter: Any, terms: Any) -> None:
    """Overwrite `turns`, angles in turns, by amplitudes * cos(2 pi (turns + phases)).

    `quarter` and `terms` are from `dekrr.cosines.terms_of`.
    """
    for i in range(turns.shape[0]):
        for k in range(turns.shape[1]):
            t = turns[i, k] + phases[k]
            u = quarter - abs(t - np.rint(t))
            v = u * u
            even = terms[0]
            for term in terms[1:]:
                even = even * v + term
            turns[i, k] = amplitudes[k] * u * even


@_compile
def evaluate(X: Any, parts: Any, quarter: Any, terms: Any, size: Any, out: Any) -> None:
    """Write the features of all rows to `out`, `size` rows at a time."""
    frequencies, phases, amplitudes = parts
    for start in range(0, X.shape[0], size):
        block = out[start : start + size]
        np.dot(X[start : start + size], frequencies, block)
        overwrite(block, phases, amplitudes, quarter, terms)


@_compile
def moment(X: Any, parts: Any, quarter: Any, terms: Any, size: Any, y: Any) -> Any:
    """Return the sum over all rows of y times the features, computed `size` rows at a time."""
    frequencies, phases, amplitudes = parts
    buffer = np.empty((min(size, X.shape[0]), frequencies.shape[1]), dtype=X.dtype)
    total = np.zeros(frequencies.shape[1])
    for start in range(0, X.shape[0], size):
        rows = X[start : start + size]
        block = buffer[: rows.shape[0]]
        np.dot(rows, frequencies, block)
        overwrite(block, phases, amplitudes, quarter, terms)
        total += np.dot(y[start : start + size], block)
    return total


@_compile
def weigh(weights: Any, features: Any) -> Any:
    """Return weights'features in double precision.

    The loop takes eight rows at a time: each sum is then read and written once per eight rows.
    """
    n_rows, n_features = features.shape
    total = np.zeros(n_features)
    whole = n_rows - n_rows % 8
    for i in range(0, whole, 8):
        a, b, c, d, e, f, g, h = weights[i : i + 8]
        for k in range(n_features):
            total[k] += (
                a * features[i, k]
                + b * features[i + 1, k]
                + c * features[i + 2, k]
                + d * features[i + 3, k]
                + e * features[i + 4, k]
                + f * features[i + 5, k]
                + g * features[i + 6, k]
                + h * features[i + 7, k]
            )
    for i in range(whole, n_rows):
        for k in range(n_features):
            total[k] += weights[i] * features[i, k]
    return total
