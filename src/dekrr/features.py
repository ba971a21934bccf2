"""Feature maps: the functions of a row that a site's model is linear in.

A feature is amplitude * cos(frequency'x + phase). The paper calls the frequency omega and the phase b. Features
whose amplitudes are all sqrt(2/D) are the paper's equation (9). The cos/sin pairs of its equation (8) are features
with the phases 0 and -pi/2.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from typing import Any

import numpy as np

from .errors import DataError
from .types import Array

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
        return import_module("dekrr._compiled")
    except ImportError:
        return None


def loops_for(n_elements: int) -> Any:
    """Return the module of compiled loops, or None.

    None means that numba is not installed, or that `n_elements` is too small to make up for the start of numba.
    """
    return compiled() if n_elements >= _WORTH_COMPILING else None


def exact_loops() -> Any:
    """Return the module of compiled loops if it is there already, for loops that round as numpy does; or None."""
    return compiled() if compiled.cache_info().currsize else None


def wave_blocks(
    X: np.ndarray,
    frequencies: np.ndarray,
    phases: np.ndarray,
    amplitudes: np.ndarray,
    out: np.ndarray | None = None,
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield, for one block of rows after another, its slice and amplitudes * cos(2 pi (X frequencies + phases)).

    The error is below 1e-13 (5e-5 in single precision) for angles of up to some hundred turns. Frequencies, in turns
    per unit of X, and phases are in turns, not in radians; all arrays are of one type. Without `out` all blocks share
    one buffer: each overwrites the one before.
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
    loops = exact_loops()
    if loops is not None:
        loops.overwrite_as_numpy(u, phases, amplitudes, quarter, terms)
        return
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


__all__ = ["FeatureMap"]

_FEW = 1 << 11  # features of so few rows that one call of the library's cosine is faster than the polynomial's many


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """The map z(x) = amplitudes * cos(frequencies'x + phases).

    Parameters
    ----------
    frequencies : ndarray of shape (n_columns, n_features)
    phases : ndarray of shape (n_features,)
    amplitudes : ndarray of shape (n_features,)

    Examples
    --------
    >>> from dekrr import FeatureMap
    >>> import numpy as np
    >>> feature_map = FeatureMap.unweighted(np.array([[0.0, 1.0]]), np.zeros(2))
    >>> feature_map(np.array([[0.0], [np.pi]])).round(3)
    array([[ 1.,  1.],
           [ 1., -1.]])
    """

    frequencies: Array
    phases: Array
    amplitudes: Array

    @classmethod
    def unweighted(cls, frequencies: Array, phases: Array) -> "FeatureMap":
        """Return the map with amplitudes sqrt(2 / n_features), so that z(x)'z(x') estimates the kernel.

        Parameters
        ----------
        frequencies : ndarray of shape (n_columns, n_features)
        phases : ndarray of shape (n_features,)
        """
        n_features = len(phases)
        return cls(frequencies, phases, np.full(n_features, np.sqrt(2 / max(n_features, 1))))

    @classmethod
    def joined(cls, maps: Iterable["FeatureMap"]) -> "FeatureMap":
        """Return the map that has the features of several, side by side."""
        frequencies, *others = zip(*((one.frequencies, one.phases, one.amplitudes) for one in maps), strict=True)
        return cls(np.hstack(frequencies), *map(np.concatenate, others))

    @property
    def n_features(self) -> int:
        """The number of features (the paper's D)."""
        return int(self.frequencies.shape[1])

    @property
    def n_columns(self) -> int:
        """The number of columns that a row must have (the paper's d)."""
        return int(self.frequencies.shape[0])

    @cached_property
    def _double(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Frequencies and phases in turns, and amplitudes."""
        return self.frequencies / (2 * np.pi), self.phases / (2 * np.pi), self.amplitudes

    @cached_property
    def _single(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        frequencies, phases, amplitudes = (part.astype(np.float32) for part in self._double)
        return frequencies, phases, amplitudes

    def __call__(self, X: Array, out: Array | None = None) -> Array:
        """Return the features of rows `X`, shape (n_rows, n_features).

        Where `out` is given, the features are written to it, in its precision.
        """
        features = np.empty((len(X), self.n_features)) if out is None else out
        evaluate(*self._parts(X, single=features.dtype == np.float32), features)
        return features

    def around(self, center: Array) -> "FeatureMap":
        """Return the map whose features of X - center equal the features of X under this map.

        Centred rows are smaller numbers, so that features in single precision have more correct digits.

        Parameters
        ----------
        center : ndarray of shape (n_columns,)
        """
        return FeatureMap(self.frequencies, (self.phases + center @ self.frequencies) % (2 * np.pi), self.amplitudes)

    def moment(self, X: Array, y: Array) -> Array:
        """Return Z'y, shape (n_features,); the features Z of all rows are never in memory at once.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_columns)
        y : ndarray of shape (n_rows,)
        """
        return moment(*self._parts(X), y)

    def rough_moment(self, X: Array, y: Array) -> tuple[Array, Array]:
        """Return Z'y in single precision, and a bound on its error, each of shape (n_features,).

        An angle is a sum over columns. The error of an angle of t turns is at most (n_columns + 2) t rounding errors.
        The features themselves add a few rounding errors to the sum over rows.
        """
        rough = moment(*self._parts(X, single=True), y.astype(np.float32))
        turns, phases, amplitudes = map(np.abs, self._double)
        reach = max(X.max(initial=0.0), -X.min(initial=0.0))
        a_turn = np.finfo(np.float32).eps * np.abs(y).sum() * 2 * np.pi * (self.n_columns + 2)
        return rough, (a_turn * reach * turns.sum(axis=0) + a_turn * (phases + 4)) * amplitudes

    def apply(self, X: Array, coefficients: Array) -> Array:
        """Return Z coefficients; the features Z of all rows are never in memory at once.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_columns)
        coefficients : ndarray of shape (n_features,) or (n_features, n_models)

        Returns
        -------
        ndarray of shape (n_rows,) or (n_rows, n_models)
        """
        parts = self._parts(X)
        if len(X) * self.n_features <= _FEW:
            few: Array = (self.amplitudes * np.cos(X @ self.frequencies + self.phases)) @ coefficients
            return few
        values = np.empty((len(X), *coefficients.shape[1:]))
        for rows, block in wave_blocks(*parts):
            values[rows] = block @ coefficients
        return values

    def _parts(self, X: Array, *, single: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        if X.ndim != 2 or X.shape[1] != self.n_columns:
            raise DataError(f"expected rows of {self.n_columns} columns, got an array of shape {X.shape}")
        return (X.astype(np.float32), *self._single) if single else (X, *self._double)


def paired(frequencies: Array) -> FeatureMap:
    """Return the cos/sin map of the paper's equation (8), which has two features per frequency."""
    n_pairs = frequencies.shape[1]
    phases = np.concatenate([np.zeros(n_pairs), np.full(n_pairs, -np.pi / 2)])
    return FeatureMap.unweighted(np.hstack([frequencies, frequencies]), phases)
