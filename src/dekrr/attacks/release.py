"""Attacks that a release must pass: what neighbours get from all that they heard in a site's life.

The attackers pool every sum over the target's rows that they were sent: in training and tuning, after the loss of a
site, in an update with new rows, and in a later run with other features. They compare any two of them (`differences`),
and work out the target's own sums from its coefficients where they are all its neighbours (`coefficients`). Beside it
stand two attacks that guards refuse: training again after one new row, and sums of a leaf with few rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import DataError
from ..features import FeatureMap
from ..messages import Features, Moments, Shortlist, Sums
from ..networks.local import LocalNetwork
from ..privacy.maps_of_neighbors import Ledger
from ..protocols import dekrr
from ..protocols.offers import read_features
from ..protocols.online import go_on
from ..protocols.outcome import Outcome
from ..protocols.site import Procedure, Site
from ..protocols.tuning import Tuning
from ..rows import ArrayRows
from ..selection import Plain
from ..settings import DeKRRSettings
from ..statistics import unpack_symmetric
from ..types import Array
from .coefficients import from_tuning
from .differences import Difference, differences, rows_from
from .overhearing import Record
from .problems import Problem
from .sums import NullSpace, recovered, rows_in_null_space
from .views import Block, summed

SETTINGS = DeKRRSettings(masks=False, scale=None, verify_features=False, max_rounds=30, tol=0.0)
TUNING = Tuning(sigmas=(1.0,), alphas=(1e-9, 1e-7, 1e-5, 1e-3), consensuses=(0.125, 0.25, 0.5, 1.0, 2.0, 4.0))
_WHOLE = np.ones(1, dtype=bool)
_OF_ROUNDING = 1e-6  # of A: what of L is less


@dataclass(frozen=True)
class Haul:
    """What attackers get.

    Parameters
    ----------
    scenario : str
    pairs : int
        Pairs of sums about the same features, with those of the training.
    telling : int
        Those of them that differ by fewer rows than there are features.
    rows : int
        Rows of the target that come back to 1e-6.
    """

    scenario: str
    pairs: int
    telling: int
    rows: int


@dataclass(frozen=True)
class _Heard:
    """What the attackers have after a scenario: Gram matrices over the target's rows, and differences of such."""

    scenario: str
    blocks: list[Block]
    differences: list[Difference]


def life(problem: Problem, colluders: int, *, starts: int = 400, seed: int = 0) -> Iterator[Haul]:
    """Yield what neighbours of the first site get from each scenario, together with what they had before.

    Parameters
    ----------
    problem : Problem
        In agreed units; see `problems.in_agreed_units`.
    colluders : int
        How many neighbours pool what they heard.
    starts : int, default=400
        For each telling difference: so many from rows of the attacker, and as many at random.
    seed : int, default=0
    """
    victim, attacker = problem.pair()
    rng = np.random.default_rng(seed)
    blocks: list[Block] = []
    for heard in _scenarios(problem, victim.neighbors[:colluders]):
        blocks += heard.blocks
        found = [*differences(blocks), *heard.differences]
        telling = [difference for difference in found if difference.is_telling]
        yield Haul(heard.scenario, len(found), len(telling), rows_of(telling, victim.X, attacker.X, rng, starts))


def rows_of(telling: Sequence[Difference], truth: Array, known: Array, rng: np.random.Generator, starts: int) -> int:
    """Return how many true rows the differences give back to 1e-6; rows that the attacker has do not count."""
    candidates = [truth[:0]]
    for difference in telling:
        begin = known[rng.integers(len(known), size=starts)]
        candidates += [rows_from(difference, points) for points in (begin, rng.random(begin.shape))]
    return round(recovered(np.vstack(candidates), truth, 1e-6, known) * len(truth))


def _scenarios(problem: Problem, listeners: Sequence[str]) -> Iterator[_Heard]:
    """Go through the life of the network, scenario by scenario."""
    victim, _ = problem.pair()
    sites = {site.name: site for site in problem.sites}
    selector = problem.selector()
    heard_by = (victim.name, *listeners)
    record, outcomes = _run(sites, heard_by, lambda site: dekrr.train(site, selector, SETTINGS))
    yield _Heard("trained", grams(record, listeners, victim.name), [])
    try:
        record, tuned = _run(sites, heard_by, lambda site: dekrr.train(site, selector, SETTINGS, TUNING))
    except DataError:
        pass  # the guards refuse to tune
    else:
        yield _Heard("tuned", grams(record, listeners, victim.name), [])
        if set(listeners) == set(victim.neighbors):
            yield _from_coefficients(record, victim, sites, tuned[victim.name])
    lost = next(name for name in sites if name not in (victim.name, *victim.neighbors))
    sites = {
        name: replace(
            site,
            neighbors=tuple(p for p in site.neighbors if p != lost),
            feature_map=outcomes[name].feature_map,
        )
        for name, site in sites.items()
        if name != lost
    }
    record, outcomes = _run(sites, heard_by, lambda site: dekrr.train(site, selector, SETTINGS))
    yield _Heard("a site lost", grams(record, listeners, victim.name), [])
    new = ArrayRows(*(part[: len(part) // 2] for part in problem.spare[victim.name]))
    rows = {name: new if name == victim.name else ArrayRows(new.X[:0], new.y[:0]) for name in sites}
    grown = ArrayRows(np.vstack([victim.X, new.X]), np.append(victim.y, new.y))
    sites[victim.name] = replace(sites[victim.name], rows=grown)
    maps = outcomes[victim.name].neighbor_maps
    record, _ = _run(
        sites, heard_by, lambda site: go_on(site, outcomes[site.name], rows[site.name], selector, SETTINGS)
    )
    yield _Heard("new rows", grams(record, listeners, victim.name, maps), [])
    smaller = selector.replace(n_features=problem.n_features - 5)
    anew = {name: replace(site, feature_map=None) for name, site in sites.items()}
    record, _ = _run(anew, heard_by, lambda site: dekrr.train(site, smaller, SETTINGS))
    yield _Heard("trained again", grams(record, listeners, victim.name), [])


def _run(
    sites: Mapping[str, Site], heard_by: Sequence[str], procedure: Callable[[Site], Procedure[Outcome]]
) -> tuple[Record, dict[str, Outcome]]:
    record = Record(only=heard_by)
    network = LocalNetwork({name: site.neighbors for name, site in sites.items()}, observers=[record])
    fresh = {name: replace(site, ledger=Ledger()) for name, site in sites.items()}
    return record, network.run({name: procedure(site) for name, site in fresh.items()})


def grams(
    record: Record, listeners: Sequence[str], target: str, maps: Mapping[str, FeatureMap] | None = None
) -> list[Block]:
    """Return the Gram matrices over the target's rows that listeners were sent.

    Parameters
    ----------
    record : Record
        Of a run without proofs of features.
    listeners : sequence of str
    target : str
    maps : mapping of site to FeatureMap, optional
        Maps that listeners sent before the run.
    """
    asked, found = dict(maps or {}), []
    for entry in record.heard:
        message = entry.message.candidates if isinstance(entry.message, Shortlist) else entry.message
        if isinstance(message, Features) and entry.receiver == target:
            asked[entry.sender] = read_features(entry.sender, message)
        if isinstance(message, Moments | Sums) and entry.sender == target and entry.receiver in listeners:
            feature_map = asked[entry.receiver]
            gram = unpack_symmetric(message.gram, feature_map.n_features)
            found.append(Block(feature_map, feature_map, gram, _WHOLE, entry.receiver))
    return found


def _from_coefficients(record: Record, victim: Site, sites: Mapping[str, Site], outcome: Outcome) -> _Heard:
    """Return the target's own sums, and what its own fit has more than its sums, for every bandwidth and fold."""
    degrees = {p: len(sites[p].neighbors) for p in victim.neighbors}
    roster = outcome.roster
    solved = from_tuning(record, victim, TUNING, roster.n_rows, roster.n_sites, degrees)
    maps = [read_features(victim.name, m) for m in record.between(victim.name, victim.neighbors[0], Features)]
    blocks, found = [], []
    for feature_map, sums in zip(maps, solved, strict=False):
        blocks.append(Block(feature_map, feature_map, sums.shared, _WHOLE, victim.name))
        largest = np.linalg.eigvalsh(sums.shared)[-1]
        rank = int(np.sum(np.abs(np.linalg.eigvalsh(sums.own_only)) > _OF_ROUNDING * largest))
        found.append(Difference(feature_map, sums.own_only, rank, feature_map.n_features))
    return _Heard("tuned, by coefficients", blocks, found)


def retrained(problem: Problem, *, n_runs: int = 12, starts: int = 400, seed: int = 0) -> int:
    """Return how many new rows come back when a site trains again after each single one; a node's history refuses.

    Parameters
    ----------
    problem : Problem
        In agreed units.
    n_runs : int, default=12
    starts : int, default=400
    seed : int, default=0
    """
    victim, attacker = problem.pair()
    rng = np.random.default_rng(seed)
    spare_X, spare_y = problem.spare[victim.name]
    features = Plain(problem.n_features, sigma=problem.sigma).select(victim.X[:0], victim.y[:0], rng)
    before = summed(features, features, victim.X, victim.y, _WHOLE)
    rows = 0
    for row in range(n_runs):
        X, y = np.vstack([victim.X, spare_X[row : row + 1]]), np.append(victim.y, spare_y[row])
        (found,) = differences([before, summed(features, features, X, y, _WHOLE)])
        rows += rows_of([found], spare_X[row : row + 1], attacker.X, rng, starts)
    return rows


def from_leaf(problem: Problem, n_rows: int, n_features: int, *, starts: int = 1000, seed: int = 0) -> tuple[int, int]:
    """Return how many rows of an AllReduce leaf its parent finds to 1e-3 and to 1e-6, from the sums of the leaf.

    Parameters
    ----------
    problem : Problem
        In agreed units.
    n_rows : int
        Of the leaf; the guards want three for each feature.
    n_features : int
    starts : int, default=1000
        For each of several depths of the null space.
    seed : int, default=0
    """
    victim, attacker = problem.pair()
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(victim.n_rows)[:n_rows]
    X, y = victim.X[chosen], victim.y[chosen]
    features = Plain(n_features, sigma=problem.sigma).select(X[:0], y[:0], np.random.default_rng(seed))
    space = NullSpace(summed(features, features, X, y, _WHOLE))
    n_columns = X.shape[1]
    candidates = [np.empty((0, n_columns))]
    for relative, least in ((1e-11, 0), (1e-8, 0), (0.0, 2 * n_columns), (0.0, 4 * n_columns)):
        known = attacker.X[rng.integers(attacker.n_rows, size=starts // 2)]
        begin = np.vstack([known, rng.random((starts - len(known), n_columns))])
        candidates.append(rows_in_null_space(features, space.directions(relative, least), begin))
    shares = [recovered(np.vstack(candidates), X, tolerance, attacker.X) for tolerance in (1e-3, 1e-6)]
    return round(shares[0] * n_rows), round(shares[1] * n_rows)
