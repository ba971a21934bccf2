"""Feature maps: the functions of a row that a site's model is linear in.

A feature is amplitude * cos(frequency'x + phase). The paper calls the frequency omega and the phase b. Features
whose amplitudes are all sqrt(2/D) are the paper's equation (9). The cos/sin pairs of its equation (8) are features
with the phases 0 and -pi/2.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .cosines import evaluate, moment, wave_blocks
from .errors import DataError
from .types import Array

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

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_columns)
        y : ndarray of shape (n_rows,)
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
    """Return the cos/sin map of the paper's equation (8), which has two features per frequency.

    Parameters
    ----------
    frequencies : ndarray of shape (n_columns, n_pairs)
    """
    n_pairs = frequencies.shape[1]
    phases = np.concatenate([np.zeros(n_pairs), np.full(n_pairs, -np.pi / 2)])
    return FeatureMap.unweighted(np.hstack([frequencies, frequencies]), phases)
