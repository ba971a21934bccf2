"""What sites keep for intervals (`dekrr.intervals`) and probabilities of classes (`dekrr.classes`).

Any training will do. It is run a second time on four fifths of every site's rows, with the settings that the first run
found. A shared part need not be fitted again: its error without a row follows from the row's leverage, about. The site
compares what this second model predicts with the rows that it held out. Sums and counts over the held-out rows of all
sites go over the spanning tree. A site with so few rows that it must not send sums over four fifths of them holds none
out, and has no intervals.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..classes import N_BINS as BINS_OF_CLASSES
from ..classes import NEWTON_STEPS, ClassCalibration, Platt
from ..classes import histogram as histogram_of_classes
from ..classes import scores as scores_of_classes
from ..intervals import N_BINS, Calibration, Scale, histogram, scores_of
from ..rows import ArrayRows
from ..settings import DeKRRSettings
from ..types import Array
from .leverages import left_by_shared
from .masking import Agreement, Masks
from .outcome import HeldOut, Outcome
from .roll_call import RollCall
from .site import Procedure, Site
from .spanning_tree import tree_sum

PARTS = 5  # one of them is held out
_FEWEST = 4  # held-out rows
Predict = Callable[[Outcome, Array], Array]
"""The whole prediction of an outcome, in the units of rows and responses."""


class Portion(NamedTuple):
    """Some of a site's rows.

    Parameters
    ----------
    rows : ArrayRows
    left : ArrayRows
        The same rows with what the second training has to predict: all of the response, or what the shared part would
        leave without the row.
    """

    rows: ArrayRows
    left: ArrayRows

    def take(self, chosen: Array) -> "Portion":
        """Return the rows of a mask."""
        return Portion(self.rows.take(chosen), self.left.take(chosen))


@dataclass(frozen=True, eq=False)
class Second:
    """What a site has after the second training.

    Parameters
    ----------
    site : Site
    first, second : Outcome
        Of the training with all rows, and of that without the held-out ones.
    kept, held_out : Portion
        The rows of the second training, and the others; of these there may be none.
    predict : callable
    masks : Masks or None
        For sums over the tree.
    """

    site: Site
    first: Outcome
    second: Outcome
    kept: Portion
    held_out: Portion
    predict: Predict
    masks: Masks | None

    def predicted(self, part: Portion) -> Array:
        """Return what is predicted without the held-out rows, in the units of the response."""
        return np.asarray(part.rows.y - part.left.y + self.fitted(part.rows.X))

    def fitted(self, X: Array) -> Array:
        """Return what the second training predicts of all that it had to fit, in the units of the response."""
        return self.predict(self.second, X)

    def disagreement(self, part: Portion) -> Array:
        """Return how far the first training's predictions are from those without the held-out rows."""
        return np.asarray(self.predict(self.first, part.rows.X) - self.predicted(part))

    @property
    def told(self) -> np.ndarray:
        """Which held-out rows may be in sums that leave the site: those that were in the sums of the training."""
        admits = self.first.admission
        n_rows = self.held_out.rows.n_rows
        return np.ones(n_rows, dtype=bool) if admits is None or not n_rows else admits(self.held_out.rows.X)

    def sum_over_sites(self, values: Array, largest: float) -> Procedure[Array]:
        """Return the sum of all sites' arrays; `largest` is a public bound on each entry."""
        total = yield from tree_sum(self.site, self.first.roster, values.ravel(), self.masks, largest=largest)
        return total.reshape(values.shape)


Keep = Callable[[Second], Procedure[None]]
"""Puts into the first outcome what is to be kept of the second training."""


def refusal_of_second(site: Site, n_own: int, n_other: int, settings: DeKRRSettings) -> str:
    """Return why a site would refuse the sums of a second training, or an empty text; nothing is sent for it.

    All rows that are withheld are taken off four fifths of the rows, so that it does not depend on which are held out.

    Parameters
    ----------
    site : Site
        With all its rows.
    n_own, n_other : int
        The features of the site and of a neighbour.
    settings : DeKRRSettings
        Of the first training.
    """
    if not site.neighbors or settings.privacy is not None or not settings.rows_per_feature:
        return ""
    rows = site.rows.sample
    admitted = replace(site, rows=rows).withholding(settings.max_leverage).rows
    n_rows, n_alone = rows.n_rows, rows.n_rows - admitted.n_rows
    n_held_out = -(-n_rows // PARTS)
    n_left = math.floor(admitted.n_effective * (1 - n_held_out / max(admitted.n_rows, 1)))
    times = settings.rows_per_feature * (PARTS - 1)
    needed = math.ceil(times * (n_own + n_other))
    if n_held_out < _FEWEST or n_left < settings.min_rows or n_left >= needed:
        return ""
    alone = f", and {n_alone} stand alone" if n_alone else ""
    weights = ", by their weights," if rows.weighted else ""
    return (
        f"has {n_rows} rows. The second training, for intervals or classes, leaves {n_held_out} of them out{alone}. "
        f"The other {n_left} are{weights} too few for sums of its {n_own} features and the {n_other} of a neighbour, "
        f"which need {needed}: {times:g} rows per feature, {PARTS - 1} times rows_per_feature="
        f"{settings.rows_per_feature:g}, because the sums of both trainings differ by the rows that are left out. "
        f"n_features={int(n_left / (2 * times))} would do"
    )


def calibrate(
    site: Site,
    outcome: Outcome,
    again: Callable[[Site], Procedure[Outcome]],
    predict: Predict,
    keep: Keep,
    *,
    min_rows: int,
    fits_shared: bool = True,
    probed: bool = False,
    masked: bool = False,
    lone_neighbor: str = "warn",
) -> Procedure[Outcome]:
    """Train a second time without a fifth of the rows, and keep in the outcome what that tells.

    Parameters
    ----------
    site : Site
        With all its rows; a sample stands for them where they are many.
    outcome : Outcome
        Of the training with all rows.
    again : callable
        Makes the training of a site with other rows, with the settings that were found.
    predict : callable
    keep : callable
        `keep_intervals` or `keep_classes`.
    min_rows : int
    fits_shared : bool, default=True
        Whether the second training fits a shared part anew. Otherwise `again` is given what the first one leaves.
    probed : bool, default=False
        Whether the sites find the sums of their leverages over the tree, where the shared part is not fitted anew.
    masked : bool, default=False
        Whether sums over the tree are masked.
    lone_neighbor : {"warn", "refuse"}
        As in `dekrr.protocols.masking.Agreement`.
    """
    rows = site.rows.sample
    held_out = site.rng("calibration").permutation(rows.n_rows) % PARTS == 0
    if held_out.sum() < _FEWEST or (site.neighbors and rows.take(~held_out).n_effective < min_rows):
        held_out[:] = False
    given = left = rows
    if not fits_shared:
        given, left = yield from left_by_shared(site, outcome, rows, probed=probed)
    whole = Portion(rows, left)
    kept = whole.take(~held_out)
    identity = site.identity.within("a second training")
    second = yield from again(
        replace(site, rows=ArrayRows(*given.take(~held_out).arrays(), seed=rows.seed), identity=identity)
    )
    masks = None
    if masked:
        roll = RollCall(site)
        roll.found(outcome.roster)
        after = replace(site, identity=site.identity.within("calibration"))
        masks = yield from Agreement(after, roll, lone_neighbor=lone_neighbor, over_tree=True).masks()
    done = Second(site, outcome, second, kept, whole.take(held_out), predict, masks)
    yield from keep(done)
    outcome.held_out = HeldOut(done.held_out.rows, done.held_out.left, done.fitted)
    return outcome


def keep_intervals(done: Second) -> Procedure[None]:
    """Keep what intervals are made of: the scale of errors, and counts of scores.

    Intervals are around the predictions of the first training. Where these are further from those of the second than
    the response is, that distance counts as the error: a few rows can decide what the first training predicts, and the
    second one may not have had them.
    """
    first = done.first

    def residuals(part: Portion) -> tuple[Array, Array]:
        rows, predicted = part.rows, done.predicted(part)
        unit = first.scaling.undo(np.ones_like(predicted)) - first.scaling.undo(np.zeros_like(predicted))
        errors = np.abs(rows.y - predicted)  # of responses as they are, also where training cuts them off
        errors = np.maximum(errors, np.abs(done.disagreement(part))) / unit
        return first.feature_map(first.scaling.rows(rows.X)), errors.reshape(rows.n_rows, -1)

    counts = told = np.zeros((N_BINS, int(np.prod(first.coefficients.shape[1:], dtype=int))))
    if done.held_out.rows.n_rows:
        scale = Scale.fit(*residuals(done.kept), done.kept.rows.weight)
        scores, levels = scores_of(*residuals(done.held_out), scale)
        weight, is_told = done.held_out.rows.weight, done.told
        counts = histogram(scores, weight)
        if is_told.any():
            told = histogram(scores[is_told], None if weight is None else weight[is_told])
    total = yield from done.sum_over_sites(told, 2.0 * first.roster.n_rows)
    if done.held_out.rows.n_rows:
        first.calibration = Calibration(scale, levels, counts, np.maximum(total, 0.0))


def keep_classes(done: Second) -> Procedure[None]:
    """Keep how predictions of class codes become probabilities, alike at all sites, and counts for prediction sets."""
    found = scores_of_classes(done.predicted(done.held_out))
    own = scores_of_classes(done.held_out.rows.y)
    given = done.held_out.rows.weight
    weight, told = np.ones(len(own)) if given is None else given, done.told
    platt, n_classes = Platt.start(found.shape[1]), found.shape[1]
    size = 1 + n_classes
    for _ in range(NEWTON_STEPS):
        sums = platt.sums(found[told], own[told], weight[told]) if told.any() else np.zeros(size + size**2)
        largest = 2 * done.first.roster.n_counted * (1 + float(np.max(np.abs(found), initial=0.0)) ** 2)
        total = yield from done.sum_over_sites(sums, largest if done.masks is None else 2.0**40)
        platt = platt.stepped(total)
    counts = counts_told = np.zeros(BINS_OF_CLASSES)
    if len(own):
        counts = histogram_of_classes(platt.probabilities(found), own, weight)
    if told.any():
        counts_told = histogram_of_classes(platt.probabilities(found[told]), own[told], weight[told])
    pooled = yield from done.sum_over_sites(counts_told, 2.0 * done.first.roster.n_rows)
    done.first.classes = ClassCalibration(platt, counts, np.maximum(pooled, 0.0))
