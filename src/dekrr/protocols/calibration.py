"""What sites keep for intervals (`dekrr.intervals`) and probabilities of classes (`dekrr.classes`).

Any training will do. It is run a second time on four fifths of every site's rows, with the settings that the first run
found. A shared part need not be fitted again: its error without a row follows from the row's leverage, about. The site
compares what this second model predicts with the rows that it held out. Sums and counts over the held-out rows of all
sites go over the spanning tree. A site with so few rows that it must not send sums over four fifths of them holds none
out, and has no intervals.

Errors on held-out rows are those of what a second training without them predicts. Nothing is sent for them.
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
from ..intervals import N_BINS, Calibration, Scale, histogram
from ..metrics import rse
from ..parts.local import Home
from ..scaling import AS_IT_IS
from ..settings import DeKRRSettings
from ..tables.rows import ArrayRows, is_usual
from ..types import Array
from .masking import Agreement
from .roll_call import RollCall
from .run import HeldOut, Outcome
from .site import FOLDS, Kept, Procedure, Site
from .spanning_tree import Tree, single, tree_of


class Predicted(NamedTuple):
    """Responses of held-out rows, what a model predicts, and what each row counts for."""

    y: Array
    prediction: Array
    weight: Array

    @classmethod
    def own(cls, rows: HeldOut, prediction: Array | None = None) -> "Predicted":
        """Return what a site predicts for its own held-out rows: by its model, or by what it would do alone."""
        weight = np.ones(rows.rows.n_rows) if rows.rows.weight is None else rows.rows.weight
        return cls(rows.rows.y, rows.own if prediction is None else prediction, weight * rows.rows.expansion)

    def changed(self, change: Callable[[Array], Array]) -> "Predicted":
        """Return the same in other units of the response."""
        return self._replace(y=change(self.y), prediction=change(self.prediction))

    @classmethod
    def joined(cls, parts: list["Predicted"]) -> "Predicted":
        """Return the rows of several."""
        return cls(*(np.concatenate(each) for each in zip(*parts, strict=True)))


class Unseen(NamedTuple):
    """Held-out rows, what is known of their responses before a model predicts the rest, and what each counts for."""

    X: Array
    y: Array
    beneath: Array
    weight: Array

    @classmethod
    def of(cls, held: HeldOut, most: int) -> "Unseen":
        """Return the held-out rows of a site, or `most` of them that stand for all."""
        n_rows, weight = held.rows.n_rows, held.rows.weight
        places = np.arange(n_rows) if most >= n_rows else np.linspace(0, n_rows - 1, most).astype(int)
        weights = np.ones(len(places)) if weight is None else weight[places]
        counted = weights * n_rows * held.rows.expansion / max(len(places), 1)
        return cls(held.rows.X[places], held.rows.y[places], held.beneath[places], counted)

    @classmethod
    def joined(cls, parts: list["Unseen"]) -> "Unseen":
        """Return the rows of several sites."""
        return cls(*(np.concatenate(each) for each in zip(*parts, strict=True)))

    def predicted(self, model: HeldOut) -> Predicted:
        """Return what a site's model predicts for the rows, as if they came from elsewhere."""
        return Predicted(self.y, self.beneath + model.fitted(self.X), self.weight)


Measure = Callable[[Predicted], float]


def measures_of(classes: ClassCalibration | None) -> dict[str, Measure]:
    """Return what is measured on held-out rows: RSE or, for classes, accuracy and log loss."""
    if classes is None:
        return {"RSE": lambda found: rse(found.y, found.prediction, found.weight)}
    platt = classes.platt
    return {
        "accuracy": lambda found: float(np.average(_right(found, platt), weights=found.weight)),
        "log loss": lambda found: float(np.average(_log_losses(found, platt), weights=found.weight)),
    }


def losses_of(classes: ClassCalibration | None) -> dict[str, Callable[[Predicted], Array]]:
    """Return for each measure what each row adds to it: the less, the better.

    A squared error is relative to the variance of the rows, which are those of one site.
    """
    if classes is None:
        return {"RSE": _relative_squares}
    platt = classes.platt
    return {"accuracy": lambda found: 1.0 - _right(found, platt), "log loss": lambda found: _log_losses(found, platt)}


def _relative_squares(found: Predicted) -> Array:
    y, prediction = (values.reshape(len(found.y), -1) for values in (found.y, found.prediction))
    spread = np.average((y - np.average(y, axis=0, weights=found.weight)) ** 2, axis=0, weights=found.weight)
    varies = spread > 0
    squares = (prediction[:, varies] - y[:, varies]) ** 2 / spread[varies]
    return np.asarray(squares.mean(axis=1)) if varies.any() else np.zeros(len(y))


def errors_at_site(outcome: Outcome, back: Callable[[Array], Array] = AS_IT_IS.back) -> dict[str, float]:
    """Return a site's errors on its own held-out rows, by what is measured; empty where it held none out."""
    held = outcome.held_out
    if held is None or not held.rows.n_rows:
        return {}
    found = Predicted.own(held).changed(back)
    return {name: measure(found) for name, measure in measures_of(outcome.classes).items()}


def _right(found: Predicted, platt: Platt) -> Array:
    """Return 1 for each row whose class is predicted, and 0 for the others."""
    probable = np.argmax(platt.logits(scores_of_classes(found.prediction)), axis=1)
    return np.asarray(np.argmax(scores_of_classes(found.y), axis=1) == probable, dtype=float)


def _log_losses(found: Predicted, platt: Platt) -> Array:
    probable = platt.probabilities(scores_of_classes(found.prediction))
    return np.asarray(-np.log(np.sum(probable * scores_of_classes(found.y), axis=1)))


_FEWEST = 4  # held-out rows
_LARGEST = 2.0**40  # a sum of errors, in units of the scaled response


class Portion(NamedTuple):
    """Some of a site's rows, and what is known of them before the second training, in the units of the response."""

    rows: ArrayRows
    # shape (n_rows,) or (n_rows, n_outputs): what the shared part, and at home the level, would predict without the
    # row, where the second training does not fit them anew; otherwise 0
    beneath: Array
    # shape (n_rows,) or (n_rows, n_outputs): what the first training would predict without the row, about; see `home`
    unseen: Array | None

    def take(self, chosen: Array) -> "Portion":
        """Return the rows of a mask."""
        unseen = None if self.unseen is None else self.unseen[chosen]
        return Portion(self.rows.take(chosen), self.beneath[chosen], unseen)


@dataclass(frozen=True, eq=False)
class Second:
    """What a site has after the second training."""

    site: Site
    # first, second: of the training with all rows, and of that without the held-out ones. The first alone has a home.
    first: Outcome
    second: Outcome
    is_held: np.ndarray  # shape (n_rows,): which rows the second training was without
    from_anywhere: Portion  # all rows, as if they came from anywhere
    kept: Portion  # kept, held_out: the rows of the second training, and the others; of these there may be none
    held_out: Portion
    prediction: str
    tree: Tree  # that sums go over
    # what the site adds for its own rows, from the first training without the held-out rows; None for predictions
    # elsewhere, and where it adds nothing
    home: Home | None

    def fitted(self, X: Array) -> Array:
        """Return what the second training predicts of all that it had to fit, in the units of the response."""
        scaling, shared = self.second.scaling, self.second.shared
        found = self.second.others(scaling.rows(X), self.prediction, self.home)
        if self.home is not None and shared is not None:  # otherwise the level is beneath
            found = found + shared.level
        return np.asarray(scaling.undo(found))

    def predicted(self, part: Portion) -> Array:
        """Return what is predicted without the held-out rows, in the units of the response."""
        found = part.beneath + self.fitted(part.rows.X)
        if self.home is None or self.home.local is None:
            return np.asarray(found)
        scaling = self.first.scaling
        scaled = (found - scaling.undo(np.zeros_like(found))) / self.first.unit(found)
        return np.asarray(scaling.undo(self.home.local(scaling.rows(part.rows.X), scaled)))

    def disagreement(self, part: Portion) -> Array:
        """Return how far the first training's predictions are from those without the held-out rows."""
        rows = self.first.scaling.rows(part.rows.X)
        found = self.first.predicted(rows, self.prediction, elsewhere=self.home is None)
        return np.asarray(self.first.scaling.undo(found) - self.predicted(part))

    def elsewhere(self) -> "Second":
        """Return the same of what may leave the site: no level, no local part, and the rows alone that were in sums."""
        kept, held_out = (self._admitted(self.from_anywhere.take(rows)) for rows in (~self.is_held, self.is_held))
        if held_out.rows.n_rows < _FEWEST or not kept.rows.n_rows:
            held_out = held_out.take(np.zeros(held_out.rows.n_rows, dtype=bool))
        return replace(self, kept=kept, held_out=held_out, home=None)

    def _admitted(self, part: Portion) -> Portion:
        admits = self.first.admission
        return part if admits is None or not part.rows.n_rows else part.take(admits(part.rows.X))


Keep = Callable[[Second], Procedure[None]]
"""Puts into the first outcome what is to be kept of the second training."""


def refusal_of_second(site: Site, n_own: int, n_other: int, settings: DeKRRSettings) -> str:
    """Return why a site would refuse the sums of a second training, or an empty text; nothing is sent for it.

    All rows that are withheld are taken off four fifths of the rows, so that it does not depend on which are held out.
    The site has `n_own` features and a neighbour `n_other`; settings are those of the first training.
    """
    if not site.neighbors or settings.privacy is not None or not settings.rows_per_feature:
        return ""
    rows = site.rows.sample
    admitted = replace(site, rows=rows).withholding(settings.max_leverage).rows
    n_rows, n_alone = rows.n_rows, rows.n_rows - admitted.n_rows
    n_held_out = -(-n_rows // FOLDS)
    n_left = math.floor(admitted.n_effective * (1 - n_held_out / max(admitted.n_rows, 1)))
    times = settings.rows_per_feature * (FOLDS - 1)
    needed = math.ceil(times * (n_own + n_other))
    if n_held_out < _FEWEST or n_left < settings.min_rows or n_left >= needed:
        return ""
    alone = f", and {n_alone} stand alone" if n_alone else ""
    weights = ", by their weights," if rows.weighted else ""
    return (
        f"has {n_rows} rows. The second training, for intervals or classes, leaves {n_held_out} of them out{alone}. "
        f"The other {n_left} are{weights} too few for sums of its {n_own} features and the {n_other} of a neighbour, "
        f"which need {needed}: {times:g} rows per feature, {FOLDS - 1} times rows_per_feature="
        f"{settings.rows_per_feature:g}, because the sums of both trainings differ by the rows that are left out. "
        f"n_features={int(n_left / (2 * times))} would do"
    )


def calibrate(
    site: Site,
    outcome: Outcome,
    again: Callable[[Site], Procedure[Outcome]],
    keep: Keep,
    settings: DeKRRSettings,
    *,
    prediction: str,
    fits_shared: bool,
) -> Procedure[None]:
    """Train a second time without a fifth of the rows, and `keep` in the outcome what that tells.

    The site has all its rows, or a sample that stands for many; `outcome` is of the training with all rows, and `again`
    makes that of a site with other rows. With `fits_shared` this fits a shared part anew; otherwise it is given what
    the first one leaves.
    """
    rows = site.rows.sample
    fold = _held_out(site, outcome, rows, settings)
    held_out = site.fold_of(FOLDS) == fold
    given = rows if fits_shared or outcome.out_of_fold is None else outcome.out_of_fold.left.rows
    identity = site.identity.within("a second training")
    kept = given.take(~held_out)
    second = yield from again(
        replace(
            site,
            rows=ArrayRows(*kept.arrays(), seed=kept.seed, hashes=kept.hashes),  # of a sample, for themselves
            identity=identity,
            kept=Kept(site.kept.epoch),  # a loss ends the second training, and leaves the outcome of the first
            admission=outcome.admission,  # a row that is in no sum of the first training is in none of the second
        )
    )
    site.enter("held-out rows")
    roll, after = RollCall(site), replace(site, identity=site.identity.within("calibration"))
    roll.found(outcome.roster)
    agreement = Agreement(after, roll, lone_neighbor=settings.lone_neighbor, over_tree=True)
    tree = yield from tree_of(roll, agreement if settings.masks else None)
    home = outcome.home
    if home is not None:
        home = replace(home, local=outcome.out_of_fold.local_without(fold))
    at_home, from_anywhere = _known_of(rows, outcome, fits_shared=fits_shared)
    own = from_anywhere if home is None else at_home
    kept, left_out = own.take(~held_out), own.take(held_out)
    done = Second(site, outcome, second, held_out, from_anywhere, kept, left_out, prediction, tree, home)
    yield from keep(done)
    outcome.held_out = _held_out_of(done)


def _held_out(site: Site, first: Outcome, rows: ArrayRows, settings: DeKRRSettings) -> int:
    """Return the fold that is held out: the last one that has enough rows and leaves enough others; -1 for none.

    Tuning holds out the same folds. That is fine: the second training takes its numbers over, and they were chosen by
    the errors on all folds. The ridge of the shared part was chosen by the first two folds, so the last is tried first.
    A guard counts the held-out rows too: sums of both trainings differ by them.
    """
    fold_of = site.fold_of(FOLDS)
    in_sums = np.ones(rows.n_rows, dtype=bool) if first.admission is None else first.admission(rows.X)
    for fold in reversed(range(FOLDS)):
        is_held = fold_of == fold
        held, others = rows.take(is_held), rows.take(~is_held)
        enough = held.n_rows >= _FEWEST and (not site.neighbors or others.n_effective >= settings.min_rows)
        if enough and settings.rows_per_feature and site.neighbors:
            told = rows.take(is_held & in_sums)  # what the sums of both trainings differ by
            enough = told.n_effective >= settings.min_rows and is_usual(held.n_rows, rows.n_rows, FOLDS)
        if enough:
            return fold
    return -1


def _known_of(rows: ArrayRows, outcome: Outcome, *, fits_shared: bool) -> tuple[Portion, Portion]:
    """Return all rows with what the first training knows of them: as the site's own, and as rows from anywhere."""
    found = outcome.out_of_fold
    nothing = np.zeros_like(rows.y)
    if found is None:
        return Portion(rows, nothing, None), Portion(rows, nothing, None)
    level = nothing if outcome.shared is None else nothing + outcome.shared.level * outcome.unit(rows.y)
    beneath = nothing if fits_shared or outcome.shared is None else rows.y - found.left.without_row().y
    own, other = (outcome.scaling.undo(one.reshape(rows.y.shape)) for one in (found.home, found.elsewhere))
    elsewhere = nothing if fits_shared or outcome.shared is None else beneath - level
    return Portion(rows, beneath, own), Portion(rows, elsewhere, other)


def _held_out_of(done: Second) -> HeldOut:
    """Return the held-out rows with what is predicted for them by the site's model, and by the site alone."""
    first, part, is_held = done.first, done.held_out, done.is_held
    alone: dict[str, Array] = {}
    best = ""
    if first.out_of_fold is not None:
        y = first.scaling.responses(done.site.rows.sample.y).reshape(len(is_held), -1)
        errors = {name: float(np.sum((one - y) ** 2)) for name, one in first.out_of_fold.alone.items()}
        best = min(errors, key=lambda name: errors[name])
        alone = {
            name: first.scaling.undo(one[is_held].reshape(part.rows.y.shape))
            for name, one in first.out_of_fold.alone.items()
        }
    own = done.predicted(part) if part.rows.n_rows else np.zeros_like(part.rows.y)
    beneath = done.from_anywhere.beneath[is_held]
    return HeldOut(part.rows, own, alone, best, beneath, replace(done, home=None).fitted)


def keep_intervals(done: Second) -> Procedure[None]:
    """Keep what intervals are made of: the scale of errors, and counts of scores.

    Rows that are in no other sum have no part in those of all sites. The local part has seen them. So where the run
    withholds rows, at this site or at another, the sums are over scores of predictions elsewhere alone.
    """
    first, away = done.first, done.elsewhere()
    at_home, elsewhere = _Scored.of(done), _Scored.of(away)
    told = at_home if first.admission is None else elsewhere
    n_outputs = math.prod(first.coefficients.shape[1:])
    sums = np.zeros((2, n_outputs)) if elsewhere is None else elsewhere.sums()
    errors, count = yield from done.tree.sum(sums, _LARGEST, single)
    if not count.any():
        return
    unit = np.maximum(errors / count, np.finfo(float).tiny)  # the mean error, for sites that have none of their own
    flat = Scale.flat(unit, first.feature_map.n_features)
    none = np.zeros((N_BINS, n_outputs))
    counts = [none if one is None else one.counts(scale) for scale in (None, flat) for one in (told, elsewhere)]
    total = yield from done.tree.sum(np.array(counts), 2.0 * first.roster.n_rows, single)
    pooled = np.maximum(total, 0.0).reshape(2, 2, N_BINS, n_outputs)

    def calibration(one: _Scored | None, kind: int) -> Calibration:
        if one is None:
            return Calibration(flat, none, pooled[1, kind])
        return Calibration(one.scale, one.counts(), pooled[0, kind])

    first.calibration = replace(calibration(at_home, 0), elsewhere=calibration(elsewhere, 1))


@dataclass(frozen=True, eq=False)
class _Scored:
    """The errors of held-out rows, and the scale of errors that the other rows have."""

    scale: Scale
    features: Array  # shape (n_rows, n_features)
    errors: Array  # shape (n_rows, n_outputs): in units of the scaled response
    weight: Array | None  # shape (n_rows,)

    @classmethod
    def of(cls, done: Second) -> "_Scored | None":
        """Return them of the held-out rows of a site; None where there are none.

        Intervals are around the predictions of the first training. Where these are further from those of the second
        than the response is, that distance counts as the error: a few rows can decide what the first training predicts,
        and the second one may not have had them.
        """
        first, held_out = done.first, done.held_out.rows
        if not held_out.n_rows:
            return None

        def errors_of(part: Portion) -> tuple[Array, Array]:
            rows, unseen = part.rows, part.unseen
            if part is done.held_out or unseen is None:
                errors = np.abs(rows.y - done.predicted(part))  # responses as they are, also where training cuts them
                errors = np.maximum(errors, np.abs(done.disagreement(part)))
            else:
                errors = np.abs(rows.y - unseen)
            errors = errors / first.unit(errors)
            return first.feature_map(first.scaling.rows(rows.X)), errors.reshape(rows.n_rows, -1)

        scale = Scale.fit(*errors_of(done.kept), done.kept.rows.weight)
        return cls(scale, *errors_of(done.held_out), held_out.weight)

    def sums(self) -> Array:
        """Return the sum of the errors, and their number, shape (2, n_outputs)."""
        weight = np.ones(len(self.errors)) if self.weight is None else self.weight / self.weight.mean()
        return np.array([np.minimum(weight @ self.errors, _LARGEST), np.full(self.errors.shape[1], len(self.errors))])

    def counts(self, scale: Scale | None = None) -> Array:
        """Return how many scores are in each bin, of the site's own scale or another."""
        return histogram(self.errors / (scale or self.scale)(self.features), self.weight)


def keep_classes(done: Second) -> Procedure[None]:
    """Keep how predictions of class codes become probabilities, alike at all sites, and counts for prediction sets.

    Both are found twice in the same messages: for the whole prediction, and for that without the local part. Where rows
    are withheld, the local part has seen them, and the second stands for the first as well. A fifth of the rows says
    little of a slope where rows are few: so the others count in it too, by what the first training would predict for
    them without each. Prediction sets need rows that are exchangeable with new ones, and have the fifth.
    """
    elsewhere = done.elsewhere()
    told = (done if done.first.admission is None else elsewhere, elsewhere)
    seen = [_classes_of(one, *_with_kept(one)) for one in told]
    n_classes = scores_of_classes(done.held_out.rows.y).shape[1]
    platts = [Platt.start(n_classes) for _ in seen]
    size = 1 + n_classes
    for _ in range(NEWTON_STEPS):
        sums = [p.sums(*of) if len(of[0]) else np.zeros(size + size**2) for p, of in zip(platts, seen, strict=True)]
        total = yield from done.tree.sum(np.array(sums), 2.0**40, single)
        platts = [platt.stepped(one) for platt, one in zip(platts, total, strict=True)]
    counts = np.array(
        [_counts(platt, *_classes_of(one, one.held_out)) for platt, one in zip(platts, told, strict=True)]
    )
    total = yield from done.tree.sum(counts, 2.0 * done.first.roster.n_rows, single)
    pooled = np.maximum(total, 0.0)
    passed_on = ClassCalibration(platts[1], counts[1], pooled[1])
    done.first.classes = ClassCalibration(
        platts[0], _counts(platts[0], *_classes_of(done, done.held_out)), pooled[0], passed_on
    )


def _with_kept(done: Second) -> list[Portion]:
    """Return the held-out rows, and the others where it is known what would be predicted without each."""
    return [done.held_out, done.kept] if done.kept.rows.n_rows and done.kept.unseen is not None else [done.held_out]


def _classes_of(done: Second, *parts: Portion) -> tuple[Array, Array, Array]:
    """Return what is predicted of rows for each class, their codes, and their weights."""
    found, own, weights = [], [], []
    for part in parts:
        predicted = done.predicted(part) if part is done.held_out or part.unseen is None else part.unseen
        found.append(scores_of_classes(predicted))
        own.append(scores_of_classes(part.rows.y))
        weights.append(np.ones(part.rows.n_rows) if part.rows.weight is None else part.rows.weight)
    return np.concatenate(found), np.concatenate(own), np.concatenate(weights)


def _counts(platt: Platt, found: Array, own: Array, weight: Array) -> Array:
    return histogram_of_classes(platt.probabilities(found), own, weight) if len(own) else np.zeros(BINS_OF_CLASSES)
