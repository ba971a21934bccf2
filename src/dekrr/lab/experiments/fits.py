"""The fit of a task, which gives a row of the results: its method, its problem, its choice of c, and its curves.

The problem of a task is scaled training and test rows, with the bandwidth and regularisation of its protocol. c is
chosen by cross-validation: the features are drawn once for each fold, and the system is solved for every c. For the
curves, the sites' procedures run as in the estimators; they also keep their paths of coefficients, and an observer
counts bytes.
"""

import itertools
import os
import platform
import time
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from typing import Any, NamedTuple

import msgspec
import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigh
from sklearn.model_selection import KFold
from threadpoolctl import threadpool_limits

from ... import topology
from ...estimators import AllReduceRegressor, COKERegressor, DeKRRRegressor, DKLARegressor
from ...estimators.network import run, seed_of, sites_of
from ...estimators.site_regressor import parameters_of
from ...features import FeatureMap
from ...kernels import Gaussian
from ...metrics import rse
from ...model import Member
from ...networks.base import Delivery
from ...networks.local import LocalNetwork
from ...protocols import dekrr
from ...protocols.baselines import dkla
from ...protocols.run import Outcome, neighborhood_weights
from ...scaling import Scaling
from ...selection import CHOOSERS, Chooser, Plain
from ...settings import ALONE
from ...statistics import Weights, accumulate, assemble, penalty
from ...tables.rows import ArrayRows, Rows
from ...types import Array
from ..data_sets.catalogue import PAPER
from ..data_sets.loading import load
from ..data_sets.partitions import halves, partition
from ..data_sets.splits import Split, authors_split

PROTOCOLS = ("honest", "paper")
SPLITS = ("own", "authors")


class FitTask(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One fit of one method on one split.

    The protocol "paper" scales by training and test rows, takes the authors' bandwidth and regularisation (chosen by
    the test error) and folds of consecutive rows, and keeps one split for all repetitions. "honest" scales and tunes on
    training rows only, with shuffled folds, and draws a new split for every repetition.
    """

    experiment: str  # that needs the fit
    data: str
    partition: str  # of rows over sites; see `dekrr.data.partition`
    protocol: str
    splits: str  # "own", drawn here, or "authors", from their files
    n_sites: int
    n_neighbors: int
    mix: float  # the share of every site's rows that is drawn at random
    n_rows: int  # of the data set that are used, drawn at random; 0 for all
    n_features: int  # of a site, the mean
    method: str
    solver: str  # "" for the method's default
    allocation: str
    max_rounds: int
    repetition: int
    seed: int

    @property
    def key(self) -> tuple[Any, ...]:
        """All fields that decide the outcome; the experiment that needs the fit does not."""
        return msgspec.structs.astuple(self)[1:]

    @property
    def run_seed(self) -> int:
        """The seed of the features; it differs between repetitions."""
        return self.seed + self.repetition

    @property
    def split_seed(self) -> int:
        """The seed of the division into sites and halves."""
        return self.seed if self.protocol == "paper" else self.run_seed


def authors_division(experiment: str, partition: str) -> str:
    """Return which of the authors' divisions an experiment's fits are on; see `splits.AUTHORS_FILES`."""
    return "per-site" if experiment == "per-site" else partition


# The values of c that cross-validation chooses from. The values in the authors' grid are often too large.
CONSENSUS_GRIDS = {"paper": (0.5, 1.0, 2.0, 4.0, 8.0), "honest": (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)}


@dataclass(frozen=True)
class Method:
    """A method: how to make its estimator from a task and its problem."""

    about: str
    estimator: Callable[..., Any]
    settings: Mapping[str, Any]  # keywords, in addition to those from the task and the problem
    has_consensus: bool = False  # whether it has a weight c to choose
    tunes_itself: bool = False  # whether it chooses sigma, alpha and c in the network, from training rows


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


class FitProblem(NamedTuple):
    split: Split
    sigma: float
    alpha: float


def selectors_of(task: FitTask, problem: FitProblem) -> list[Chooser]:
    """Return each site's selector, of equally many features, or in proportion to the square root of its rows."""
    roots = np.sqrt(np.bincount(problem.split.sites))
    if task.allocation != "sqrt":
        roots = np.ones(len(roots))
    sizes = np.round(task.n_features * len(roots) * roots / roots.sum())
    kind = CHOOSERS[METHODS[task.method].settings["features"]]
    return [kind(max(1, int(size)), sigma=problem.sigma) for size in sizes]


def tuned_consensus(task: FitTask, problem: FitProblem) -> float | None:
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


def make_estimator(task: FitTask, problem: FitProblem, consensus: float | None) -> Any:
    method = METHODS[task.method]
    keywords: dict[str, Any] = {
        **method.settings,
        "n_features": task.n_features,
        "n_neighbors": task.n_neighbors,
        "scale": None,
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


SIGMAS = tuple(2.0**i for i in range(-2, 3))
ALPHAS = tuple(10.0**i for i in range(-8, -1))
N_FOLDS = 5
_TUNING_FEATURES = 500


_authors = lru_cache(maxsize=4)(authors_split)
_load = lru_cache(maxsize=2)(load)


def problem_of(task: FitTask, directory: str | os.PathLike[str] | None = None) -> FitProblem:
    folder = os.fspath(directory) if directory is not None else None
    if task.splits == "authors":
        split = _authors(task.data, folder, authors_division(task.experiment, task.partition))
        return FitProblem(split, *split.kernel)
    rows = {"n_features": 0, "max_rounds": 0, "repetition": 0, "seed": task.split_seed}
    names = dict.fromkeys(("experiment", "method", "solver", "allocation"), "")
    return _drawn(msgspec.structs.replace(task, **names, **rows), folder)


@lru_cache(maxsize=4)
def _drawn(task: FitTask, directory: str | None) -> FitProblem:
    """Return the problem of all tasks that differ only in what does not matter for it."""
    X, y = _load(task.data, directory)
    if 0 < task.n_rows < len(y):
        rows = np.sort(np.random.default_rng(task.seed).permutation(len(y))[: task.n_rows])
        X, y = X[rows], y[rows]
    scaling, paper = Scaling.of(X, y), PAPER[task.data]
    inputs, responses = scaling.rows(X), scaling.responses(y)
    how = {"n_sites": task.n_sites, "mix": task.mix, "random_state": task.seed}
    sites = partition(task.partition, inputs, responses, **how)
    train = halves(sites, random_state=task.seed)
    is_honest = task.protocol == "honest"
    if is_honest:
        scaling = Scaling.of(X[train], y[train])
    X, y = scaling.rows(X), scaling.responses(y)
    parts = X[train], y[train], sites[train], X[~train], y[~train], sites[~train]
    kernel = choose_kernel(X[train], y[train], task.seed) if is_honest else (paper.sigma, paper.alpha)
    return FitProblem(Split(*parts, n_neighbors=task.n_neighbors), *kernel)


def choose_kernel(X: Array, y: Array, seed: int) -> tuple[float, float]:
    """Return sigma and alpha by 5-fold cross-validation of a centralised ridge on 500 plain features.

    The paper says that its bandwidth and regularisation come from cross-validation of centralised kernel ridge
    regression. This function does the same, on training rows only, over the paper's grids `SIGMAS` and `ALPHAS`.
    """
    folds = list(KFold(N_FOLDS, shuffle=True, random_state=seed).split(X))
    errors = np.zeros((len(SIGMAS), len(ALPHAS)))
    for i, sigma in enumerate(SIGMAS):
        rng = np.random.default_rng(seed)
        selector = Plain(_TUNING_FEATURES, kernel=Gaussian.name, sigma=sigma)
        features = selector.select(X, y, rng)(X)
        gram, moment = features.T @ features, features.T @ y
        for train, validation in folds:
            held_out, responses = features[validation], y[validation]
            values, vectors = eigh(gram - held_out.T @ held_out)
            projected = vectors.T @ (moment - held_out.T @ responses)
            rotated = held_out @ vectors
            for k, alpha in enumerate(ALPHAS):
                prediction = rotated @ (projected / (np.maximum(values, 0) + len(train) * alpha))
                errors[i, k] += np.sum((prediction - responses) ** 2)
    best = np.unravel_index(np.argmin(errors), errors.shape)
    return SIGMAS[best[0]], ALPHAS[best[1]]


def solve_network(
    rows: Sequence[ArrayRows],
    maps: Sequence[FeatureMap],
    neighbors: Sequence[Sequence[int]],
    alpha: float,
    weights: Sequence[float],
) -> list[list[Array]]:
    """Return, for each consensus weight c, all sites' coefficients at the minimum of the paper's objective (11)."""
    n_rows = sum(len(site.y) for site in rows)
    n_sites = len(rows)
    names = list(map(str, range(n_sites)))
    own, sent = {}, {}
    for j, name in enumerate(names):
        others = {names[p]: maps[p] for p in neighbors[j]}
        own[name], sent[name] = accumulate(rows[j], maps[j], others)
    ends = np.cumsum([feature_map.n_features for feature_map in maps])
    parts = [slice(end - m.n_features, end) for end, m in zip(ends, maps, strict=True)]
    solutions = []
    for c in weights:
        penalties = {name: penalty(c, n_rows, len(neighbors[j])) for j, name in enumerate(names)}
        matrix, right = np.zeros((ends[-1], ends[-1])), np.empty(ends[-1])
        for j, name in enumerate(names):
            received = {names[p]: sent[names[p]][name] for p in neighbors[j]}
            row = assemble(own[name], received, sent[name], Weights(n_rows, n_sites, alpha, penalties[name], penalties))
            matrix[parts[j], parts[j]] = row.hessian
            couplings, start = row.couplings, 0
            for p in neighbors[j]:
                size = maps[p].n_features
                matrix[parts[j], parts[p]] = -couplings[:, start : start + size]
                start += size
            right[parts[j]] = row.right_side
        theta = cho_solve(cho_factor(matrix, overwrite_a=True, check_finite=False), right, check_finite=False)
        solutions.append([theta[part] for part in parts])
    return solutions


def choose_features(
    rows: Sequence[ArrayRows], neighbors: Sequence[Sequence[int]], selectors: Sequence[Chooser], random_state: int
) -> list[FeatureMap]:
    sites = sites_of(dict(enumerate(rows)), dict(enumerate(neighbors)), seed=seed_of(random_state))
    return [
        selector.select(site.X, site.y, site.rng()) for selector, site in zip(selectors, sites.values(), strict=True)
    ]


def rows_by_site(split: Split) -> list[ArrayRows]:
    return [ArrayRows(split.X[split.sites == j], split.y[split.sites == j]) for j in range(split.n_sites)]


def ring_neighbors(split: Split) -> list[list[int]]:
    graph = topology.build("ring", range(split.n_sites), split.n_neighbors)
    return [list(graph[j]) for j in range(split.n_sites)]


def folds_of(n_rows: int, *, shuffle: bool, seed: int) -> list[np.ndarray]:
    """Return the rows of each of five folds: consecutive rows, as in the authors' code, or shuffled rows."""
    order = np.random.default_rng(seed).permutation(n_rows) if shuffle else np.arange(n_rows)
    return [np.sort(part) for part in np.array_split(order, N_FOLDS)]


def fold_seed(random_state: int, fold: int) -> int:
    return int(np.random.SeedSequence([random_state, fold]).generate_state(1)[0] >> 1)


def cross_validate(
    split: Split,
    selectors: Sequence[Chooser],
    weights: Sequence[float],
    *,
    alpha: float,
    prediction: str,
    shuffle: bool,
    random_state: int,
) -> Mapping[float, float]:
    """Return the mean squared error of each consensus weight c; each site predicts its own hold-out rows.

    Each fold draws a pool for each site's selector and chooses by its own training rows, so that the error is that of a
    whole fit, and not that of one draw of features. Rows are shuffled before they are divided into folds, or are not.
    """
    neighbors = ring_neighbors(split)
    sites = rows_by_site(split)
    folds = [folds_of(len(site.y), shuffle=shuffle, seed=random_state) for site in sites]
    errors = np.zeros(len(weights))
    for k in range(N_FOLDS):
        kept = [np.setdiff1d(np.arange(len(site.y)), fold[k]) for site, fold in zip(sites, folds, strict=True)]
        train = [ArrayRows(site.X[rows], site.y[rows]) for site, rows in zip(sites, kept, strict=True)]
        held_out = [ArrayRows(site.X[fold[k]], site.y[fold[k]]) for site, fold in zip(sites, folds, strict=True)]
        maps = choose_features(train, neighbors, selectors, fold_seed(random_state, k))
        solutions = solve_network(train, maps, neighbors, alpha, weights)
        for j, site in enumerate(held_out):
            members = [j, *neighbors[j]] if prediction == "neighborhood" else [j]
            features = {m: maps[m](site.X) for m in members}
            for i, theta in enumerate(solutions):
                shares = neighborhood_weights(len(members) - 1)
                predicted = np.sum([w * (features[m] @ theta[m]) for w, m in zip(shares, members, strict=True)], axis=0)
                errors[i] += np.sum((predicted - site.y) ** 2)
    means = errors / len(split.y)
    return dict(zip(weights, means.tolist(), strict=True))


def choose_consensus(errors: Mapping[float, float]) -> float:
    return min(errors, key=errors.__getitem__)


_DENSE, _SPARSE = 150, 60


def recorded_rounds(n_rounds: int) -> np.ndarray:
    """Return the rounds to record: all of the first rounds, then fewer and fewer, and the last round."""
    dense = np.arange(min(n_rounds, _DENSE) + 1)
    sparse = np.round(np.geomspace(_DENSE, max(n_rounds, _DENSE), _SPARSE + 1)).astype(int)
    return np.unique(np.concatenate([dense, sparse[sparse <= n_rounds], [n_rounds]]))


def curves_of(task: FitTask, problem: FitProblem, consensus: float | None) -> dict[str, Any]:
    """Return the columns of a fit's curves, at `recorded_rounds`; AllReduce, which has no rounds, has none."""
    regressor = make_estimator(task, problem, consensus)
    if isinstance(regressor, AllReduceRegressor):
        return {}
    split = problem.split
    bytes_after, outcomes = _run(task, problem, regressor)
    rounds = outcomes[0].rounds
    shown = recorded_rounds(rounds)
    objective = np.sum([outcome.objective_shares for outcome in outcomes], axis=0)
    own_error, union_error = [], []
    features = [outcome.feature_map(split.X_test) for outcome in outcomes]
    wide = METHODS[task.method].settings.get("prediction") == "neighborhood"
    groups = [[j, *around] if wide else [j] for j, around in enumerate(ring_neighbors(split))]
    rows = np.arange(len(split.y_test))
    for k in shown:
        by_site = np.array([z @ outcome.path[k] for z, outcome in zip(features, outcomes, strict=True)])
        predictions = np.array([neighborhood_weights(len(group) - 1) @ by_site[group] for group in groups])
        own_error.append(rse(split.y_test, predictions[split.test_sites, rows]))
        union_error.append(float(np.mean([rse(split.y_test, prediction) for prediction in predictions])))
    setup = len(bytes_after) - rounds
    return {
        "curve_round": shown.tolist(),
        "curve_bytes": [bytes_after[setup + k - 1] for k in shown.tolist()],
        "curve_objective": objective[shown].tolist(),
        "curve_own_rse": own_error,
        "curve_union_rse": union_error,
        "best_objective": _best(task, problem, consensus),
    }


def _run(
    task: FitTask, problem: FitProblem, regressor: DeKRRRegressor | DKLARegressor
) -> tuple[list[int], list[Outcome]]:
    """Return the bytes sent so far after every exchange, and the sites' outcomes."""
    sent: Counter[int] = Counter()
    rows: dict[Hashable, Rows] = dict(enumerate(rows_by_site(problem.split)))
    sites = sites_of(rows, dict(enumerate(ring_neighbors(problem.split))), seed=seed_of(regressor.random_state))
    selectors: dict[Hashable, Chooser] = dict(enumerate(selectors_of(task, problem)))
    if isinstance(regressor, DeKRRRegressor):
        training = partial(dekrr.train, settings=regressor.run_settings(tol=0.0), keep_path=True)
    else:
        settings = msgspec.structs.replace(regressor.run_settings(list(sites)), tol=0.0)
        training = partial(dkla.train, settings=settings, keep_path=True)

    def count(delivery: Delivery) -> None:
        sent[delivery.exchange] += delivery.n_bytes

    done = run(sites, lambda j, site: training(site, selectors[j]), partial(LocalNetwork, observers=[count]))
    return list(itertools.accumulate(sent[k] for k in range(max(sent) + 1))), list(done.outcomes.values())


def _best(task: FitTask, problem: FitProblem, consensus: float | None) -> float:
    """Return the minimum of the objective: exact for shared features, otherwise to a relative residual of 1e-12."""
    split = problem.split
    best: Any = make_estimator(task, problem, consensus)
    if consensus is None:
        shared = set(parameters_of(AllReduceRegressor)) & set(parameters_of(best))
        best = AllReduceRegressor(**{name: getattr(best, name) for name in sorted(shared)})
    else:
        best.set_params(solver="chebyshev", tol=1e-12, max_rounds=10000)
    objective: Array = best.fit(split.X, split.y, sites=split.sites).objective_
    return float(objective)


_DIGITS = 10


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in ("dekrr", "numpy", "scipy")}}


def fit_task(task: FitTask, directory: str | os.PathLike[str] | None = None) -> tuple[dict[str, Any], float]:
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
            **_authors_figures(task, problem),
            **(curves_of(task, problem, consensus) if task.experiment == "convergence" else {}),
            **versions(),
        }
    return _rounded(row), seconds


def _outcome(regressor: Any, problem: FitProblem) -> dict[str, Any]:
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


def _authors_figures(task: FitTask, problem: FitProblem) -> dict[str, Any]:
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
