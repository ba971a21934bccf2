"""The prediction for one row, which is what most requests ask for: a model as few operations as can be.

For one row the calls cost more than the arithmetic. `OneRow` therefore folds the scaling of columns into the
frequencies:

    y = half_span * amplitudes * cos((x - lower) F + phases) w + centre.

The lower bounds are not folded into the phases: columns such as years would lose digits. What a site adds for its own
rows takes the scaled row and the sum, in scaled units.
"""

from typing import Any

import numpy as np

from ..features import compiled, terms_of
from ..model import Member, SiteModel
from ..scaling import Scaling
from ..types import Array


class OneRow:
    """Predicts one row as `SiteModel.predict_encoded` does."""

    def __init__(self, model: SiteModel) -> None:
        first, scaling, self._home = model.joined_at_home, model.scaling, model.home
        self._back = None if model.response.transform is None else model.response.back
        n_columns, weights = first.feature_map.n_columns, first.coefficients
        self._lower, self._limits = np.zeros(n_columns), None
        spans: Array = np.ones(n_columns)
        half_span = np.ones(weights.shape[1:])
        self._centre: Array | float = np.zeros(weights.shape[1:])
        if isinstance(scaling, Scaling):
            columns = slice(n_columns)
            outputs = slice(-weights.shape[1], None) if weights.ndim == 2 else -1
            self._lower, spans = scaling.lower[columns], scaling.spans[columns]
            half_span = scaling.spans[outputs] / 2
            self._centre = (scaling.lower[outputs] + scaling.upper[outputs]) / 2
            if scaling.limits is not None:
                self._limits = scaling.limits[0][columns], scaling.limits[1][columns]
        self._first = _Waves(first, spans)
        self._spans, self._half_span = spans, half_span
        if not weights.shape[1:]:
            self._centre = float(self._centre)  # added faster than an array of no dimensions

    def __call__(self, row: Array) -> Array:
        """Return the prediction, shape (1,) or (1, n_outputs), for a row of shape (1, n_columns)."""
        if self._limits is not None:
            row = np.minimum(np.maximum(row, self._limits[0]), self._limits[1])  # np.clip is several times slower
        row = row - self._lower
        predicted = self._first(row)
        if self._home is not None:
            predicted = self._home.finished(row / self._spans, predicted)
        found: Array = predicted * self._half_span + self._centre
        return found if self._back is None else self._back(found)


class _Waves:
    """A sum of cosines of a row; `spans` are the units of its columns, in those of the member."""

    def __init__(self, member: Member, spans: Array) -> None:
        turn, features = 2 * np.pi, member.feature_map
        self._frequencies = np.ascontiguousarray(features.frequencies / (turn * spans[:, None]))
        self._phases, self._amplitudes = features.phases / turn, features.amplitudes
        self._weights = member.coefficients
        loops = compiled()
        self._overwrite = _overwrite if loops is None else loops.overwrite
        self._terms = terms_of(np.dtype(np.float64))

    def __call__(self, row: Array) -> Array:
        waves = row @ self._frequencies
        self._overwrite(waves, self._phases, self._amplitudes, *self._terms)
        total: Array = waves @ self._weights
        return total


def _overwrite(turns: Array, phases: Array, amplitudes: Array, *_: Any) -> None:
    """Do what the compiled loop does, by the library's cosine: for few features it is faster than a polynomial."""
    turns += phases
    turns *= 2 * np.pi
    np.cos(turns, out=turns)
    turns *= amplitudes
