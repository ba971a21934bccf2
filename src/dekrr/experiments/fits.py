"""The fit of a task, which gives a row of the results."""

import os
import platform
import time
import warnings
from importlib.metadata import version
from typing import Any

import msgspec
import numpy as np
from threadpoolctl import threadpool_limits

from ..metrics import rse
from ..model import Member
from ..types import Array
from .curves import curves_of
from .methods import METHODS, make_estimator, tuned_consensus
from .problems import Problem, problem_of
from .tasks import Task

_DIGITS = 10


def versions() -> dict[str, str]:
    """Return the versions that a result may depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in ("dekrr", "numpy", "scipy")}}


def run(task: Task, directory: str | os.PathLike[str] | None = None) -> tuple[dict[str, Any], float]:
    """Return the row of a task, and the seconds of its fit, without tuning.

    The row depends only on the task, the data and the versions: the fit has one thread, the seeds are from the task,
    and figures are rounded to ten digits.
    """
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = problem_of(task, directory)
        consensus = tuned_consensus(task, problem)
        start = time.perf_counter()
        regressor = make_estimator(task, problem, consensus)
        regressor.fit(problem.split.X, problem.split.y, sites=problem.split.sites)
        seconds = time.perf_counter() - start
        if METHODS[task.method].tunes_itself:
            problem = problem._replace(sigma=regressor.sigma_, alpha=regressor.alpha_)
            consensus = regressor.consensus_
        row = {
            **msgspec.structs.asdict(task),
            "sigma": problem.sigma,
            "alpha": problem.alpha,
            "consensus": consensus,
            **_outcome(regressor, problem),
            "site_features": [regressor.models_[j].feature_map.n_features for j in range(problem.split.n_sites)],
            **_authors(task, problem),
            **(curves_of(task, problem, consensus) if task.experiment == "convergence" else {}),
            **versions(),
        }
    return _rounded(row), seconds


def _outcome(regressor: Any, problem: Problem) -> dict[str, Any]:
    split = problem.split
    n_sites = split.n_sites
    predictions = _all_predictions(regressor, split.X_test, n_sites)
    own = predictions[split.test_sites, np.arange(len(split.y_test))]
    at = [split.test_sites == j for j in range(n_sites)]
    edges = sorted({tuple(sorted(edge)) for edge in regressor.traffic_.bytes})
    sent = regressor.traffic_.bytes
    return {
        "n_train": len(split.y),
        "n_test": len(split.y_test),
        "own_rse": rse(split.y_test, own),
        "union_rse": float(np.mean([rse(split.y_test, prediction) for prediction in predictions])),
        "own_mse": float(np.mean((own - split.y_test) ** 2)),
        "union_mse": float(np.mean((predictions - split.y_test) ** 2)),
        "objective": regressor.objective_,
        "rounds": regressor.n_rounds_,
        "bytes": regressor.traffic_.total_bytes,
        "site_rows": np.bincount(split.sites, minlength=n_sites).tolist(),
        "site_rse": [rse(split.y_test[rows], own[rows]) for rows in at],
        "site_mse": [float(np.mean((own[rows] - split.y_test[rows]) ** 2)) for rows in at],
        "site_union_rse": [rse(split.y_test, prediction) for prediction in predictions],
        "edge_from": [a for a, _ in edges],
        "edge_to": [b for _, b in edges],
        "edge_bytes": [sent[a, b] + sent[b, a] for a, b in edges],
    }


def _all_predictions(regressor: Any, X: Array, n_sites: int) -> Array:
    """Return every site's prediction of every row, shape (n_sites, n_rows); a model of several sites runs once."""
    known: dict[tuple[bytes, bytes], Array] = {}

    def predict(member: Member) -> Array:
        key = member.feature_map.frequencies.tobytes(), member.coefficients.tobytes()
        if key not in known:
            known[key] = member.predict(X)
        return known[key]

    members = [regressor.models_[j].members for j in range(n_sites)]
    return np.array([np.sum([m.weight * predict(m) for m in group], axis=0) for group in members])


def _authors(task: Task, problem: Problem) -> dict[str, Any]:
    """Return the authors' mean and standard deviation at this D, or None where their file has none."""
    for n_features, mean, spread in problem.split.authors.get(task.method, []):
        if n_features == task.n_features:
            return {"authors_rse": mean, "authors_std": spread}
    return {"authors_rse": None, "authors_std": None}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    return value
