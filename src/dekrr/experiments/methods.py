"""The methods that the tables compare."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..estimators import AllReduceRegressor, COKERegressor, DeKRRRegressor, DKLARegressor
from ..selection import CHOOSERS, Chooser
from ..settings import ALONE
from .problems import Problem
from .tasks import Task
from .tuning import choose_consensus, cross_validate

# The values of c that cross-validation chooses from. The values in the authors' grid are often too large.
CONSENSUS_GRIDS = {"paper": (0.5, 1.0, 2.0, 4.0, 8.0), "honest": (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)}


@dataclass(frozen=True)
class Method:
    """A method: how to make its estimator from a task and its problem.

    Parameters
    ----------
    about : str
        One line for the tables' notes.
    estimator : type
    settings : mapping
        Keywords of the estimator, in addition to those from the task and the problem.
    has_consensus : bool
        Whether the method has a weight c to choose.
    tunes_itself : bool
        Whether the method itself chooses sigma, alpha and c in the network, from training rows.
    """

    about: str
    estimator: Callable[..., Any]
    settings: Mapping[str, Any]
    has_consensus: bool = False
    tunes_itself: bool = False


METHODS: Mapping[str, Method] = {
    "DKLA": Method(
        "shared plain features, consensus on coefficients by ADMM, 1500 rounds",
        DKLARegressor,
        {"features": "plain", "tol": 0.0},
    ),
    "DKLA-DDRF": Method(
        "DKLA with the energy features of one site, another one in each repetition, sent to all",
        DKLARegressor,
        {"features": "energy", "tol": 0.0},
    ),
    "DeKRR-DDRF": Method(
        "the paper's: energy features of each site's own, consensus on predictions",
        DeKRRRegressor,
        {**ALONE, "features": "energy", "prediction": "own"},
        has_consensus=True,
    ),
    "ours": Method(
        "the agreed part alone: greedy features, all settings tuned without a centre, neighbourhood prediction",
        DeKRRRegressor,
        {**ALONE, "features": "greedy", "prediction": "neighborhood"},
        has_consensus=True,
        tunes_itself=True,
    ),
    "COKE": Method(
        "DKLA that leaves out messages that change little", COKERegressor, {"features": "plain", "tol": 0.0}
    ),
    "AllReduce": Method("shared plain features, exact sums over a tree", AllReduceRegressor, {"features": "plain"}),
}
PAPER_METHODS = ("DKLA", "DKLA-DDRF", "DeKRR-DDRF")
TABLE_METHODS = (*PAPER_METHODS, "ours")


def features_per_site(task: Task, problem: Problem) -> list[int]:
    """Return the number of features of each site: equal, or in proportion to the square root of its number of rows."""
    counts = np.bincount(problem.split.sites)
    if task.allocation != "sqrt":
        return [task.n_features] * len(counts)
    roots = np.sqrt(counts)
    sizes = np.round(task.n_features * len(counts) * roots / roots.sum())
    return [max(1, int(size)) for size in sizes]


def selectors_of(task: Task, problem: Problem) -> list[Chooser]:
    """Return each site's selector."""
    name = METHODS[task.method].settings["features"]
    return [CHOOSERS[name](size, sigma=problem.sigma) for size in features_per_site(task, problem)]


def tuned_consensus(task: Task, problem: Problem) -> float | None:
    """Return c from 5-fold cross-validation on the training rows; None if the method has no c or tunes itself."""
    method = METHODS[task.method]
    if not method.has_consensus or method.tunes_itself:
        return None
    errors = cross_validate(
        problem.split,
        selectors_of(task, problem),
        CONSENSUS_GRIDS[task.protocol],
        alpha=problem.alpha,
        prediction=method.settings.get("prediction", "own"),
        shuffle=task.protocol == "honest",
        random_state=task.run_seed,
    )
    return choose_consensus(errors)


def make_estimator(task: Task, problem: Problem, consensus: float | None) -> Any:
    """Return the estimator of a task, ready to fit the problem's training rows."""
    method = METHODS[task.method]
    keywords: dict[str, Any] = {
        **method.settings,
        "n_features": task.n_features,
        "n_neighbors": task.n_neighbors,
        "scale": None,
        "min_rows": 1,
        "random_state": task.run_seed,
    }
    if method.estimator is not AllReduceRegressor:
        keywords["max_rounds"] = task.max_rounds
    if not method.tunes_itself or consensus is not None:
        keywords |= {"sigma": problem.sigma, "alpha": problem.alpha}
    if consensus is not None:
        keywords["consensus"] = consensus
    if method.has_consensus:
        keywords["allocation"] = task.allocation
    if task.solver:
        keywords["solver"] = task.solver
    if task.method == "DKLA-DDRF" and task.partition != "imbalanced":
        keywords["selecting_site"] = task.repetition % problem.split.n_sites
    return method.estimator(**keywords)
