"""The procedures that the estimators run, each bound to its settings: the only place that calls them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np

from ..model import members_of
from ..networks.local import LocalNetwork
from ..protocols import dekrr, parts
from ..protocols.baselines import allreduce, dkla
from ..protocols.calibration import PARTS, Keep, calibrate, keep_intervals
from ..protocols.online import go_on
from ..protocols.outcome import Outcome
from ..protocols.preparation import preparation_of
from ..protocols.roll_call import RollCall
from ..protocols.site import Procedure, Site
from ..protocols.tuning import Tuning
from ..rows import Rows
from ..scaling import AnyScaling
from ..selection import Chooser
from ..settings import AllReduceSettings, DeKRRSettings, DKLASettings, GuardSettings
from ..types import Array

Training = Callable[[Site, Chooser], Procedure[Outcome]]
"""What a site does, given how it chooses its features."""


def train_dekrr(settings: DeKRRSettings, tuning: Tuning | None = None, *, keep_path: bool = False) -> Training:
    """Return the training of DeKRR; `keep_path` keeps the coefficients of every round in the outcome."""
    return partial(dekrr.train, settings=settings, tuning=tuning, keep_path=keep_path)


def train_parts(
    settings: DeKRRSettings, tuning: Tuning | None, *, prediction: str, objective: str, keep_sums: bool
) -> Training:
    """Return the training of DeKRR with a shared and a local part, as far as the settings ask for them."""
    return partial(
        parts.train, settings=settings, tuning=tuning, prediction=prediction, objective=objective, keep_sums=keep_sums
    )


def with_second(
    training: Training,
    settings: DeKRRSettings,
    keep: Keep = keep_intervals,
    *,
    fits_shared: bool,
    prediction: str,
    objective: str,
) -> Training:
    """Return a training of DeKRR, and a second one without some rows, for intervals or probabilities of classes.

    Parameters
    ----------
    training : Training
    settings : DeKRRSettings
    prediction : {"own", "neighborhood"}
        How sites predict.
    keep : callable
        What to keep of the second training; see `dekrr.protocols.calibration`.
    fits_shared : bool
        Whether the second training fits the shared part anew, which most of a fit's bytes are for.
    objective : {"mean", "own", "union"}
        Whose rows matter.
    """

    def again(fixed: DeKRRSettings) -> Training:
        return train_parts(fixed, None, prediction=prediction, objective=objective, keep_sums=False)

    def predict(outcome: Outcome, X: Array) -> Array:
        return np.asarray(sum(member.weight * member.predict(X) for member in members_of(outcome, prediction)))

    def both(site: Site, chooser: Chooser) -> Procedure[Outcome]:
        outcome = yield from training(site, chooser)
        fixed, found = settings, chooser
        if outcome.tuned is not None:
            tuned = outcome.tuned
            fixed = msgspec.structs.replace(
                fixed, alpha=tuned.alpha, consensus=tuned.consensus, own_weight=tuned.own_weight
            )
            found = chooser.replace(sigma=tuned.sigma)
        elif outcome.sigma is not None:
            found = chooser.replace(sigma=outcome.sigma)
        if outcome.column_scales is not None:
            fixed = msgspec.structs.replace(fixed, column_scales=tuple(outcome.column_scales.tolist()))
        if not fits_shared:
            fixed = msgspec.structs.replace(fixed, shared=None)  # `calibrate` takes it off the responses
        # A fifth of the rows is what sums over all rows differ by from those over the others.
        fixed = msgspec.structs.replace(fixed, rows_per_feature=fixed.rows_per_feature * (PARTS - 1))
        return (
            yield from calibrate(
                site,
                outcome,
                lambda other: again(fixed)(other, found),
                predict,
                keep,
                min_rows=settings.min_rows,
                fits_shared=fits_shared,
                masked=settings.masks,
                lone_neighbor=settings.lone_neighbor,
            )
        )

    return both


def train_dkla(settings: DKLASettings, *, keep_path: bool = False) -> Training:
    """Return the training of DKLA or COKE; `keep_path` keeps the coefficients of every round in the outcome."""
    return partial(dkla.train, settings=settings, keep_path=keep_path)


def train_allreduce(settings: AllReduceSettings) -> Training:
    """Return the training of AllReduce."""
    return partial(allreduce.train, settings=settings)


def scaling_of(settings: GuardSettings, rows: Rows) -> AnyScaling:
    """Return the scaling that rows in one place have."""
    site = Site("all", (), rows)
    return LocalNetwork({"all": ()}).run({"all": preparation_of(settings).agree(site, RollCall(site))})["all"]


def update_dekrr(
    site: Site, before: Outcome | None, new: Rows, chooser: Chooser, settings: DeKRRSettings
) -> Procedure[Outcome]:
    """Return what a site of a trained network does to go on; `before` is None for a site that joins."""
    return go_on(site, before, new, chooser, settings)


def tuning_of(grids: Mapping[str, Sequence[float]], *, folds: int, objective: str, prediction: str) -> Tuning | None:
    """Return what DeKRR tunes first: None where there is one value of each to choose from."""
    if max(map(len, grids.values())) == 1:
        return None
    return Tuning(
        sigmas=tuple(grids["sigma"]),
        alphas=tuple(grids["alpha"]),
        consensuses=tuple(grids["consensus"]),
        folds=folds,
        objective=objective,
        prediction=prediction,
    )
