"""The loops of `dekrr.cosines`, compiled; importing this needs numba, and compiles once a machine and precision.

Each runs over all blocks of rows without Python's lock, so that sites in threads do not wait for each other.
"""

from typing import Any

import numpy as np
from numba import njit


def _compile(loop: Any) -> Any:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "nsz"}}
    try:
        return njit(cache=True, **options)(loop)
    except RuntimeError:  # nowhere to keep the compiled code
        return njit(**options)(loop)


@_compile
def overwrite(turns: Any, phases: Any, amplitudes: Any, quarter: Any, terms: Any) -> None:
    """Overwrite angles in turns by amplitudes * cos(2 pi (angles + phases)); terms are of the sine, highest first."""
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
    """Write the waves of all rows to `out`, `size` rows at a time."""
    frequencies, phases, amplitudes = parts
    for start in range(0, X.shape[0], size):
        block = out[start : start + size]
        np.dot(X[start : start + size], frequencies, block)
        overwrite(block, phases, amplitudes, quarter, terms)


@_compile
def moment(X: Any, parts: Any, quarter: Any, terms: Any, size: Any, y: Any) -> Any:
    """Return the sum of y times the waves of all rows, `size` rows at a time."""
    frequencies, phases, amplitudes = parts
    buffer = np.empty((size, frequencies.shape[1]), dtype=X.dtype)
    total = np.zeros(frequencies.shape[1])
    for start in range(0, X.shape[0], size):
        rows = X[start : start + size]
        block = buffer[: rows.shape[0]]
        np.dot(rows, frequencies, block)
        overwrite(block, phases, amplitudes, quarter, terms)
        total += np.dot(y[start : start + size], block)
    return total
