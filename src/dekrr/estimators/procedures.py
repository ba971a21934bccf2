"""The procedures that the estimators run, each bound to its settings: the only place that calls them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ..networks.local import LocalNetwork
from ..protocols import dekrr
from ..protocols.baselines import allreduce, dkla
from ..protocols.online import go_on
from ..protocols.outcome import Outcome
from ..protocols.preparation import preparation_of
from ..protocols.roll_call import RollCall
from ..protocols.site import Procedure, Site
from ..protocols.training import SecondTraining, train
from ..protocols.tuning import Tuning
from ..rows import Rows
from ..scaling import AnyScaling
from ..selection import Chooser
from ..settings import AllReduceSettings, DeKRRSettings, DKLASettings, GuardSettings

Training = Callable[[Site, Chooser], Procedure[Outcome]]
"""What a site does, given how it chooses its features."""


def train_dekrr(settings: DeKRRSettings, tuning: Tuning | None = None, *, keep_path: bool = False) -> Training:
    """Return the training of DeKRR; `keep_path` keeps the coefficients of every round in the outcome."""
    return partial(dekrr.train, settings=settings, tuning=tuning, keep_path=keep_path)


def train_parts(
    settings: DeKRRSettings,
    tuning: Tuning | None,
    second: SecondTraining | None = None,
    *,
    prediction: str,
    objective: str,
    keep_sums: bool,
) -> Training:
    """Return the training of DeKRR with all parts that the settings ask for, and a second one where there is to be."""
    return partial(
        train,
        settings=settings,
        tuning=tuning,
        second=second,
        prediction=prediction,
        objective=objective,
        keep_sums=keep_sums,
    )


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
