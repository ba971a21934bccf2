"""Convergence curves: objective, error and bytes sent after every round.

The node procedures run as in the estimators. In addition they keep their paths of coefficients, and an observer counts
the bytes of every exchange.
"""

from collections.abc import Hashable
from functools import partial
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np

from ..estimators import AllReduceRegressor, DeKRRRegressor, DKLARegressor
from ..estimators.network import run, seed_of, sites_of
from ..estimators.procedures import train_dekrr, train_dkla
from ..metrics import rse
from ..networks.base import Delivery
from ..networks.local import LocalNetwork
from ..protocols.outcome import Outcome, neighborhood_weights
from ..rows import Rows
from ..selection import Chooser
from ..types import Array
from .methods import METHODS, make_estimator, selectors_of
from .problems import Problem
from .tasks import Task
from .tuning import ring_neighbors, rows_by_site

_DENSE, _SPARSE = 150, 60


class Meter:
    """An observer of a local network that adds up bytes, exchange by exchange."""

    def __init__(self) -> None:
        self._bytes: list[int] = []

    def __call__(self, delivery: Delivery) -> None:
        """Count a message."""
        self._bytes += [0] * (delivery.exchange + 1 - len(self._bytes))
        self._bytes[delivery.exchange] += delivery.n_bytes

    @property
    def bytes_after(self) -> list[int]:
        """The bytes sent so far after every exchange."""
        return list(accumulate(self._bytes))


def recorded_rounds(n_rounds: int) -> np.ndarray:
    """Return the rounds to record: all of the first rounds, then fewer and fewer, and the last round.

    Examples
    --------
    >>> rounds = recorded_rounds(1500)
    >>> rounds[:3].tolist(), rounds[-1], len(rounds)
    ([0, 1, 2], np.int64(1500), 211)
    """
    dense = np.arange(min(n_rounds, _DENSE) + 1)
    sparse = np.round(np.geomspace(_DENSE, max(n_rounds, _DENSE), _SPARSE + 1)).astype(int)
    return np.unique(np.concatenate([dense, sparse[sparse <= n_rounds], [n_rounds]]))


def curves_of(task: Task, problem: Problem, consensus: float | None) -> dict[str, Any]:
    """Return the columns of a fit's curves, at `recorded_rounds`.

    Parameters
    ----------
    task : Task
        Its method has rounds; for AllReduce, which has none, the result is empty.
    problem : Problem
    consensus : float or None
        The weight c, for methods that have one.
    """
    regressor = make_estimator(task, problem, consensus)
    if isinstance(regressor, AllReduceRegressor):
        return {}
    split = problem.split
    meter, outcomes = _run(task, problem, regressor)
    rounds = outcomes[0].rounds
    shown = recorded_rounds(rounds)
    objective = np.sum([outcome.objective_shares for outcome in outcomes], axis=0)
    own_error, union_error = [], []
    features = [outcome.feature_map(split.X_test) for outcome in outcomes]
    groups = _members(task, problem)
    rows = np.arange(len(split.y_test))
    for k in shown:
        by_site = np.array([z @ outcome.path[k] for z, outcome in zip(features, outcomes, strict=True)])
        predictions = np.array([neighborhood_weights(len(group) - 1) @ by_site[group] for group in groups])
        own_error.append(rse(split.y_test, predictions[split.test_sites, rows]))
        union_error.append(float(np.mean([rse(split.y_test, prediction) for prediction in predictions])))
    bytes_after = meter.bytes_after
    setup = len(bytes_after) - rounds
    return {
        "curve_round": shown.tolist(),
        "curve_bytes": [bytes_after[setup + k - 1] for k in shown.tolist()],
        "curve_objective": objective[shown].tolist(),
        "curve_own_rse": own_error,
        "curve_union_rse": union_error,
        "best_objective": _best(task, problem, consensus),
    }


def _run(task: Task, problem: Problem, regressor: DeKRRRegressor | DKLARegressor) -> tuple[Meter, list[Outcome]]:
    meter = Meter()
    rows: dict[Hashable, Rows] = dict(enumerate(rows_by_site(problem.split)))
    sites = sites_of(rows, dict(enumerate(ring_neighbors(problem.split))), seed=seed_of(regressor.random_state))
    selectors: dict[Hashable, Chooser] = dict(enumerate(selectors_of(task, problem)))
    if isinstance(regressor, DeKRRRegressor):
        training = train_dekrr(regressor.run_settings(tol=0.0), keep_path=True)
    else:
        settings = msgspec.structs.replace(regressor.run_settings(list(sites)), tol=0.0)
        training = train_dkla(settings, keep_path=True)
    connect = partial(LocalNetwork, observers=[meter])
    done = run(sites, lambda j, site: training(site, selectors[j]), connect)
    return meter, list(done.outcomes.values())


def _members(task: Task, problem: Problem) -> list[list[int]]:
    """Return the sites whose models each site predicts with, its own first."""
    neighbors = ring_neighbors(problem.split)
    wide = METHODS[task.method].settings.get("prediction") == "neighborhood"
    return [[j, *around] if wide else [j] for j, around in enumerate(neighbors)]


def _best(task: Task, problem: Problem, consensus: float | None) -> float:
    """Return the minimum of the objective: exact for shared features, otherwise to a relative residual of 1e-12."""
    split = problem.split
    best: Any = make_estimator(task, problem, consensus)
    if consensus is None:
        shared = set(AllReduceRegressor().get_params()) & set(best.get_params())
        best = AllReduceRegressor(**{name: getattr(best, name) for name in sorted(shared)})
    else:
        best.set_params(solver="chebyshev", tol=1e-12, max_rounds=10000)
    objective: Array = best.fit(split.X, split.y, sites=split.sites).objective_
    return float(objective)
