"""The attacks as experiments, with figures to print: neighbours attack a site of a DeKRR run."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, product

import msgspec
import numpy as np

from ...messages import RowFeatures
from ...protocols import dekrr
from ...protocols.run import Outcome, Tuning
from ...protocols.site import Procedure, Site
from ...selection import Energy
from ...settings import GRIDS, DeKRRSettings
from ...types import Array
from .overhearing import Forger, forged, overhear
from .recovery import Recovery, recover_rows, stack
from .scenes import GUARDED, Scene
from .sums import Advantage, Membership, NullSpace, advantage, recovered, rows_by_matching, rows_in_null_space
from .views import View, fold_blocks, view_of

Report = Callable[[float], None]
TOLERANCES = (1e-3, 1e-6)
_MOST_SPACES, _BATCH = 16, 200
_RANDOM_STARTS = 0.3
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
UNGUARDED = DeKRRSettings(
    masks=False, shortlist_rows=0, scale=None, rows_per_feature=0, max_leverage=1, min_rows=1, verify_features=False
)


def attack_features(
    problem: Scene,
    target: str | None = None,
    *,
    seconds: float = 60.0,
    own_rows: bool = True,
    report: Report = lambda seconds: None,
) -> tuple[Recovery, Array]:
    """Recover a neighbour's rows from the paper's exchange; return the recovery and the true rows.

    The time is CPU time, of which `report` is told. With `own_rows` the attacker may start from its own rows.
    """
    victim, attacker = problem.pair(target)
    selector = Energy(problem.n_features, sigma=problem.sigma)
    settings = DeKRRSettings(masks=False, exchange="features", scale=None, max_leverage=1.0, max_rounds=1)
    record, outcomes = overhear(problem.sites, lambda site: dekrr.train(site, selector, settings))
    (rows,) = record.between(victim.name, attacker.name, RowFeatures)
    maps = stack(outcomes[victim.name].feature_map, outcomes[attacker.name].feature_map)
    features = np.hstack([rows.own, rows.receivers])
    known = attacker.X if own_rows else None
    return recover_rows(maps, features, known=known, seconds=seconds, report=report), victim.X


def hear(
    problem: Scene,
    target: str | None = None,
    *,
    settings: DeKRRSettings = GUARDED,
    tuned: bool = False,
    colluders: int = 1,
    granted: bool = True,
    forger: Callable[[Site], Forger] | None = None,
) -> View:
    """Return the joint view of the colluding neighbours after a whole run with the default exchange.

    Rows that the run withholds are in nothing of the view, also not in what is granted: the target's own sums, which
    the attacker would otherwise have to derive from coefficients. A tuned run chooses the bandwidth first, over the
    estimators' grid. `forger` makes the forger of a colluder, who lies about its features.
    """
    problem = problem.admitted(settings.max_leverage)
    victim, _ = problem.pair(target)
    listeners = victim.neighbors[:colluders]
    selector = problem.selector()
    # Alpha and consensus change only the coefficients, and what these reveal is granted anyway.
    tuning = Tuning(sigmas=GRIDS["sigma"], alphas=(1e-6,), consensuses=(1.0,)) if tuned else None
    settings = msgspec.structs.replace(settings, max_rounds=1, tol=0.0)

    def procedure(site: Site) -> Procedure[Outcome]:
        honest = dekrr.train(site, selector, settings, tuning)
        if forger is None or site.name not in listeners:
            return honest
        return forged(honest, site, selector, forger(site))

    record, outcomes = overhear(problem.sites, procedure, (victim.name, *listeners))
    chosen = outcomes[victim.name].tuned
    if chosen is not None:
        selector = selector.replace(sigma=chosen.sigma)
    return view_of(record, listeners, victim, selector, tuning, granted=granted)


@dataclass(frozen=True)
class RowsFromSums:
    """The result of an attack on sums: shares by tolerance, without rows that the attacker already had."""

    shares: dict[float, float]  # of rows that were recovered
    chance: dict[float, float]  # of rows that were not in the sums: the rate of hits by chance
    starts: int
    misfit: float  # of the best match, relative; near 0, the matching found other rows with the same sums
    seconds: float  # of CPU time


def rows_from_sums(
    view: View,
    victim: Site,
    known: Array,
    known_y: Array,
    spare: Array,
    *,
    seconds: float = 60.0,
    seed: int = 0,
    report: Report = lambda seconds: None,
) -> RowsFromSums:
    """Try to recover rows from a view, starting from the attacker's own rows and from random rows.

    Half of the time is for the null spaces of Gram matrices: of all that the neighbours heard, and of sums over single
    folds; those with the fewest rows per feature come first. The other half is for matching. Many columns have few
    distinct values, so that each candidate is also tried with every value moved to the nearest known value of its
    column. The victim's rows serve to count hits alone, and spare ones, which were not in the sums, hits by chance.
    """
    rng = np.random.default_rng(seed)
    begun = time.process_time()
    candidates: list[Array] = []
    n_starts, misfit = 0, np.inf

    def spent() -> float:
        passed = time.process_time() - begun
        report(min(passed, seconds))
        return passed

    for found in _null_space_rows(view, known, rng):
        candidates.append(found)
        n_starts += len(found)
        if spent() > seconds / 2:
            break
    for kind, part in cycle(product(("known", "random"), (view, _trained(view)))):
        left = seconds - spent()
        if left <= 0 and np.isfinite(misfit):
            break
        drawn = rng.integers(len(known), size=view.n_rows)
        X, y = known[drawn], known_y[drawn]
        X = rng.uniform(size=X.shape) if kind == "random" else np.clip(X + rng.normal(scale=0.02, size=X.shape), 0, 1)
        matched, remaining = rows_by_matching(part, X, y, seconds=max(left / 2, 1.0), report=spent)
        candidates.append(matched)
        misfit = min(misfit, remaining)
        n_starts += 1
    found_rows = np.vstack(candidates) if candidates else np.empty((0, known.shape[1]))
    found_rows = np.vstack([found_rows, snapped(found_rows, known)])
    shares, chance = (
        {tolerance: recovered(found_rows, truth, tolerance, known) for tolerance in TOLERANCES}
        for truth in (victim.X, spare)
    )
    return RowsFromSums(shares, chance, n_starts, misfit, time.process_time() - begun)


def _trained(view: View) -> View:
    """Return what the first of the neighbours heard after tuning; these are fewer sums, which are faster to match."""
    whole = [block for block in view.blocks if block.folds.all()]
    first = whole[0].label.split(",")[0]
    return View([block for block in whole if block.label.split(",")[0] == first], view.fold_sizes)


def _null_space_rows(view: View, known: Array, rng: np.random.Generator) -> Iterator[Array]:
    """Yield candidates from the null spaces of Gram matrices, the most promising first, in an endless loop."""
    grams = [block for block in (*view.blocks, *fold_blocks(view)) if block.is_gram]
    grams.sort(key=lambda block: view.rows_in(block) / block.left.n_features)
    spaces = [NullSpace(block) for block in grams[:_MOST_SPACES]]
    n_columns = known.shape[1]
    depths = [(1e-11, 0), (1e-8, 0), (1e-5, 0), *((0.0, times * n_columns) for times in (2, 3, 4))]
    rows = cycle(np.array_split(rng.permutation(known), max(len(known) // _BATCH, 1)))
    while True:
        for relative, least in depths:
            for space in spaces:
                begin = rng.uniform(size=(_BATCH, n_columns)) if rng.uniform() < _RANDOM_STARTS else next(rows)
                found = rows_in_null_space(space.feature_map, space.directions(relative, least), begin)
                if len(found):
                    yield found


def snapped(candidates: Array, known: Array) -> Array:
    """Return the candidates with every value moved to the nearest known value of its column."""
    columns = []
    for values, column in zip(candidates.T, known.T, strict=True):
        grid = np.unique(column)
        middles = (grid[1:] + grid[:-1]) / 2
        columns.append(grid[np.searchsorted(middles, values)])
    return np.column_stack(columns)


@dataclass(frozen=True)
class Inference:
    """What sums reveal about rows of which the attacker already knows all columns, or all but one."""

    membership: Advantage
    column_error: float = np.nan  # the median error of guessed values, averaged over columns
    imputed_error: float = np.nan  # the same of values predicted from the other columns, without the sums


def infer(problem: Scene, view: View, *, guesses: int) -> Inference:
    """Test the membership of members and of spare rows of the same site, and guess columns of members.

    The attacker is stronger than a real one. Its reference rows are four fifths of the target's spare rows. The ridge
    of its model is the one of `RIDGES` that separates members best, which a real attacker does not know.
    """
    from sklearn.ensemble import RandomForestRegressor

    victim, _ = problem.pair()
    if victim.n_rows > view.n_rows:
        victim = victim.withholding(GUARDED.max_leverage)  # a row that is in no sum is no member
    rng = np.random.default_rng(0)
    spare_X, spare_y = problem.spare[victim.name]
    order = rng.permutation(len(spare_y))
    cut = 4 * len(order) // 5
    reference, others = order[:cut], order[cut:]

    def tested(ridge: float) -> tuple[Membership, Advantage]:
        test = Membership(view, spare_X[reference], spare_y[reference], ridge)
        return test, advantage(test.scores(victim.X, victim.y), test.scores(spare_X[others], spare_y[others]))

    test, membership = max((tested(ridge) for ridge in RIDGES), key=lambda result: result[1].area)
    if not guesses:
        return Inference(membership)
    members = rng.permutation(victim.n_rows)[:guesses]
    X, y = victim.X[members], victim.y[members]
    errors, imputed = [], []
    for column in range(X.shape[1]):
        rest = np.delete(np.arange(X.shape[1]), column)
        guess = test.guess_column(X, y, column, np.linspace(0, 1, 101))
        errors.append(np.median(np.abs(guess - X[:, column])))
        forest = RandomForestRegressor(30, random_state=0)
        forest.fit(np.column_stack([spare_X[reference][:, rest], spare_y[reference]]), spare_X[reference][:, column])
        prediction = forest.predict(np.column_stack([X[:, rest], y]))
        imputed.append(np.median(np.abs(prediction - X[:, column])))
    return Inference(membership, float(np.mean(errors)), float(np.mean(imputed)))


def fingerprinting(problem: Scene) -> Callable[[Site], Forger]:
    """Return a forger that verification allows: it sends the longest frequencies of its pool, a full shortlist of them.

    Features of high frequency are uncorrelated between any two different rows, so that the sums become fingerprints.
    With more of them in the final choice, too many rows would have a high leverage, and the site would refuse.
    """
    victim, _ = problem.pair()
    selector = problem.selector()

    def forger(site: Site) -> Forger:
        max_features = problem.longest_shortlist(site)
        pool = selector.draw_pool(victim.X.shape[1], site.rng())
        order = np.argsort(-np.linalg.norm(pool.frequencies, axis=0))

        return lambda asked: pool.keep(order[:max_features])

    return forger
