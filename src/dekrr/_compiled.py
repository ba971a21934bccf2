"""The loops of `dekrr.cosines`, compiled; importing this needs numba, and compiles once a machine."""

from typing import Any

import numpy as np
from numba import njit

from .cosines import DOUBLE, SINGLE

_QUARTER = np.float32(0.25)
_D0, _D1, _D2, _D3, _D4, _D5, _D6, _D7 = DOUBLE
_S0, _S1, _S2, _S3, _S4 = map(np.float32, SINGLE)


def _compile(loop: Any) -> Any:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "nsz"}}
    try:
        return njit(cache=True, **options)(loop)
    except RuntimeError:  # nowhere to keep the compiled code
        return njit(**options)(loop)


def _double(turns: Any, phases: Any, amplitudes: Any) -> None:
    for i in range(turns.shape[0]):
        for k in range(turns.shape[1]):
            t = turns[i, k] + phases[k]
            u = 0.25 - abs(t - np.rint(t))
            v = u * u
            even = _D0 + v * (_D1 + v * (_D2 + v * (_D3 + v * (_D4 + v * (_D5 + v * (_D6 + v * _D7))))))
            turns[i, k] = amplitudes[k] * u * even


def _single(turns: Any, phases: Any, amplitudes: Any) -> None:
    for i in range(turns.shape[0]):
        for k in range(turns.shape[1]):
            t = turns[i, k] + phases[k]
            u = _QUARTER - abs(t - np.rint(t))
            v = u * u
            turns[i, k] = amplitudes[k] * u * (_S0 + v * (_S1 + v * (_S2 + v * (_S3 + v * _S4))))


cosines = {"d": _compile(_double), "f": _compile(_single)}
