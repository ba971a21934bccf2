"""The loops of `dekrr.cosines`, compiled; importing this needs numba, and compiles once a machine.

Each runs over all blocks of rows without Python's lock, so that sites in threads do not wait for each other.
"""

from typing import Any

import numpy as np
from numba import njit

from .cosines import BYTES_PER_BLOCK, DOUBLE, SINGLE

_QUARTER = np.float32(0.25)
_D0, _D1, _D2, _D3, _D4, _D5, _D6, _D7 = DOUBLE
_S0, _S1, _S2, _S3, _S4 = map(np.float32, SINGLE)


def _compile(loop: Any) -> Any:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "nsz"}}
    try:
        return njit(cache=True, **options)(loop)
    except RuntimeError:  # nowhere to keep the compiled code
        return njit(**options)(loop)


@_compile
def overwrite_double(turns: Any, phases: Any, amplitudes: Any) -> None:
    """Overwrite angles in turns by amplitudes * cos(2 pi (angles + phases))."""
    for i in range(turns.shape[0]):
        for k in range(turns.shape[1]):
            t = turns[i, k] + phases[k]
            u = 0.25 - abs(t - np.rint(t))
            v = u * u
            even = _D0 + v * (_D1 + v * (_D2 + v * (_D3 + v * (_D4 + v * (_D5 + v * (_D6 + v * _D7))))))
            turns[i, k] = amplitudes[k] * u * even


@_compile
def overwrite_single(turns: Any, phases: Any, amplitudes: Any) -> None:
    """Do the same in single precision."""
    for i in range(turns.shape[0]):
        for k in range(turns.shape[1]):
            t = turns[i, k] + phases[k]
            u = _QUARTER - abs(t - np.rint(t))
            v = u * u
            turns[i, k] = amplitudes[k] * u * (_S0 + v * (_S1 + v * (_S2 + v * (_S3 + v * _S4))))


@_compile
def rows_per_block(n_features: Any, itemsize: Any) -> Any:
    """Return how many rows of features are a block."""
    return max(1, BYTES_PER_BLOCK // max(1, n_features * itemsize))


@_compile
def _evaluate_double(X: Any, frequencies: Any, phases: Any, amplitudes: Any, out: Any) -> None:
    size = rows_per_block(frequencies.shape[1], 8)
    for start in range(0, X.shape[0], size):
        block = out[start : start + size]
        np.dot(X[start : start + size], frequencies, block)
        overwrite_double(block, phases, amplitudes)


@_compile
def _evaluate_single(X: Any, frequencies: Any, phases: Any, amplitudes: Any, out: Any) -> None:
    size = rows_per_block(frequencies.shape[1], 4)
    for start in range(0, X.shape[0], size):
        block = out[start : start + size]
        np.dot(X[start : start + size], frequencies, block)
        overwrite_single(block, phases, amplitudes)


@_compile
def _moment_double(X: Any, frequencies: Any, phases: Any, amplitudes: Any, y: Any) -> Any:
    size = rows_per_block(frequencies.shape[1], 8)
    buffer = np.empty((size, frequencies.shape[1]))
    total = np.zeros(frequencies.shape[1])
    for start in range(0, X.shape[0], size):
        rows = X[start : start + size]
        block = buffer[: rows.shape[0]]
        np.dot(rows, frequencies, block)
        overwrite_double(block, phases, amplitudes)
        total += np.dot(y[start : start + size], block)
    return total


@_compile
def _moment_single(X: Any, frequencies: Any, phases: Any, amplitudes: Any, y: Any) -> Any:
    size = rows_per_block(frequencies.shape[1], 4)
    buffer = np.empty((size, frequencies.shape[1]), dtype=np.float32)
    total = np.zeros(frequencies.shape[1])
    for start in range(0, X.shape[0], size):
        rows = X[start : start + size]
        block = buffer[: rows.shape[0]]
        np.dot(rows, frequencies, block)
        overwrite_single(block, phases, amplitudes)
        total += np.dot(y[start : start + size], block)
    return total


overwrite = {"d": overwrite_double, "f": overwrite_single}
evaluate = {"d": _evaluate_double, "f": _evaluate_single}
moment = {"d": _moment_double, "f": _moment_single}
