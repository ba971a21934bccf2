"""Intervals that cover the response with a given chance: split conformal prediction with a local scale.

A site holds rows out, trains without them, and compares predictions with responses there. The residual of a held-out
row, divided by a scale that depends on the row, is its score. The interval of a new row is its prediction plus and
minus its scale times a quantile of the scores. If the new row is drawn as the held-out rows were, it is covered with
the wanted chance, whatever the model and whatever the scale. That is a statement about the model without the held-out
rows. The model that is kept has been trained with them, and its errors are a little smaller, unless a few of these rows
decide what it predicts. So where the two models are further apart than the response is, that distance is the residual.

The scale is a ridge regression of log |residual| on the site's features, from rows that were not held out. It makes
intervals wide where errors are large, and has no part in the guarantee.

A site keeps a histogram of its scores, in bins of 2 %. The level of its errors is in the scale, which has not seen the
held-out rows; so a score of one site is drawn as a new row's is, however few rows the scale is from, and histograms of
all sites add up. A site with few held-out rows borrows from that sum: the cover is then right in the mean over sites.
(A level found from the same few rows that are divided by it would hide its own error: at 9 rows a site, 90 % were 85.)
A site with no held-out row at all has the sum of errors in one unit for all sites.

References
----------
Lei, G'Sell, Rinaldo, Tibshirani and Wasserman, Distribution-free predictive inference for regression, Journal of the
American Statistical Association 113(523), 2018, sections 2.2 and 5.2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import eigh

from .errors import SettingsError
from .labels import listed
from .types import Array

_STEP = 1.02  # the width of a bin
_DECADES = 3.0  # of scores, below and above their level
N_BINS = int(np.ceil(2 * _DECADES * np.log(10) / np.log(_STEP))) + 1
EDGES = 10**-_DECADES * _STEP ** np.arange(N_BINS)  # the upper edge of each bin; the last one has all larger scores
ELSEWHERE = "elsewhere_"  # before the names of a file's arrays about the prediction that is passed on
BEYOND = 5  # held-out rows beyond the quantile, as expected, from which on a site's own scores stand alone
_RIDGES = 10.0 ** np.arange(-4, 5.1, 0.5)  # of Z'Z / n
_SMALLEST = 1e-3  # of the median residual: what smaller ones count as
_LEAST_SQUARE = 1e-100  # of features that differ between rows
_REACH = 3.0  # how far scales go from their median, as a factor


@dataclass(frozen=True, eq=False)
class Scale:
    """How large errors are expected to be at a row: exp(a + z(x)'b), within a factor of 3 of a middle."""

    middle: Array  # shape (n_outputs,): a
    coefficients: Array  # shape (n_features, n_outputs): b
    centre: Array  # shape (n_features,): features are taken relative to it

    @classmethod
    def fit(cls, features: Array, residuals: Array, weight: Array | None = None) -> "Scale":
        """Return the ridge regression of log |residual|; its ridge has the least error of leaving one row out.

        Features are of shape (n_rows, n_features), residuals of (n_rows, n_outputs), weights of (n_rows,).
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
        ridges = _RIDGES * max(float(values[-1]), _LEAST_SQUARE) * 1e-4
        shrinking = 1 / (np.maximum(values, 0.0) + ridges[:, None])  # of shape (n_ridges, n_features)
        free = np.maximum(1 - rotated**2 @ shrinking.T, 1e-3)
        best, flat_error = np.zeros((Z.shape[1], residuals.shape[1])), np.sum(target**2, axis=0)
        for output, (wanted, of_output) in enumerate(zip(target.T, moment.T, strict=True)):
            shrunk = shrinking * of_output
            errors = np.sum(((wanted[:, None] - rotated @ shrunk.T) / free) ** 2, axis=0)
            if errors.min() < flat_error[output]:
                best[:, output] = vectors @ shrunk[np.argmin(errors)]
        return cls(middle, best, centre)

    @classmethod
    def flat(cls, unit: Array, n_features: int) -> "Scale":
        """Return the scale that is the same at every row: `unit`, of shape (n_outputs,)."""
        return cls(np.log(unit), np.zeros((n_features, len(unit))), np.zeros(n_features))

    def __call__(self, features: Array) -> Array:
        """Return the scale of rows, shape (n_rows, n_outputs), from their features."""
        excess = (features - self.centre) @ self.coefficients
        reach = np.log(_REACH)
        return np.asarray(np.exp(self.middle + np.clip(excess, -reach, reach)))


def histogram(scores: Array, weight: Array | None = None) -> Array:
    """Return how many scores (n_rows, n_outputs) are in each bin, shape (n_bins, n_outputs).

    A score counts as the upper edge of its bin. The mean weight is taken as 1, so that the counts add up to the number
    of rows.
    """
    counts = np.empty((N_BINS, scores.shape[1]))
    share = None if weight is None else weight / weight.mean()
    for output, column in enumerate(scores.T):
        places = np.minimum(np.searchsorted(EDGES, column), N_BINS - 1)
        counts[:, output] = np.bincount(places, weights=share, minlength=N_BINS)
    return counts


def require_coverage(coverage: float) -> None:
    """Refuse a coverage that is not between 0 and 1."""
    if not 0 < coverage < 1:
        raise SettingsError(f"coverage is the share of rows to cover, a number between 0 and 1; got {coverage!r}")


def rows_for(coverage: float) -> int:
    """Return how many held-out rows intervals of a coverage take."""
    return int(np.ceil(coverage / (1 - coverage) - 1e-9))


def too_few_text(sites: Sequence[Any], coverage: float, instead: str) -> str:
    """Return the warning about sites with too few held-out rows for a coverage, and what they get `instead`."""
    who = f"site {listed(sites)} has" if len(sites) == 1 else f"sites {listed(sites)} have"
    return (
        f"{who} too few held-out rows for a coverage of {coverage:g}, which takes {rows_for(coverage)}: {instead}. Ask "
        "for a lower coverage, or train with more rows, of which a fifth is held out"
    )


def borrowed_text(sites: Sequence[Any]) -> str:
    """Return the warning about sites that held out no rows of their own."""
    who, theirs = (f"site {listed(sites)}", "its") if len(sites) == 1 else (f"sites {listed(sites)}", "their")
    return (
        f"{who} held no rows out, having too few, or joined later: {theirs} intervals rest on the errors of the other "
        "sites, and promise nothing where errors are larger there. To have intervals of its own, a site needs about 20 "
        "rows, and in a deployment those that its guards ask for"
    )


@dataclass(frozen=True, eq=False)
class Calibration:
    """What a site keeps for intervals: no row and no residual, but counts of scores."""

    scale: Scale
    # own, pooled: shape (n_bins, n_outputs): how many scores are in each bin: of this site, and of all sites. Without
    # own ones, the scale is the unit of all sites, and the counts are those of errors in this unit.
    own: Array
    pooled: Array
    # the same of the prediction that a site may pass on, without its local part, from rows that may be in sums alone
    elsewhere: "Calibration | None" = None

    @property
    def n_held_out(self) -> int:
        """The number of rows that the site held out."""
        return round(float(self.own[:, 0].sum()))

    def quantiles(self, coverage: float) -> Array:
        """Return the factor of the scale that covers with a chance of `coverage`, shape (n_outputs,).

        Of n own scores and N of all sites, the own ones have a weight w = n (1 - coverage) / 5, at most 1. That is as
        exact as m scores, 1 / m = w^2 / n + (1 - w^2) / N; and the new row is one more, so that the quantile is that of
        coverage (1 + 1 / m). Where this is above 1, only an infinite interval would do, and the factor is infinite.
        """
        require_coverage(coverage)
        own, pooled = self.own.sum(axis=0), self.pooled.sum(axis=0)
        weight = np.where(pooled > 0, np.minimum(own * (1 - coverage) / BEYOND, 1.0), 1.0)
        n_own, n_pooled = np.maximum(own, 1e-9), np.maximum(pooled, 1e-9)
        share = coverage * (1 + weight**2 / n_own + (1 - weight**2) / n_pooled)
        shares = np.cumsum(self.own * (weight / n_own) + self.pooled * ((1 - weight) / n_pooled), axis=0)
        places = (shares < share - 1e-9).sum(axis=0)
        return np.where(share > 1 + 1e-9, np.inf, EDGES[np.minimum(places, N_BINS - 1)])

    def reaches(self, coverage: float) -> bool:
        """Return whether there are enough held-out rows for intervals of this coverage."""
        return bool(np.isfinite(self.quantiles(coverage)).all())

    def radius(self, features: Array, coverage: float) -> Array:
        """Return half the width of the interval of each row, shape (n_rows, n_outputs), from the rows' features."""
        return np.asarray(self.scale(features) * self.quantiles(coverage))

    @property
    def tensors(self) -> dict[str, Array]:
        """The arrays that a model file stores."""
        elsewhere = {} if self.elsewhere is None else self.elsewhere.tensors
        return {f"{ELSEWHERE}{name}": tensor for name, tensor in elsewhere.items()} | {
            "interval_middle": self.scale.middle,
            "interval_coefficients": self.scale.coefficients,
            "interval_centre": self.scale.centre,
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
            "own": (N_BINS, n_outputs),
            "pooled": (N_BINS, n_outputs),
        }
        parts = {name: tensors[f"interval_{name}"] for name in shapes}
        for name, shape in shapes.items():
            if parts[name].shape != shape:
                raise ValueError(f"interval_{name} has the shape {parts[name].shape}, not {shape}")
        levels = tensors.get("interval_levels", np.ones(n_outputs))  # release 0.2 had counts relative to them
        scale = Scale(parts["middle"] + np.log(levels), parts["coefficients"], parts["centre"])
        other = of_elsewhere(tensors)
        elsewhere = cls.of(other, n_features, n_outputs) if "interval_own" in other else None
        return cls(scale, parts["own"], parts["pooled"], elsewhere)

    @property
    def to_pass_on(self) -> "Calibration | None":
        """What the model without its local part has; None in files of release 0.2, which do not know it."""
        return None if self.elsewhere is None else replace(self.elsewhere, elsewhere=self.elsewhere)


def of_elsewhere(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays of a file that are about the prediction elsewhere, under their plain names."""
    return {name.removeprefix(ELSEWHERE): tensor for name, tensor in tensors.items() if name.startswith(ELSEWHERE)}
