"""Probabilities and prediction sets of classes, from least squares on class codes.

A code is 1 for a row's own class and 0 for the others. What a regression of codes predicts for class k, f_k(x), is near
its probability and need not be one: it can be negative, or above 1. Probabilities are softmax(slope f(x) + offset),
with one slope for all classes and one offset for each. These have the least log loss on rows that were held out
(Platt's scaling for several classes). The log loss is convex, and Newton's method needs sums over rows only.

The prediction set of a row has the classes whose probability is at least 1 - q, where q is a quantile of 1 - p_own over
held-out rows: conformal, as in `dekrr.intervals`.

References
----------
Platt, Probabilistic outputs for support vector machines, Advances in Large Margin Classifiers, 1999.
Sadinle, Lei and Wasserman, Least ambiguous set-valued classifiers with bounded error levels, Journal of the American
Statistical Association 114(525), 2019.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from .errors import SettingsError
from .intervals import ELSEWHERE, of_elsewhere, require_coverage
from .types import Array

N_BINS = 256  # of 1 - p_own, from 0 to 1
_ENOUGH = 50  # held-out rows from which on a site's own scores stand alone
NEWTON_STEPS = 12
_RIDGE = 1.0  # of the slope's distance from its start and of the offsets, in rows
_START = 4.0  # the slope to start from
_LEAST, _MOST = 0.1, 30.0  # the least slope, and the largest slope and offset
LEAST_PROBABILITY = 1e-6  # the least probability that is told


def codes(places: np.ndarray, n_classes: int) -> Array:
    """Return the codes of rows by the place of their class: shape (n_rows,) of two, else (n_rows, n_classes)."""
    return np.asarray(places if n_classes == 2 else np.eye(n_classes)[places], dtype=np.float64)


def scores(prediction: Array) -> Array:
    """Return what a regression of codes predicts for each class, shape (n_rows, n_classes)."""
    return np.column_stack([1 - prediction, prediction]) if prediction.ndim == 1 else prediction


@dataclass(frozen=True, eq=False)
class Platt:
    """How predictions of codes become probabilities."""

    slope: float
    offsets: Array  # shape (n_classes,)

    @classmethod
    def start(cls, n_classes: int) -> "Platt":
        """Return where Newton's method starts."""
        return cls(_START, np.zeros(n_classes))

    def logits(self, found: Array) -> Array:
        """Return slope f + offset, shape (n_rows, n_classes)."""
        return np.asarray(self.slope * found + self.offsets)

    def probabilities(self, found: Array) -> Array:
        """Return the probability of each class, shape (n_rows, n_classes); rows add up to 1."""
        logits = self.logits(found)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares = np.maximum(shares / shares.sum(axis=1, keepdims=True), LEAST_PROBABILITY)
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def sums(self, found: Array, own: Array, weight: Array) -> Array:
        """Return the gradient and the Hessian of the log loss over rows, as one vector.

        `found` is what the regression predicts and `own` 1 for a row's own class, both of shape (n_rows, n_classes).
        """
        p = self.probabilities(found)
        mean = np.sum(p * found, axis=1)
        n_classes = found.shape[1]
        gradient = np.append(weight @ np.sum((p - own) * found, axis=1), weight @ (p - own))
        hessian = np.empty((n_classes + 1, n_classes + 1))
        hessian[0, 0] = weight @ (np.sum(p * found**2, axis=1) - mean**2)
        hessian[0, 1:] = hessian[1:, 0] = weight @ (p * (found - mean[:, None]))
        hessian[1:, 1:] = np.diag(weight @ p) - (p * weight[:, None]).T @ p
        return np.append(gradient, hessian.ravel())

    def stepped(self, total: Array) -> "Platt":
        """Return where a step of Newton's method leads, from the sums over all rows."""
        size = len(self.offsets) + 1
        gradient, hessian = total[:size], total[size:].reshape(size, size)
        here = np.append(self.slope - _START, self.offsets)
        hessian, gradient = hessian + _RIDGE * np.eye(size), gradient + _RIDGE * here
        step = np.linalg.solve(hessian, gradient)
        slope = float(np.clip(self.slope - step[0], _LEAST, _MOST))
        if slope != self.slope - step[0]:  # at a bound: the best offsets for that slope
            step[0] = self.slope - slope
            step[1:] = np.linalg.solve(hessian[1:, 1:], gradient[1:] - hessian[1:, 0] * step[0])
        step *= min(1.0, 5.0 / max(abs(step[0]), 1e-12), 1.0 / max(float(np.abs(step[1:]).max()), 1e-12))
        return Platt(self.slope - float(step[0]), np.clip(self.offsets - step[1:], -_MOST, _MOST))


def histogram(probabilities: Array, own: Array, weight: Array) -> Array:
    """Return how many rows have 1 - p_own in each bin, shape (n_bins,); weights have a mean of 1."""
    missing = 1 - np.sum(probabilities * own, axis=1)
    places = np.minimum((missing * N_BINS).astype(int), N_BINS - 1)
    return np.bincount(places, weights=weight / weight.mean(), minlength=N_BINS).astype(np.float64)


@dataclass(frozen=True, eq=False)
class ClassCalibration:
    """What a site keeps for probabilities and prediction sets."""

    platt: Platt  # the same at all sites
    # own, pooled: shape (n_bins,): how many held-out rows have 1 - p_own in each bin: of this site, and of all sites
    own: Array
    pooled: Array
    # the same of the prediction that a site may pass on; see `dekrr.intervals.Calibration`
    elsewhere: "ClassCalibration | None" = None

    @property
    def tensors(self) -> dict[str, Array]:
        """What a model file holds of it."""
        elsewhere = {} if self.elsewhere is None else self.elsewhere.tensors
        return {f"{ELSEWHERE}{name}": tensor for name, tensor in elsewhere.items()} | {
            "class_slope": np.array([self.platt.slope]),
            "class_offsets": self.platt.offsets,
            "class_own": self.own,
            "class_pooled": self.pooled,
        }

    @classmethod
    def of(cls, tensors: Mapping[str, Array], n_classes: int) -> "ClassCalibration":
        """Return what `tensors` stored; KeyError or ValueError where it is not that."""
        slope, offsets, own, pooled = (tensors[f"class_{name}"] for name in ("slope", "offsets", "own", "pooled"))
        if slope.shape != (1,) or offsets.shape != (n_classes,) or own.ndim != 1 or own.shape != pooled.shape:
            raise ValueError(f"class_offsets has the shape {offsets.shape} for {n_classes} classes")
        other = of_elsewhere(tensors)
        elsewhere = cls.of(other, n_classes) if "class_own" in other else None
        return cls(Platt(float(slope[0]), offsets), own, pooled, elsewhere)

    @property
    def to_pass_on(self) -> "ClassCalibration | None":
        """What the model without its local part has; None in files of release 0.2, which do not know it."""
        return None if self.elsewhere is None else replace(self.elsewhere, elsewhere=self.elsewhere)

    def least_probability(self, coverage: float) -> float:
        """Return the probability that a class must have to be in the prediction set.

        Where there are too few held-out rows for the coverage it is 0, and all classes are in the set.
        """
        require_coverage(coverage)
        own, pooled = float(self.own.sum()), float(self.pooled.sum())
        borrowed = min(max(_ENOUGH - own, 0.0), pooled)
        counts = self.own + self.pooled * (borrowed / max(pooled, 1.0))
        total = float(counts.sum())
        if not total:
            raise SettingsError(
                "there are no prediction sets in these models, because no rows were held out: a run with a privacy "
                "budget holds none out, nor does a site with too few rows"
            )
        rank = np.ceil((total + 1) * coverage - 1e-9)
        if rank > total:
            return 0.0
        place = int(np.sum(np.cumsum(counts) < rank - 1e-9))
        return 1 - (place + 1) / N_BINS
