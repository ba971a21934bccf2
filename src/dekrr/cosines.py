"""Cosines: what features cost most of their time.

An angle is kept in turns, t = angle / (2 pi), so that cos(2 pi t) = sin(2 pi u) with u = 1/4 - |t - round(t)|, and
on |u| <= 1/4 the sine is an odd polynomial: 8 terms for double precision, 5 for single. `numpy.cos` takes 17 ns an
element in double precision on current processors; the polynomial takes 3 ns in numpy and 0.4 ns compiled, which
numba does where it is installed (the extra ``dekrr[fast]``).
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

# Interpolates sin(2 pi sqrt(v)) / sqrt(v) at the Chebyshev nodes of [0, 1/16]; the sine is off by 5e-16 and 7e-9.
DOUBLE = (
    6.283185307179585,
    -41.341702240398284,
    81.60524927557977,
    -76.70585968962867,
    42.05868995395094,
    -15.09450614073429,
    3.817365633469135,
    -0.6925067010720717,
)
SINGLE = (
    6.283185280154407,
    -41.34168061334652,
    81.60247636892518,
    -76.58117264427872,
    39.7598270853191,
)
_BYTES_PER_BLOCK = 1 << 18  # a block of rows and its scratch stay in the second-level cache
_BYTES_FOR_PRODUCT = 1 << 22  # the most for a block whose rows have many columns
_WORTH_COMPILING = 1 << 15  # elements; starting numba takes most of a second, once a process


@cache
def terms_of(dtype: np.dtype[Any]) -> tuple[Any, tuple[Any, ...]]:
    """Return a quarter and the sine's terms, highest first, as numbers of a type."""
    terms = DOUBLE if dtype == np.float64 else SINGLE
    return dtype.type(0.25), tuple(dtype.type(term) for term in reversed(terms))


def block_rows(frequencies: np.ndarray) -> int:
    """Return so few rows that their features stay in the cache, but enough for a product of many columns to be fast."""
    n_columns, n_features = map(int, frequencies.shape)
    row_bytes = max(1, n_features * frequencies.itemsize)
    return max(1, _BYTES_PER_BLOCK // row_bytes, min(2 * n_columns, _BYTES_FOR_PRODUCT // row_bytes))


@cache
def compiled() -> Any:
    """Return the module of compiled loops, or None where numba is not installed."""
    try:
        from . import _compiled
    except ImportError:
        return None
    return _compiled


def loops_for(n_elements: int) -> Any:
    """Return the module of compiled loops, or None where it is not there or not worth starting for so few elements."""
    return compiled() if n_elements >= _WORTH_COMPILING else None


def wave_blocks(
    X: np.ndarray,
    frequencies: np.ndarray,
    phases: np.ndarray,
    amplitudes: np.ndarray,
    out: np.ndarray | None = None,
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield blocks of rows and their amplitudes * cos(2 pi (X frequencies + phases)).

    The error is below 1e-13 (5e-5 in single precision) up to some hundred turns.

    Parameters
    ----------
    X : ndarray of float64 or float32, shape (n_rows, n_columns)
    frequencies : ndarray of the same type, shape (n_columns, n_features)
        In turns, not radians, a unit; so are the phases.
    phases, amplitudes : ndarray of the same type, shape (n_features,)
    out : ndarray of the same type, shape (n_rows, n_features), optional
        Without it every block is written over the last one.

    Examples
    --------
    >>> import numpy as np
    >>> X, amplitudes = np.array([[0.25], [3.0]]), np.array([1.0, 2.0])
    >>> for rows, block in wave_blocks(X, np.ones((1, 2)), np.array([0.25, 0.0]), amplitudes):
    ...     print(rows, block.round(6).tolist())
    slice(0, 2, None) [[-1.0, 0.0], [0.0, 2.0]]
    """
    n_rows, n_features = len(X), frequencies.shape[1]
    loops = loops_for(n_rows * n_features)
    overwrite = _polynomial if loops is None else loops.overwrite
    size = min(n_rows, block_rows(frequencies))
    buffer = np.empty((size, n_features), dtype=frequencies.dtype) if out is None else out
    for start in range(0, n_rows, max(1, size)):
        rows = slice(start, min(start + size, n_rows))
        block = buffer[: rows.stop - start] if out is None else out[rows]
        np.matmul(X[rows], frequencies, out=block)
        overwrite(block, phases, amplitudes, *terms_of(block.dtype))
        yield rows, block


def evaluate(
    X: np.ndarray, frequencies: np.ndarray, phases: np.ndarray, amplitudes: np.ndarray, out: np.ndarray
) -> None:
    """Write amplitudes * cos(2 pi (X frequencies + phases)) of all rows to `out`; see `wave_blocks`."""
    loops = loops_for(out.size)
    if loops is None:
        for _ in wave_blocks(X, frequencies, phases, amplitudes, out):
            pass
    else:
        parts = tuple(map(np.ascontiguousarray, (frequencies, phases, amplitudes)))
        loops.evaluate(np.ascontiguousarray(X), parts, *terms_of(out.dtype), block_rows(frequencies), out)


def moment(
    X: np.ndarray, frequencies: np.ndarray, phases: np.ndarray, amplitudes: np.ndarray, y: np.ndarray
) -> np.ndarray:
    """Return y'amplitudes * cos(2 pi (X frequencies + phases)), in double precision, shape (n_features,)."""
    loops = loops_for(len(X) * len(phases))
    if loops is not None:
        parts = tuple(map(np.ascontiguousarray, (frequencies, phases, amplitudes)))
        X, y = np.ascontiguousarray(X), np.ascontiguousarray(y)
        return np.asarray(loops.moment(X, parts, *terms_of(X.dtype), block_rows(frequencies), y))
    total = np.zeros(len(phases))
    for rows, block in wave_blocks(X, frequencies, phases, amplitudes):
        total += y[rows] @ block
    return total


def _polynomial(
    u: np.ndarray, phases: np.ndarray, amplitudes: np.ndarray, quarter: Any, terms: tuple[Any, ...]
) -> None:
    """Overwrite angles in turns by amplitudes * cos(2 pi (angles + phases))."""
    u += phases
    u -= np.rint(u)
    np.abs(u, out=u)
    np.subtract(quarter, u, out=u)
    squared = u * u
    value = squared * terms[0]
    for term in terms[1:-1]:
        value += term
        value *= squared
    value += terms[-1]
    value *= amplitudes
    u *= value
