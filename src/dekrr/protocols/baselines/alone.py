"""A site without neighbours, which chooses bandwidth and alpha by folds of its own rows. Nothing is sent."""

import msgspec
import numpy as np

from ...selection import Chooser
from ...settings import AllReduceSettings, DeKRRSettings
from ..cross_validation import tune
from ..dekrr import begin, plan
from ..feature_choice import sized
from ..run import Outcome, Tuned, Tuning
from ..site import Procedure, Site
from . import allreduce


def train(
    site: Site, chooser: Chooser, settings: AllReduceSettings, of_folds: DeKRRSettings, tuning: Tuning
) -> Procedure[Outcome]:
    """Train one site's model as AllReduce does, with the values of the least error on held-out rows.

    `of_folds` are the same settings for the models of the folds: DeKRR of a lone site is the same ridge regression.
    """
    in_order = site.in_order()
    if len(np.unique(in_order.fold_of(tuning.folds))) > 1:
        tuned = _at_once(_tune(in_order, chooser, of_folds, tuning))
    else:  # outside the fold that has all rows there is nothing to learn from: as smooth as can be
        tuned = Tuned(max(tuning.sigmas), max(tuning.alphas), 1.0, 1.0, grid=[], errors=np.zeros(0))
    chosen = msgspec.structs.replace(settings, alpha=tuned.alpha)
    outcome = yield from allreduce.train(site, chooser.replace(sigma=tuned.sigma), chosen)
    outcome.tuned = tuned
    return outcome


def _tune(site: Site, chooser: Chooser, settings: DeKRRSettings, tuning: Tuning) -> Procedure[Tuned]:
    run = plan(chooser, settings, tuning)
    start = yield from begin(site, run)
    return (yield from tune(start, (yield from sized(start, run)), tuning))


def _at_once(procedure: Procedure[Tuned]) -> Tuned:
    """Return what comes of a procedure that hears from nobody: not all sites tune, and a network keeps them in step."""
    try:
        next(procedure)
        while True:
            procedure.send({})
    except StopIteration as stop:
        found: Tuned = stop.value
        return found
