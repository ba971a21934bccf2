"""Intervals of a fitted regressor's sites, and the prediction sets of a classifier's."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import SettingsError, warn
from ..intervals import too_few_text
from ..labels import factorise, places_of
from ..types import Array


def intervals_of(models: Mapping[Hashable, Any], X: Array, sites: Any, coverage: float) -> Array:
    """Return the interval of each row by its own site's model, shape (n_rows, 2) or (n_rows, 2, n_outputs).

    Parameters
    ----------
    models : mapping of site to SiteModel
    X : ndarray of shape (n_rows, n_columns)
    sites : array-like of shape (n_rows,), or None
        A row of None, or of a site without a model, gets the hull of all sites' intervals.
    coverage : float
    """
    different = {id(model): model for model in models.values() if model.calibration is not None}
    if not different:
        raise SettingsError(
            "these models have no intervals: fit DeKRRRegressor with intervals=True. By default they are made where "
            "sigma, alpha or consensus is left open; a run with a privacy budget has none"
        )
    if sites is None:
        return _hull(list(different.values()), X, coverage)
    labels, index = factorise(sites, len(X))
    ends = None
    for label, own in zip(labels, places_of(index, len(labels)), strict=True):
        if label in models:
            part = models[label].interval_encoded(X[own], coverage)
        else:
            part = _hull(list(different.values()), X[own], coverage)
        ends = np.empty((len(X), *part.shape[1:])) if ends is None else ends
        ends[own] = part
    return np.empty((0, 2)) if ends is None else ends


def tell_of_too_few(models: Mapping[Hashable, Any], sites: Any, coverage: float) -> None:
    """Warn once about all sites of rows that held out too few rows for a coverage.

    Parameters
    ----------
    models, sites, coverage
        As in `intervals_of`.
    """
    without = too_few(models, coverage)
    if sites is not None:
        asked = set(factorise(sites, len(sites))[0])
        without = [label for label in without if label in asked or not asked <= set(models)]
    if without:
        warn(too_few_text(without, coverage, "the ends of these intervals are infinite"))


def too_few(models: Mapping[Hashable, Any], coverage: float) -> list[Hashable]:
    """Return the sites that held out too few rows for a coverage."""
    known = {label: model.calibration for label, model in models.items()}
    return [label for label, found in known.items() if found is not None and not found.reaches(coverage)]


def _hull(models: Sequence[Any], X: Array, coverage: float) -> Array:
    """Return from the lowest lower end to the highest upper end of several models' intervals."""
    ends = np.array([model.interval_encoded(X, coverage) for model in models])
    return np.stack([ends[:, :, 0].min(axis=0), ends[:, :, 1].max(axis=0)], axis=1)
