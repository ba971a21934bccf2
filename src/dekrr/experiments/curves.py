"""Convergence curves: objective, error and bytes sent after every round.

The node procedures run as in the estimators. In addition they keep their paths of coefficients, and an observer counts
the bytes of every exchange.
"""

from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
from sklearn.utils import check_random_state

from ..estimators import AllReduceRegressor
from ..metrics import rse
from ..model import neighborhood_weights
from ..networks.base import Delivery
from ..networks.local import LocalNetwork
from ..protocols import dekrr
from ..protocols.baselines import dkla
from ..protocols.outcome import Outcome
from ..protocols.site import Site
from ..rows import ArrayRows
from ..settings import DKLASettings
from ..types import Array
from .methods import METHODS, make_estimator, selectors_of
from .problems import Problem
from .tasks import Task
from .tuning import ring_neighbors

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


def _run(task: Task, problem: Problem, regressor: Any) -> tuple[Meter, list[Outcome]]:
    neighbors = ring_neighbors(problem.split)
    names = list(map(str, range(len(neighbors))))
    meter = Meter()
    graph = {names[j]: [names[p] for p in neighbors[j]] for j in range(len(names))}
    network = LocalNetwork(graph, observers=[meter])
    seed = int(check_random_state(regressor.random_state).randint(np.iinfo(np.int32).max))
    procedures = {}
    consensus_free = not METHODS[task.method].has_consensus
    for j, (name, selector) in enumerate(zip(names, selectors_of(task, problem), strict=True)):
        rows = problem.split.sites == j
        around = tuple(names[p] for p in neighbors[j])
        site = Site(name, around, ArrayRows(problem.split.X[rows], problem.split.y[rows]), seed=seed)
        common = {"alpha": problem.alpha, "tol": 0.0, "max_rounds": task.max_rounds, "scale": None, "min_rows": 1}
        if consensus_free:
            censoring = {
                key: getattr(regressor, key) for key in ("censor_start", "censor_decay") if task.method == "COKE"
            }
            chooser = None if regressor.selecting_site is None else names[regressor.selecting_site]
            guards = {"rows_per_feature": 0.0, "max_leverage": 1.0}
            settings = DKLASettings(**common, **censoring, **guards, selecting_site=chooser)  # type: ignore[arg-type]
            procedures[name] = dkla.train(site, selector, settings, keep_path=True)
        else:
            own = msgspec.structs.replace(regressor._settings(regressor.alpha, regressor.consensus), tol=0.0)
            procedures[name] = dekrr.train(site, selector, own, keep_path=True)
    outcomes = network.run(procedures)
    return meter, [outcomes[name] for name in names]


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
