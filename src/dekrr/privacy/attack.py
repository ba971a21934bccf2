"""The attacks as experiments: one neighbour of a DeKRR run against another, with figures to print."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

import numpy as np

from .. import topology
from ..data import by_response, halves, load, make_sites
from ..errors import DataError
from ..features import FeatureMap
from ..messages import RowFeatures
from ..protocols import dekrr
from ..protocols.site import Site
from ..rows import ArrayRows
from ..scaling import Scaling
from ..selection import EnergySelector, GreedySelector, PlainSelector, Selector
from ..types import Array
from .overhearing import overhear
from .rows import Recovery, recover_rows, stack
from .sums import (
    Advantage,
    Membership,
    View,
    advantage,
    fingerprinting_map,
    recovered,
    rows_by_matching,
    rows_in_null_space,
    view_of,
)

TOLERANCES = (1e-3, 1e-6)


@dataclass(frozen=True)
class Problem:
    """Sites in a ring, with rows of the same kind that were not trained on.

    Parameters
    ----------
    name : str
    sites : list of Site
    spare : dict of site to (X, y)
    sigma : float
    n_features : int
    """

    name: str
    sites: list[Site]
    spare: dict[str, tuple[Array, Array]]
    sigma: float
    n_features: int

    def site(self, name: str) -> Site:
        """Return the site called `name`."""
        return next(site for site in self.sites if site.name == name)

    def pair(self, target: str | None = None) -> tuple[Site, Site]:
        """Return a target, the first site by default, and the neighbour that attacks it."""
        victim = self.site(target) if target is not None else self.sites[0]
        return victim, self.site(victim.neighbors[0])


def read_problem(
    name: str | None, directory: Path | None, n_features: int | None, sigma: float | None, seed: int
) -> Problem:
    """Return a problem: the authors' split of a data set, one of ours, or, without a name, a made-up one.

    Parameters
    ----------
    name : str or None
    directory : path or None
        Where ``<name>.parquet`` and ``splits/<name>-by-response.npz`` are.
    n_features, sigma : optional
        Instead of the data set's own.
    seed : int
    """
    if name is None:
        X, y, sites = make_sites(rows_per_site=400, random_state=seed)
        return _divided("made-up coast", X, y, sites, n_features or 30, sigma or 0.3, seed)
    split = directory / "splits" / f"{name}-by-response.npz" if directory is not None else None
    if split is not None and split.exists():
        return _authors(name, split, n_features, sigma)
    X, y = load(name, directory)
    scaling = Scaling.of(X, y)
    sites = by_response(scaling.responses(y), random_state=seed)
    return _divided(name, X, y, sites, n_features or 60, sigma or 0.25, seed)


_NARROWEST = 1e-6  # a bandwidth that allows any frequency
_FEATURES = {"houses": 60, "airquality": 70, "energy": 90}


def _authors(name: str, path: Path, n_features: int | None, sigma: float | None) -> Problem:
    with np.load(path) as file:
        names = [str(j) for j in range(int(file["n_nodes"]))]
        train = {j: (file[f"X_train_{j}"], file[f"y_train_{j}"]) for j in names}
        spare = {j: (file[f"X_test_{j}"], file[f"y_test_{j}"]) for j in names}
        return _problem(name, train, spare, n_features or _FEATURES.get(name, 60), sigma or float(file["sigma"]))


def _divided(name: str, X: Array, y: Array, sites: np.ndarray, n_features: int, sigma: float, seed: int) -> Problem:
    scaling = Scaling.of(X, y)
    X, y = scaling.rows(X), scaling.responses(y)
    trained = halves(sites, random_state=seed)
    parts = [
        {str(j): (X[(sites == j) & part], y[(sites == j) & part]) for j in np.unique(sites)}
        for part in (trained, ~trained)
    ]
    return _problem(name, parts[0], parts[1], n_features, sigma)


def _problem(
    name: str,
    train: dict[str, tuple[Array, Array]],
    spare: dict[str, tuple[Array, Array]],
    n_features: int,
    sigma: float,
) -> Problem:
    graph = topology.build("ring", list(train), 4)
    sites = [Site(j, tuple(graph[j]), ArrayRows(X, y)) for j, (X, y) in train.items()]
    return Problem(name, sites, spare, sigma, n_features)


def attack_features(
    problem: Problem, target: str | None = None, *, seconds: float = 60.0, own_rows: bool = True
) -> tuple[Recovery, Array]:
    """Recover a neighbour's rows from the paper's exchange; return what was found, and the rows.

    Parameters
    ----------
    problem : Problem
    target : str, optional
    seconds : float, default=60
    own_rows : bool, default=True
        Whether the attacker may start from its own rows.
    """
    victim, attacker = problem.pair(target)
    selector = EnergySelector(problem.n_features, sigma=problem.sigma)
    settings = dekrr.Settings(exchange="features", scale=None, max_rounds=1)
    record, outcomes = overhear(problem.sites, selector, settings)
    (rows,) = record.between(victim.name, attacker.name, RowFeatures)
    maps = stack(outcomes[victim.name].feature_map, outcomes[attacker.name].feature_map)
    features = np.hstack([rows.own, rows.receivers])
    known = attacker.X if own_rows else None
    return recover_rows(maps, features, known=known, seconds=seconds), victim.X


def hear_sums(
    problem: Problem,
    target: str | None = None,
    *,
    granted: bool = True,
    attackers_map: FeatureMap | None = None,
    selector: Selector | None = None,
) -> View:
    """Return what a neighbour knows after a run with the default exchange.

    Parameters
    ----------
    problem : Problem
    target : str, optional
    granted : bool, default=True
        Give the attacker the target's own sums, which it would have to work out from coefficients.
    attackers_map : FeatureMap, optional
        What a malicious attacker sends for its features; the guards that would refuse it are off.
    selector : Selector, optional
        Greedy by default.
    """
    victim, attacker = problem.pair(target)
    sites = problem.sites
    if attackers_map is not None:
        chosen = {site.name: site.feature_map for site in sites} | {attacker.name: attackers_map}
        sites = [_with_map(site, chosen[site.name], problem) for site in sites]
        selector = PlainSelector(problem.n_features, sigma=_NARROWEST)
    selector = selector or GreedySelector(problem.n_features, sigma=problem.sigma)
    settings = dekrr.Settings(scale=None, rows_per_feature=0, min_rows=1)
    record, outcomes = overhear(sites, selector, settings)
    return view_of(record, attacker.name, problem.site(victim.name), outcomes, granted=granted)


def _with_map(site: Site, feature_map: FeatureMap | None, problem: Problem) -> Site:
    """Return the site with a map of its own, so that the run's selector only says which frequencies are too long."""
    if feature_map is None:
        selector = GreedySelector(problem.n_features, sigma=problem.sigma)
        feature_map = selector.select(site.X, site.y, site.rng())
    return replace(site, feature_map=feature_map)


@dataclass(frozen=True)
class RowsFromSums:
    """What came of sums.

    Parameters
    ----------
    shares : dict of tolerance to float
        Shares of rows recovered, not counting rows that the attacker already had.
    starts : int
    misfit : float
        What the best matching left of the sums' squared norm; near 0 it found other rows with the same sums.
    seconds : float
    """

    shares: dict[float, float]
    starts: int
    misfit: float
    seconds: float


def attack_sums(problem: Problem, target: str | None = None, *, seconds: float = 60.0, seed: int = 0) -> RowsFromSums:
    """Try to recover rows from sums, with own sums granted, by both methods; half of the time each."""
    victim, attacker = problem.pair(target)
    return rows_from_sums(hear_sums(problem, target), victim, attacker.X, seconds=seconds, seed=seed)


def rows_from_sums(
    view: View, victim: Site, known: Array, *, seconds: float = 60.0, starts: int = 100_000, seed: int = 0
) -> RowsFromSums:
    """Try to recover rows from a view, starting from the attacker's own rows and from random ones.

    Parameters
    ----------
    view : View
    victim : Site
        For counting hits only.
    known : ndarray of shape (n_known, n_columns)
    seconds : float, default=60
    starts : int
        The most starts of the null-space method.
    seed : int
    """
    rng = np.random.default_rng(seed)
    begun = time.perf_counter()
    n_columns = known.shape[1]
    random = rng.uniform(size=(max(starts - len(known), starts // 2), n_columns))
    begin = np.vstack([rng.permutation(known), random])[:starts]
    depths = [(1e-11, 0), (1e-8, 0), (1e-5, 0), *((0.0, times * n_columns) for times in (2, 3, 4))]
    candidates = [
        rows_in_null_space(view, begin, relative=relative, least=least, seconds=seconds / 2 / len(depths))
        for relative, least in depths
    ]
    n_starts, misfit = sum(map(len, candidates)), np.inf
    for kind in cycle(("known", "random")):
        left = seconds - (time.perf_counter() - begun)
        if left <= 0 and np.isfinite(misfit):
            break
        drawn = known[rng.integers(len(known), size=view.n_rows)]
        drawn = (
            rng.uniform(size=drawn.shape)
            if kind == "random"
            else np.clip(drawn + rng.normal(scale=0.02, size=drawn.shape), 0, 1)
        )
        matched, remaining = rows_by_matching(view, drawn, seconds=max(left, 1.0))
        candidates.append(matched)
        misfit = min(misfit, remaining)
        n_starts += 1
    found = np.vstack(candidates)
    shares = {tolerance: recovered(found, victim.X, tolerance, known) for tolerance in TOLERANCES}
    return RowsFromSums(shares, n_starts, misfit, time.perf_counter() - begun)


@dataclass(frozen=True)
class Inference:
    """What sums tell about rows that the attacker knows already, all or all but one column.

    Parameters
    ----------
    membership : Advantage
    column_error : float
        Median error of guessed values, the mean over columns.
    imputed_error : float
        The same of values predicted from the other columns, without the sums.
    """

    membership: Advantage
    column_error: float
    imputed_error: float


def infer(problem: Problem, view: View, target: str | None = None, *, guesses: int = 60, seed: int = 0) -> Inference:
    """Test members against spare rows of the same site, and guess columns of members.

    Four fifths of the target's spare rows are the attacker's reference: more than a real one is likely to have.
    """
    from sklearn.ensemble import RandomForestRegressor

    victim, _ = problem.pair(target)
    rng = np.random.default_rng(seed)
    spare_X, spare_y = problem.spare[victim.name]
    order = rng.permutation(len(spare_y))
    cut = 4 * len(order) // 5
    reference, others = order[:cut], order[cut:]
    test = Membership(view, spare_X[reference], spare_y[reference])
    membership = advantage(test.scores(victim.X, victim.y), test.scores(spare_X[others], spare_y[others]))
    members = rng.permutation(victim.n_rows)[:guesses]
    X, y = victim.X[members], victim.y[members]
    errors, imputed = [], []
    for column in range(X.shape[1]):
        rest = np.delete(np.arange(X.shape[1]), column)
        guess = test.guess_column(X, y, column, np.linspace(0, 1, 101))
        errors.append(np.median(np.abs(guess - X[:, column])))
        forest = RandomForestRegressor(30, random_state=seed)
        forest.fit(np.column_stack([spare_X[reference][:, rest], spare_y[reference]]), spare_X[reference][:, column])
        prediction = forest.predict(np.column_stack([X[:, rest], y]))
        imputed.append(np.median(np.abs(prediction - X[:, column])))
    return Inference(membership, float(np.mean(errors)), float(np.mean(imputed)))


def malicious_view(problem: Problem, target: str | None = None, *, factor: float = 10.0) -> View:
    """Return the view of a neighbour that sends frequencies `factor` times too high, with the guards off."""
    victim, _ = problem.pair(target)
    scale = factor / problem.sigma
    return hear_sums(
        problem,
        target,
        granted=False,
        attackers_map=fingerprinting_map(victim.X.shape[1], problem.n_features, scale),
    )


def overasking_view(problem: Problem, target: str | None = None, *, surplus: int = 50) -> View:
    """Return the view of a neighbour that asks for more features than the target has rows, with the guards off."""
    victim, _ = problem.pair(target)
    size = victim.n_rows + victim.X.shape[1] + surplus
    wide = fingerprinting_map(victim.X.shape[1], size, 1 / problem.sigma)
    return hear_sums(problem, target, granted=False, attackers_map=wide)


def fewer_rows(
    problem: Problem, counts: list[int], *, seconds: float = 20.0, seed: int = 0
) -> Iterator[tuple[int, RowsFromSums]]:
    """Yield the rows recovered from sums where the target has no more than so many rows."""
    victim, attacker = problem.pair()
    if max(counts) > victim.n_rows:
        raise DataError(f"site {victim.name!r} has {victim.n_rows} rows, fewer than {max(counts)}")
    order = np.random.default_rng(seed).permutation(victim.n_rows)
    for count in counts:
        small = replace(victim, rows=ArrayRows(victim.X[order[:count]], victim.y[order[:count]]))
        sites = [small if site is victim else site for site in problem.sites]
        shrunk = replace(problem, sites=sites)
        yield count, rows_from_sums(hear_sums(shrunk), small, attacker.X, seconds=seconds, starts=2000, seed=seed)
