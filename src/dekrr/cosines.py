"""Cosines: the most expensive operation in the evaluation of features.

An angle is stored in turns: t = angle / (2 pi). Range reduction gives cos(2 pi t) = sin(2 pi u) with
u = 1/4 - |t - round(t)|. On |u| <= 1/4 an odd polynomial approximates the sine: 8 terms for double precision, 5 for
single precision. The polynomial is several times faster than `numpy.cos`, and faster again where numba compiles it
(the extra ``dekrr[fast]``); docs/performance.md has the figures.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

# These polynomials interpolate sin(2 pi sqrt(v)) / sqrt(v) at the Chebyshev nodes of [0, 1/16].
# The error of the sine is at most 5e-16 in double precision and 7e-9 in single precision.
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
_BYTES_PER_BLOCK = 1 << 18  # a block of rows and its scratch memory fit into the second-level cache
_BYTES_FOR_PRODUCT = 1 << 22  # the upper limit for a block whose rows have many columns
_WORTH_COMPILING = 1 << 15  # elements; numba takes long to start, once per process


@cache
def terms_of(dtype: np.dtype[Any]) -> tuple[Any, tuple[Any, ...]]:
    """Return 1/4 and the coefficients of the sine's polynomial, highest degree first, as numbers of type `dtype`."""
    terms = DOUBLE if dtype == np.float64 else SINGLE
    return dtype.type(0.25), tuple(dtype.type(term) for term in reversed(terms))


def block_rows(frequencies: np.ndarray) -> int:
    """Return the number of rows in a block.

    The features of a block should fit into the cache. A matrix product over many columns needs more rows to be fast.
    """
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
    """Return the module of compiled loops, or None.

    None means that numba is not installed, or that `n_elements` is too small to make up for the start of numba.
    """
    return compiled() if n_elements >= _WORTH_COMPILING else None


def wave_blocks(
    X: np.ndarray,
    frequencies: np.ndarray,
    phases: np.ndarray,
    amplitudes: np.ndarray,
    out: np.ndarray | None = None,
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield, for one block of rows after another, its slice and amplitudes * cos(2 pi (X frequencies + phases)).

    The error is below 1e-13 (5e-5 in single precision) for angles of up to some hundred turns.

    Parameters
    ----------
    X : ndarray of float64 or float32, shape (n_rows, n_columns)
    frequencies : ndarray of the same type, shape (n_columns, n_features)
        In turns per unit of X, not in radians. The phases are in turns, too.
    phases, amplitudes : ndarray of the same type, shape (n_features,)
    out : ndarray of the same type, shape (n_rows, n_features), optional
        The array that takes the result. Without it all blocks share one buffer: each overwrites the one before.

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
    """Return y'Z with Z = amplitudes * cos(2 pi (X frequencies + phases)), in double precision, shape (n_features,)."""
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
    """Overwrite `u`, angles in turns, by amplitudes * cos(2 pi (u + phases))."""
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
