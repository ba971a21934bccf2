"""Intervals that cover the response with a given chance: split conformal prediction with a local scale.

A site holds rows out, trains without them, and compares predictions with responses there. The residual of a held-out
row, divided by a scale that depends on the row, is its score. The interval of a new row is its prediction plus and
minus its scale times a quantile of the scores. If the new row is drawn as the held-out rows were, it is covered with
the wanted chance, whatever the model and whatever the scale. That is a statement about the model without the held-out
rows. The model that is kept has been trained with them, and its errors are a little smaller, unless a few of these rows
decide what it predicts. So where the two models are further apart than the response is, that distance is the residual.

The scale is a ridge regression of log |residual| on the site's features, from rows that were not held out. It makes
intervals wide where errors are large, and has no part in the guarantee.

A site keeps a histogram of its scores, in bins of 2 %, relative to their 80 % quantile. A site with few held-out rows
borrows the rest from the histogram of all sites.

References
----------
Lei, G'Sell, Rinaldo, Tibshirani and Wasserman, Distribution-free predictive inference for regression, Journal of the
American Statistical Association 113(523), 2018, sections 2.2 and 5.2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigh

from .errors import SettingsError
from .labels import listed
from .types import Array

_STEP = 1.02  # the width of a bin
_DECADES = 3.0  # of scores, below and above their level
_LEVEL = 0.8  # the quantile of a site's scores that they are counted relative to
N_BINS = int(np.ceil(2 * _DECADES * np.log(10) / np.log(_STEP))) + 1
_EDGES = 10**-_DECADES * _STEP ** np.arange(N_BINS)  # the upper edge of each bin; the last one has all larger scores
ENOUGH = 50  # held-out rows from which on a site's own scores stand alone
_RIDGES = 10.0 ** np.arange(-4, 5.1, 0.5)  # of Z'Z / n
_SMALLEST = 1e-3  # of the median residual: what smaller ones count as
_REACH = 3.0  # how far scales go from their median, as a factor


@dataclass(frozen=True, eq=False)
class Scale:
    """How large errors are expected to be at a row: exp(a + z(x)'b), within a factor of 3 of a middle.

    Parameters
    ----------
    middle : ndarray of shape (n_outputs,)
        a.
    coefficients : ndarray of shape (n_features, n_outputs)
        b.
    centre : ndarray of shape (n_features,)
        Features are taken relative to it.
    """

    middle: Array
    coefficients: Array
    centre: Array

    @classmethod
    def fit(cls, features: Array, residuals: Array, weight: Array | None = None) -> "Scale":
        """Return the ridge regression of log |residual|; its ridge has the least error of leaving one row out.

        Parameters
        ----------
        features : ndarray of shape (n_rows, n_features)
        residuals : ndarray of shape (n_rows, n_outputs)
        weight : ndarray of shape (n_rows,), optional
        """
        share = np.ones(len(features)) if weight is None else weight
        share = share / share.sum()
        sizes = np.abs(residuals)
        typical = np.median(sizes, axis=0)
        logs = np.log(np.maximum(sizes, np.maximum(_SMALLEST * typical, np.finfo(float).tiny)))
        middle, centre = share @ logs, share @ features
        Z = (features - centre) * np.sqrt(share)[:, None]
        target = (logs - middle) * np.sqrt(share)[:, None]
        values, vectors = eigh(Z.T @ Z)
        rotated = Z @ vectors
        moment = rotated.T @ target
        best = np.zeros((Z.shape[1], residuals.shape[1]))
        least = np.sum(target**2, axis=0)
        for ridge in _RIDGES * max(float(values[-1]), np.finfo(float).tiny) * 1e-4:
            shrunk = moment / (np.maximum(values, 0.0) + ridge)[:, None]
            leverage = np.sum(rotated**2 / (np.maximum(values, 0.0) + ridge), axis=1)
            left_out = (target - rotated @ shrunk) / np.maximum(1 - leverage, 1e-3)[:, None]
            error = np.sum(left_out**2, axis=0)
            best, least = np.where(error < least, vectors @ shrunk, best), np.minimum(error, least)
        return cls(middle, best, centre)

    def __call__(self, features: Array) -> Array:
        """Return the scale of rows, shape (n_rows, n_outputs), from their features."""
        excess = (features - self.centre) @ self.coefficients
        reach = np.log(_REACH)
        return np.asarray(np.exp(self.middle + np.clip(excess, -reach, reach)))


def histogram(scores: Array, weight: Array | None = None) -> Array:
    """Return how many scores are in each bin, shape (n_bins, n_outputs); a score counts as the upper edge of its bin.

    Parameters
    ----------
    scores : ndarray of shape (n_rows, n_outputs)
    weight : ndarray of shape (n_rows,), optional
        Their mean is taken as 1, so that the counts add up to the number of rows.
    """
    counts = np.empty((N_BINS, scores.shape[1]))
    share = None if weight is None else weight / weight.mean()
    for output, column in enumerate(scores.T):
        places = np.minimum(np.searchsorted(_EDGES, column), N_BINS - 1)
        counts[:, output] = np.bincount(places, weights=share, minlength=N_BINS)
    return counts


def require_coverage(coverage: float) -> None:
    """Refuse a coverage that is not between 0 and 1."""
    if not 0 < coverage < 1:
        raise SettingsError(f"coverage is the share of rows to cover, a number between 0 and 1; got {coverage!r}")


def rows_for(coverage: float) -> int:
    """Return how many held-out rows intervals of a coverage take.

    Examples
    --------
    >>> rows_for(0.9), rows_for(0.95), rows_for(0.99)
    (9, 19, 99)
    """
    return int(np.ceil(coverage / (1 - coverage) - 1e-9))


def too_few_text(sites: Sequence[Any], coverage: float, instead: str) -> str:
    """Return the warning about sites with too few held-out rows for a coverage.

    Parameters
    ----------
    sites : sequence
        Their labels.
    coverage : float
    instead : str
        What they get.
    """
    who = f"site {listed(sites)} has" if len(sites) == 1 else f"sites {listed(sites)} have"
    return (
        f"{who} too few held-out rows for a coverage of {coverage:g}, which takes {rows_for(coverage)}: {instead}. Ask "
        "for a lower coverage, or train with more rows, of which a fifth is held out"
    )


@dataclass(frozen=True, eq=False)
class Calibration:
    """What a site keeps for intervals: no row and no residual, but counts of scores.

    Parameters
    ----------
    scale : Scale
    levels : ndarray of shape (n_outputs,)
        The 80 % quantile of the site's own scores.
    own, pooled : ndarray of shape (n_bins, n_outputs)
        How many scores are in each bin, relative to the level of their site: of this site, and of all sites.
    """

    scale: Scale
    levels: Array
    own: Array
    pooled: Array

    @property
    def n_held_out(self) -> int:
        """The number of rows that the site held out."""
        return round(float(self.own[:, 0].sum()))

    def quantiles(self, coverage: float) -> Array:
        """Return the factor of the scale that covers with a chance of `coverage`, shape (n_outputs,).

        The rank of the quantile is that of n + 1 scores, one of which is the new row's. Where n scores are too few for
        it, only an infinite interval would do, and the factor is infinite.
        """
        require_coverage(coverage)
        own, pooled = self.own.sum(axis=0), self.pooled.sum(axis=0)
        borrowed = np.where(pooled > 0, np.clip(ENOUGH - own, 0, pooled), 0.0)
        counts = self.own + self.pooled * (borrowed / np.maximum(pooled, 1.0))
        total = counts.sum(axis=0)
        ranks = np.ceil((total + 1) * coverage - 1e-9)
        places = (np.cumsum(counts, axis=0) < ranks - 1e-9).sum(axis=0)
        found = self.levels * _EDGES[np.minimum(places, N_BINS - 1)]
        return np.where(ranks > total, np.inf, found)

    def reaches(self, coverage: float) -> bool:
        """Return whether there are enough held-out rows for intervals of this coverage."""
        return bool(np.isfinite(self.quantiles(coverage)).all())

    def radius(self, features: Array, coverage: float) -> Array:
        """Return half the width of the interval of each row, shape (n_rows, n_outputs), from the rows' features."""
        return np.asarray(self.scale(features) * self.quantiles(coverage))

    @property
    def tensors(self) -> dict[str, Array]:
        """The arrays that a model file stores."""
        return {
            "interval_middle": self.scale.middle,
            "interval_coefficients": self.scale.coefficients,
            "interval_centre": self.scale.centre,
            "interval_levels": self.levels,
            "interval_own": self.own,
            "interval_pooled": self.pooled,
        }

    @classmethod
    def of(cls, tensors: Mapping[str, Array], n_features: int, n_outputs: int) -> "Calibration":
        """Return what `tensors` stored; KeyError or ValueError where it is not that."""
        shapes = {
            "middle": (n_outputs,),
            "coefficients": (n_features, n_outputs),
            "centre": (n_features,),
            "levels": (n_outputs,),
            "own": (N_BINS, n_outputs),
            "pooled": (N_BINS, n_outputs),
        }
        parts = {name: tensors[f"interval_{name}"] for name in shapes}
        for name, shape in shapes.items():
            if parts[name].shape != shape:
                raise ValueError(f"interval_{name} has the shape {parts[name].shape}, not {shape}")
        scale = Scale(parts["middle"], parts["coefficients"], parts["centre"])
        return cls(scale, parts["levels"], parts["own"], parts["pooled"])


def scores_of(features: Array, residuals: Array, scale: Scale) -> tuple[Array, Array]:
    """Return the scores of held-out rows relative to their level, and the level: their 80 % quantile.

    Parameters
    ----------
    features : ndarray of shape (n_rows, n_features)
    residuals : ndarray of shape (n_rows, n_outputs)
    scale : Scale

    Returns
    -------
    scores : ndarray of shape (n_rows, n_outputs)
    levels : ndarray of shape (n_outputs,)
    """
    scores = np.abs(residuals) / scale(features)
    levels = np.maximum(np.quantile(scores, _LEVEL, axis=0), np.finfo(float).tiny)
    return scores / levels, levels
