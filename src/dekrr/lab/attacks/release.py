"""Attacks that a release must pass: what neighbours get from all that they heard in a site's life.

The attackers pool every sum over the target's rows that they were sent: in training and tuning, after the loss of a
site, in an update with new rows, and in a later run with other features. They compare any two of them, and work out the
target's own sums from its coefficients where they are all its neighbours. Beside it
stand two attacks that guards refuse: training again after one new row, and sums of a leaf with few rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import numpy as np

from ...errors import DataError
from ...features import FeatureMap
from ...messages import Coefficients, Features, Moments, Shortlist, Sums
from ...protocols import dekrr
from ...protocols.cross_validation import rounds_of
from ...protocols.feature_choice import read_features
from ...protocols.online import go_on
from ...protocols.run import Outcome, Tuning
from ...protocols.site import Procedure, Site
from ...selection import Plain
from ...settings import DeKRRSettings
from ...solvers import ChebyshevState
from ...statistics import penalty, unpack_symmetric
from ...tables.rows import ArrayRows
from ...types import Array
from .overhearing import Overheard, overhear
from .scenes import Scene
from .sums import NullSpace, recovered, rows_in_null_space
from .views import WHOLE, SumsBlock, common_features, gram_of, summed, unit_gram

_NOISE = 1e-9


# A site's own sums from its coefficients: what all neighbours of a site can work out together. Chebyshev's rounds are
# known to everybody, so that the steps s_t = H_jj^-1 r_t follow from three coefficients in a row. With u_t = theta_t +
# s_t, the block row says
#
#     (1/N) (A + L) u_t + |N_j| c~_j A u_t - m / N  =  sum_p P_jp theta_p - (alpha/J I + sum_p c~_p B_jp) u_t,
#
# where A = Z_jj'Z_jj is over the rows in the site's sums, L over rows that are in its own fit alone, and m = Z_jj'y_j.
# The right side is in what the neighbours sent and received. Tuning repeats it for many alphas and consensuses, with
# the same A, L and m, and two values of consensus separate L from A. That broke a first fix of ours, which kept
# withheld rows in a site's own fit: L was a sum over those rows alone. Withheld rows are in no sum now, and L must be
# 0.


@dataclass(frozen=True)
class SolvedSums:
    shared: Array  # A, shape (D, D)
    own_only: Array  # L, shape (D, D)
    moment: Array  # m, shape (D,)
    rank: int  # how many directions the equations determine, of 2 D + 1


def solve_own_sums(points: Array, pulls: Array, known: Array) -> SolvedSums:
    """Solve (A + L) u + k A u - m = b for A, L and m by least squares; each row of A is a problem of its own.

    `points` are u, one a row, `pulls` are k = N |N_j| c~_j, and `known` is b.
    """
    size = points.shape[1]
    design = np.hstack([(1 + pulls[:, None]) * points, points, -np.ones((len(points), 1))])
    weights = 1 / np.maximum(np.linalg.norm(np.hstack([design, known]), axis=1, keepdims=True), 1e-300)
    lengths = np.maximum(np.linalg.norm(weights * design, axis=0), 1e-300)
    solution, _, rank, _ = np.linalg.lstsq(weights * design / lengths, weights * known, rcond=_NOISE)
    solution = solution / lengths[:, None]
    shared, own_only = (part + part.T for part in (solution[:size] / 2, solution[size:-1] / 2))
    return SolvedSums(shared, own_only, solution[-1], int(rank))


def from_tuning(
    record: Overheard, target: Site, tuning: Tuning, n_rows: int, n_sites: int, degrees: Mapping[str, int]
) -> list[SolvedSums]:
    """Return what all neighbours of a site work out from a tuned run, for each bandwidth and fold.

    Of the target only its name and its neighbours are used; `degrees` has how many neighbours each of these has.
    """
    kept = n_rows * (1 - 1 / tuning.folds)
    n_neighbors, around = len(target.neighbors), dict.fromkeys(target.neighbors, target.name)
    shape = (tuning.folds, len(tuning.alphas), -1)
    thetas = {  # a site's coefficients of all rounds, each of shape (folds, alphas, D)
        sender: [m.values.reshape(shape) for m in record.between(sender, other, Coefficients) if m.values.ndim == 2]
        for sender, other in {target.name: target.neighbors[0], **around}.items()
    }

    def equations(rounds: Mapping[str, Array], number: int, consensus: float) -> tuple[Array, Array, Array]:
        """Return u, k and b of one bandwidth and fold, its `number`, at one consensus, over all rounds and alphas."""
        points = _points(rounds[target.name], consensus)
        size, own_penalty = points.shape[-1], penalty(consensus, kept, n_neighbors)
        known = -np.array(tuning.alphas)[:, None] / n_sites * points
        for p in target.neighbors:
            received, sent = (record.between(*edge, Sums)[number] for edge in ((p, target.name), (target.name, p)))
            theirs = penalty(consensus, kept, degrees[p])
            known = known - theirs * points @ unpack_symmetric(received.gram, size)
            coupling = theirs * np.asarray(received.cross) + own_penalty * np.asarray(sent.cross).T
            known = known + rounds[p][:-1] @ coupling.T
        pulls = np.full(points.shape[:2], kept * n_neighbors * own_penalty)
        return points.reshape(-1, size), pulls.ravel(), kept * known.reshape(-1, size)

    found, at = [], 0
    for place in range(len(tuning.sigmas)):
        parts: list[list[tuple[Array, Array, Array]]] = [[] for _ in range(tuning.folds)]
        for consensus in tuning.consensuses:
            window = slice(at, at + rounds_of(consensus) + 1)
            at = window.stop
            for fold in range(tuning.folds):
                rounds = {name: np.array([theta[fold] for theta in values[window]]) for name, values in thetas.items()}
                parts[fold].append(equations(rounds, place * tuning.folds + fold, consensus))
        found += [solve_own_sums(*map(np.concatenate, zip(*each, strict=True))) for each in parts]
    return found


def _points(theta: Array, consensus: float) -> Array:
    """Return u_t = theta_t + H^-1 r_t for all rounds but the last, from the relaxation that everybody knows."""
    state = ChebyshevState.at(theta[0], np.zeros(0), consensus)
    points, before = [], theta[0]
    for now, then in pairwise(theta):
        state = state.relaxed()
        points.append((then - before) / state.relaxation + before)
        before = now
    return np.array(points)


_THERE = 1e-8  # of the largest eigenvalue: what a Gram matrix has less of is rounding
_DIFFERENT = 1e-6  # of a whitened difference


# Rows from the differences of sums. Two sums Z'Z about the same features, over sets of rows that differ by a few,
# differ by the signed sum over those few. The rank of the difference is their number. Their features are orthogonal to
# its null space Q, and Q'z(x) = 0 is solved for x from many starts, to the last digit. An outside audit took 20 to 50
# rows of a site so from a run of release 0.1.


@dataclass(frozen=True)
class Difference:
    """What two sums about the same features differ by."""

    feature_map: FeatureMap  # the features that both sums have, of amplitude 1
    gram: Array
    rank: int  # how many rows, or directions, the difference has
    full: int  # the rank of the sums themselves

    @property
    def is_telling(self) -> bool:
        """Whether the difference is a sum over fewer rows than there are features."""
        return 0 < self.rank < self.full


def differences(blocks: Sequence[SumsBlock]) -> Iterator[Difference]:
    """Yield the difference of every two Gram matrices that share features."""
    for first, second in combinations([block for block in blocks if block.is_gram], 2):
        left, right = common_features(first.left, second.left)
        if len(left) < 2:
            continue
        whole = unit_gram(first)[np.ix_(left, left)]
        gram = whole - unit_gram(second)[np.ix_(right, right)]
        values, vectors = np.linalg.eigh(whole)
        there = values > _THERE * values[-1]
        whitening = vectors[:, there] / np.sqrt(values[there])
        rank = int(np.sum(np.abs(np.linalg.eigvalsh(whitening.T @ gram @ whitening)) > _DIFFERENT))
        features = FeatureMap(first.left.frequencies[:, left], first.left.phases[left], np.ones(len(left)))
        yield Difference(features, gram, rank, int(there.sum()))


def rows_from(difference: Difference, begin: Array) -> Array:
    """Return points whose features lie in the range of a difference, one for each start in the unit box."""
    values, vectors = np.linalg.eigh(difference.gram)
    order = np.argsort(np.abs(values))
    null = vectors[:, order[: len(values) - difference.rank]]
    return rows_in_null_space(difference.feature_map, null, begin, 60)


SETTINGS = DeKRRSettings(masks=False, scale=None, verify_features=False, max_rounds=30, tol=0.0)
TUNING = Tuning(sigmas=(1.0,), alphas=(1e-9, 1e-7, 1e-5, 1e-3), consensuses=(0.125, 0.25, 0.5, 1.0, 2.0, 4.0))
_OF_ROUNDING = 1e-6  # of A: what of L is less


@dataclass(frozen=True)
class Haul:
    scenario: str
    pairs: int  # of sums about the same features, with those of the training
    telling: int  # of them differ by fewer rows than there are features
    rows: int  # of the target come back to 1e-6


@dataclass(frozen=True)
class _Heard:
    """What the attackers have after a scenario: Gram matrices over the target's rows, and differences of such."""

    scenario: str
    blocks: list[SumsBlock]
    differences: list[Difference]


def life(problem: Scene, colluders: int) -> Iterator[Haul]:
    """Yield what neighbours of the first site get from each scenario, together with what they had before.

    The scene is in agreed units.
    """
    victim, attacker = problem.pair()
    rng = np.random.default_rng(0)
    blocks: list[SumsBlock] = []
    for heard in _scenarios(problem, victim.neighbors[:colluders]):
        blocks += heard.blocks
        found = [*differences(blocks), *heard.differences]
        telling = [difference for difference in found if difference.is_telling]
        yield Haul(heard.scenario, len(found), len(telling), rows_of(telling, victim.X, attacker.X, rng))


def rows_of(telling: Sequence[Difference], truth: Array, known: Array, rng: np.random.Generator) -> int:
    """Return how many true rows the differences give back to 1e-6; rows that the attacker has do not count.

    For each difference there are 400 starts from rows of the attacker, and as many at random.
    """
    candidates = [truth[:0]]
    for difference in telling:
        begin = known[rng.integers(len(known), size=400)]
        candidates += [rows_from(difference, points) for points in (begin, rng.random(begin.shape))]
    return round(recovered(np.vstack(candidates), truth, 1e-6, known) * len(truth))


def _scenarios(problem: Scene, listeners: Sequence[str]) -> Iterator[_Heard]:
    victim, _ = problem.pair()
    sites = {site.name: site for site in problem.sites}
    selector = problem.selector()

    def run(procedure: Callable[[Site], Procedure[Outcome]]) -> tuple[Overheard, dict[str, Outcome]]:
        return overhear(sites.values(), procedure, (victim.name, *listeners))

    record, outcomes = run(lambda site: dekrr.train(site, selector, SETTINGS))
    yield _Heard("trained", grams(record, listeners, victim.name), [])
    try:
        record, tuned = run(lambda site: dekrr.train(site, selector, SETTINGS, TUNING))
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
    record, outcomes = run(lambda site: dekrr.train(site, selector, SETTINGS))
    yield _Heard("a site lost", grams(record, listeners, victim.name), [])
    new = ArrayRows(*(part[: len(part) // 2] for part in problem.spare[victim.name]))
    rows = {name: new if name == victim.name else ArrayRows(new.X[:0], new.y[:0]) for name in sites}
    grown = ArrayRows(np.vstack([victim.X, new.X]), np.append(victim.y, new.y))
    sites[victim.name] = replace(sites[victim.name], rows=grown)
    maps = outcomes[victim.name].neighbor_maps
    record, _ = run(lambda site: go_on(site, outcomes[site.name], rows[site.name], selector, SETTINGS))
    yield _Heard("new rows", grams(record, listeners, victim.name, maps), [])
    smaller = selector.replace(n_features=problem.n_features - 5)
    record, _ = run(lambda site: dekrr.train(replace(site, feature_map=None), smaller, SETTINGS))
    yield _Heard("trained again", grams(record, listeners, victim.name), [])


def grams(
    record: Overheard, listeners: Sequence[str], target: str, maps: Mapping[str, FeatureMap] | None = None
) -> list[SumsBlock]:
    """Return the Gram matrices over the target's rows that listeners were sent in a run without proofs of features.

    `maps` are those that listeners sent before the run.
    """
    asked, found = dict(maps or {}), []
    for entry in record.heard:
        message = entry.message.candidates if isinstance(entry.message, Shortlist) else entry.message
        if isinstance(message, Features) and entry.receiver == target:
            asked[entry.sender] = read_features(entry.sender, message)
        if isinstance(message, Moments | Sums) and entry.sender == target and entry.receiver in listeners:
            feature_map = asked[entry.receiver]
            gram = unpack_symmetric(message.gram, feature_map.n_features)
            found.append(gram_of(feature_map, gram, label=entry.receiver))
    return found


def _from_coefficients(record: Overheard, victim: Site, sites: Mapping[str, Site], outcome: Outcome) -> _Heard:
    """Return the target's own sums, and what its own fit has more than its sums, for every bandwidth and fold."""
    degrees = {p: len(sites[p].neighbors) for p in victim.neighbors}
    roster = outcome.roster
    solved = from_tuning(record, victim, TUNING, roster.n_rows, roster.n_sites, degrees)
    maps = [read_features(victim.name, m) for m in record.between(victim.name, victim.neighbors[0], Features)]
    blocks, found = [], []
    for feature_map, sums in zip(maps, solved, strict=False):
        blocks.append(gram_of(feature_map, sums.shared, label=victim.name))
        largest = np.linalg.eigvalsh(sums.shared)[-1]
        rank = int(np.sum(np.abs(np.linalg.eigvalsh(sums.own_only)) > _OF_ROUNDING * largest))
        found.append(Difference(feature_map, sums.own_only, rank, feature_map.n_features))
    return _Heard("tuned, by coefficients", blocks, found)


def retrained(problem: Scene, *, n_runs: int) -> int:
    """Return how many new rows come back when a site trains again after each single one; a node's history refuses."""
    victim, attacker = problem.pair()
    rng = np.random.default_rng(0)
    spare_X, spare_y = problem.spare[victim.name]
    features = Plain(problem.n_features, sigma=problem.sigma).select(victim.X[:0], victim.y[:0], rng)
    before = summed(features, features, victim.X, victim.y, WHOLE)
    rows = 0
    for row in range(n_runs):
        X, y = np.vstack([victim.X, spare_X[row : row + 1]]), np.append(victim.y, spare_y[row])
        (found,) = differences([before, summed(features, features, X, y, WHOLE)])
        rows += rows_of([found], spare_X[row : row + 1], attacker.X, rng)
    return rows


def from_leaf(problem: Scene, n_rows: int, n_features: int) -> tuple[int, int]:
    """Return how many rows of an AllReduce leaf its parent finds to 1e-3 and to 1e-6, from the sums of the leaf.

    The guards want three rows for each feature. There are 1,000 starts for each of several depths of the null space.
    """
    victim, attacker = problem.pair()
    rng = np.random.default_rng(0)
    chosen = rng.permutation(victim.n_rows)[:n_rows]
    X, y = victim.X[chosen], victim.y[chosen]
    features = Plain(n_features, sigma=problem.sigma).select(X[:0], y[:0], np.random.default_rng(0))
    space = NullSpace(summed(features, features, X, y, WHOLE))
    n_columns = X.shape[1]
    candidates = [np.empty((0, n_columns))]
    for relative, least in ((1e-11, 0), (1e-8, 0), (0.0, 2 * n_columns), (0.0, 4 * n_columns)):
        known = attacker.X[rng.integers(attacker.n_rows, size=500)]
        begin = np.vstack([known, rng.random((500, n_columns))])
        candidates.append(rows_in_null_space(features, space.directions(relative, least), begin))
    shares = [recovered(np.vstack(candidates), X, tolerance, attacker.X) for tolerance in (1e-3, 1e-6)]
    return round(shares[0] * n_rows), round(shares[1] * n_rows)
