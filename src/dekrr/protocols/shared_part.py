"""The shared part: one model for all sites, on the same features, from sums over the spanning tree.

All sites draw the same pool from the run's seed. Each votes for the candidates that its own rows would take, with their
gains in a greedy selection. The votes are summed over the tree, whose root says which candidates have the most: the
features of all. Half of them are of mixed kinds. The others are smooth and depend on all columns, in scales that such
features alone have found: these are better where responses have heavy tails. Then every site sums Z'Z, Z'y and y'y over
its rows. The sums go up the tree, the root solves the ridge regression of the pooled rows, and its coefficients come
down. No site but the root learns sums over all rows.

Sites may differ by levels of their own (`dekrr.parts.local`). The sums of every model are sent for one ratio of
variances alone: those for two ratios would differ by a sum over sites of s_j s_j', which tells more of a site than it
should. So the ratio of the next model is the one whose levels have the least error on held-out rows, given the
coefficients of the last. It starts from no levels: what a function of the columns explains is not for a level to hold.

**Column scales** are how much the response depends on each column. All sites agree on them. A small shared model of
Gaussian features is fitted in equal scales. (The derivative of a rough feature is so large that a single one would
decide.) Its average gradient outer product has a closed form (`dekrr.statistics`). The diagonal is one sum over the
spanning tree, of as many numbers as there are columns. The root of a column's mean squared derivative is its scale. A
second model is fitted in these scales, and its derivatives are the scales: where many columns do not matter, the first
model is a poor one. A third model tries the squares of the scales. Where its error on held-out rows is clearly lower,
the squares of its scales are taken.

Half of the features of the shared part are smooth and depend on all columns. A fourth model, of such features alone and
without votes, finds the scales for these. Where its held-out error is clearly higher than the second model's, there are
no such features.

Each of these models holds a fifth of the rows out. The ridge with the least held-out error in the mean over the models
is the least ridge of the shared part: features are scaled so that the same ridge suits few of them and many.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import NamedTuple, TypeVar

import numpy as np

from ..errors import MessageError, SettingsError
from ..features import FeatureMap
from ..messages import Total
from ..parts.local import NO_LEVEL, RATIOS, LevelSums, constant_of, has_constant, with_constant
from ..privacy.admission import longest_shortlist, site_rng
from ..scaling import Unscaled
from ..selection.choosers import Pool
from ..selection.greedy import Mixed, cosines_of, with_columns
from ..settings import DeKRRSettings
from ..statistics import (
    OwnSums,
    Ridge,
    accumulate,
    largest_squared_gradients,
    path_of,
    path_with_intercept,
    squared_gradients,
    weighted_features,
    weighted_responses,
)
from ..tables.rows import ArrayRows, Rows, is_usual
from ..types import Array
from .masking import MOST_SPANS, Masks, largest_sums
from .roll_call import Roster
from .run import Outcome, Run, SharedPart, Start
from .site import FOLDS, Procedure
from .spanning_tree import BranchSums, SparseSums, room_of, single

Scales = tuple[tuple[float, ...], ...]
Drawn = TypeVar("Drawn", Pool, FeatureMap)

_MOST_FEATURES = 700
_ROWS_PER_FEATURE = 10  # of all sites together
RIDGES = tuple(10.0 ** np.arange(-6.5, 0.1, 0.5))  # with less, a few rows far from all others decide
_VOTES_PER_FEATURE = 1.5  # of all sites together; several sites vote for the same
_FEWEST_VOTES = 5
_MOST_ROWS = 1000  # that a site votes by
_POOL_RATIO = 8
_MOST_CANDIDATES = 4500  # which the ratio falls for where features are many
_LEAST_POOL_RATIO = 2
_FEWEST_TO_HOLD_OUT = 5
_NEXT_TO = 0.01  # of the least held-out error
_PREDICTIONS_AT_ONCE = 1 << 10  # by each ratio: they stay in the cache


def agree_on_spreads(start: Start) -> Procedure[Array]:
    """Return the standard deviation of each column over all sites' rows by their weights, shape (n_columns,)."""
    if start.masking is not None and isinstance(start.scaling, Unscaled):
        raise SettingsError(
            "masks hide only numbers of known size, and unscaled columns can have any size: scale them, or give "
            "shared=None, local=None and column_scales=None"
        )
    tree, sample = (yield from start.tree()), start.rows.sample
    weight = 1.0 if sample.weight is None else sample.weight[:, None]
    own = sample.expansion * np.concatenate([(weight * sample.X).sum(axis=0), (weight * sample.X**2).sum(axis=0)])
    total = yield from tree.sum(own, lambda masks: 2.0**masks.rows)
    means, squares = np.split(total / max(tree.roster.n_counted, 1e-300), 2)
    return np.sqrt(np.maximum(squares - means**2, 0.0))


def bandwidth_of(spreads: Array) -> float:
    """Return a bandwidth for columns of these spreads: the root of their number times their mean.

    Columns that are the same everywhere do not count in the mean.

    Examples
    --------
    >>> bandwidth_of(np.array([0.1, 0.3, 0.0, 0.2]))
    0.4
    """
    there = spreads[spreads > 1e-9 * spreads.max(initial=0.0)]
    return float(np.round(np.sqrt(len(spreads)) * there.mean(), 12)) if there.size else 1.0


def shared_size(wanted: int | str, roster: Roster, n_columns: int, rows_per_feature: float) -> int:
    """Return the number of shared features: as wanted or, for "auto", by the rows of all sites.

    No more are taken than the site with the fewest rows sends sums of (`rows_per_feature`). Where there are more than
    columns, a constant and the raw columns come on top, and count there too.
    """
    auto = max(1, min(_MOST_FEATURES, roster.n_rows // _ROWS_PER_FEATURE))
    wanted = auto if isinstance(wanted, str) else wanted
    return int(max(1, min(wanted, _most_sent(roster.whole.fewest[0], n_columns, rows_per_feature))))


def _most_sent(n_rows: int, n_columns: int, rows_per_feature: float) -> float:
    """Return of how many shared features a site of `n_rows` rows sends sums, beside those that come on top."""
    most = longest_shortlist(n_rows, rows_per_feature)
    return most - n_columns - 1 if most > 2 * n_columns + 1 else min(most, n_columns)


def most_shared(wanted: int | str, n_rows: int, n_columns: int, rows_per_feature: float) -> int:
    """Return the most shared features, with those that come on top, that a site of `n_rows` rows sends sums of.

    Examples
    --------
    >>> most_shared("auto", 300, 4, 1.5), most_shared(20, 300, 4, 1.5), most_shared("auto", 10**6, 4, 1.5)
    (100, 25, 705)
    """
    wanted = _MOST_FEATURES if isinstance(wanted, str) else wanted
    size = int(max(1, min(wanted, _most_sent(n_rows, n_columns, rows_per_feature))))
    return size + n_columns + 1 if size > n_columns else size


@dataclass(frozen=True)
class Candidates:
    """What some features of a shared model are taken from: a pool that all sites draw alike."""

    purpose: str  # names the pool: each purpose has its own
    n_features: int  # as many are taken
    column_scales: tuple[tuple[float, ...], ...] = ()  # as `dekrr.selection.Chooser` has them
    rough: bool = True  # whether there are Laplacian candidates
    whole: bool = False  # whether all candidates depend on all columns; otherwise half of them depend on few
    voted: bool = True  # whether the sites vote; otherwise there are no more candidates than features
    max_rows: int = _MOST_ROWS  # the most rows that a site votes by

    def chooser(self, sigma: float, *, linear: bool) -> Mixed:
        """Return the choice from the pool."""
        ratio = max(_LEAST_POOL_RATIO, min(_POOL_RATIO, _MOST_CANDIDATES / self.n_features)) if self.voted else 1.0
        return Mixed(
            self.n_features,
            sigma=sigma,
            rough=self.rough,
            linear=linear,
            max_columns=None if self.whole else Mixed.max_columns,
            column_scales=self.column_scales,
            pool_ratio=ratio,
            max_rows=self.max_rows,
        )


def both_kinds(n_features: int, sets: Scales, of_whole: Scales) -> list[Candidates]:
    """Return the candidates of the shared part: half of mixed kinds in `sets`, half smooth and of all columns.

    The latter are in the scales `of_whole`; where there are none, neither are these.
    """
    n_whole = n_features // 2 if of_whole else 0
    kinds = [Candidates("shared part", n_features - n_whole, sets)]
    if n_whole:
        kinds.append(Candidates("smooth shared part", n_whole, of_whole, rough=False, whole=True))
    return kinds


def fit_shared(
    start: Start,
    run: Run,
    sigma: float,
    kinds: Sequence[Candidates],
    *,
    ridge: float | None = None,
    fold: int | None = None,
    ratio: float = NO_LEVEL,
) -> Procedure[SharedPart]:
    """Return a model of the rows of `start` that is the same at all sites, but for their levels.

    Where it has more features than there are columns, a constant and the raw columns come on top; where sites have
    levels, at least the constant. The bandwidth `sigma` is the same at all sites. With a `fold`, its rows are held out
    (`solve_held_out`); without one, the ridge is at least `ridge` (`solve_shared`). `ratio` is of the variances of
    noise and of levels.
    """
    linear = sum(kind.n_features for kind in kinds) > start.rows.n_columns
    maps: list[FeatureMap] = []
    voting = start if fold is None else replace(start, rows=held_out(start, run.settings, fold)[0])
    for kind in kinds:
        maps += [(yield from elect(voting, sigma, kind, linear=linear))]
    feature_map = _joined(tuple(maps), sigma if linear else None, not linear and run.settings.site_effect is not None)
    if fold is not None:
        part = yield from solve_held_out(start, run, feature_map, fold, ratio)
    else:
        part = yield from solve_shared(start, run, feature_map, ridge, ratio)
    if run.exchange.is_masked:
        reached, roster = start.site.kept.reached, (yield from start.roll.roster())
        best = min((one.shared.errors.min() for one in reached if one is not None), default=np.inf)
        if fold is None or part.errors.min() < best:
            reached.append(Outcome.without_agreed(roster, start.scaling, start.rows, part, start.site.admission))
    return part


def elect(start: Start, sigma: float, kind: Candidates, *, linear: bool) -> Procedure[FeatureMap]:
    """Return the features that all sites vote for, in a choice with the raw columns or without."""
    site, sample = start.site, start.rows.sample
    tree = yield from start.tree()
    chooser = _chooser(kind, sigma, linear)
    drawn = chooser, sample.n_columns, site.seed, kind.purpose
    pool = _pool(*drawn)
    n_candidates = pool.n_candidates
    if not kind.voted:
        return _kept(*drawn, np.arange(chooser.n_kept).tobytes())
    n_votes = max(_FEWEST_VOTES, math.ceil(_VOTES_PER_FEATURE * kind.n_features / tree.roster.n_sites))
    votes = np.zeros(n_candidates)
    if sample.n_rows:
        few = sample.take(slice(kind.max_rows))  # the same in every run: rows are in the order of their hashes
        taken, rng = min(n_votes, few.n_rows), site.rng(kind.purpose)
        votes = chooser.votes(pool, few.X, few.y, taken, rng, few.weight)
        votes *= sample.expansion * sample.weights.total / max(few.weights.total, 1e-300)
    form, n_outputs = SparseSums(n_candidates), math.prod(sample.y.shape[1:])
    if tree.masks is None:
        votes = form.of(votes)
    del pool  # the next one is drawn before all sites are through with this

    def elected(total: Array) -> Array:
        return chooser.elected(form.whole(total)).astype(float)

    def largest(masks: Masks) -> float:
        return float(2.0 ** (masks.rows + 2 * masks.responses) * max(1, n_outputs))

    told = yield from tree.result(
        votes, elected, chooser.n_kept, largest, form, single
    )  # which places of candidates fit in
    places = told.astype(np.intp)
    if not (np.all(told == places) and np.all(np.diff(places) > 0) and places[0] >= 0 and places[-1] < n_candidates):
        raise MessageError(f"site {tree.roster.parent!r} told of features that are no candidates", tree.roster.parent)
    return _kept(*drawn, places.tobytes())


# What all sites of a process compute alike is computed once: they are at the same step. Nobody may write to it.


@lru_cache(maxsize=4)
def _chooser(kind: Candidates, sigma: float, linear: bool) -> Mixed:
    return kind.chooser(sigma, linear=linear)


@lru_cache(maxsize=4)
def _pool(chooser: Mixed, n_columns: int, seed: int, purpose: str) -> Pool:
    """Return the pool that all sites draw alike."""
    return _read_only(chooser.draw_pool(n_columns, site_rng(seed, "", purpose)))


@lru_cache(maxsize=4)
def _kept(chooser: Mixed, n_columns: int, seed: int, purpose: str, places: bytes) -> FeatureMap:
    """Return the features that all sites elected."""
    return _read_only(_pool(chooser, n_columns, seed, purpose).keep(np.frombuffer(places, dtype=np.intp)))


@lru_cache(maxsize=4)
def _joined(maps: tuple[FeatureMap, ...], sigma: float | None, has_constant: bool) -> FeatureMap:
    """Return the features of all maps in one, with the raw columns for a given sigma."""
    joined = cosines_of(maps) if sigma is None else with_columns(maps, sigma)
    return _read_only(with_constant(joined) if has_constant else joined)


def _read_only(drawn: Drawn) -> Drawn:
    for array in (drawn.frequencies, drawn.phases, drawn.amplitudes):
        if array is not None:
            array.setflags(write=False)
    return drawn


def solve_shared(
    start: Start, run: Run, feature_map: FeatureMap, ridge: float | None, ratio: float, *, settled: bool = False
) -> Procedure[SharedPart]:
    """Return the ridge regression of all sites' rows, its ridge by generalised cross-validation, but at least `ridge`.

    Generalised cross-validation needs the sums alone. It takes too small a ridge where few rows far from all others
    have large responses. Where it is `settled`, the ridge is what is given.
    """

    at_root: list[Array] = []
    path = partial(_path, feature_map)

    def cautious(sums: OwnSums, n_counted: float, n_rows: int, n_levels: float) -> list[Ridge]:
        at_root.append(sums.gram)
        if not settled or ridge is None:
            best = min(path(RIDGES, sums, n_counted, n_rows, n_levels), key=lambda fit: fit.error)
            if ridge is None or ridge <= best.ridge:
                return [best]
        return path([ridge], sums, n_counted, n_rows, n_levels)

    least = RIDGES[0] if ridge is None else ridge
    (found,), levels = yield from _ridges_over_tree(start, run, feature_map, start.rows, cautious, 1, ratio, least)
    return SharedPart(feature_map, *found, gram=at_root[0] if at_root else None, ratio=ratio, of_site=levels)


def solve_held_out(start: Start, run: Run, feature_map: FeatureMap, fold: int, ratio: float) -> Procedure[SharedPart]:
    """Return the ridge regression whose ridge has the least error on a fold of the rows that is held out.

    Its `ratio` is for the models that follow: the one whose levels have the least error on the held-out rows.

    Where rows are not in memory, none are held out, and generalised cross-validation decides on the ridge. Levels of so
    many rows are judged by a sample of them.
    """
    rows, held = held_out(start, run.settings, fold)
    solve = partial(_path, feature_map, RIDGES)
    path, levels = yield from _ridges_over_tree(start, run, feature_map, rows, solve, len(RIDGES), ratio, RIDGES[0])
    tree = yield from start.tree()
    roster = tree.roster
    ratios = RATIOS if run.settings.site_effect == "auto" and roster.n_sites > 1 else (ratio,)
    most, n_outputs = MOST_SPANS * tree.largest_response, math.prod(held.y.shape[1:])
    sample = start.rows.sample
    judges = sample if sample.n_rows < start.rows.n_rows else held
    errors = errors_of(judges, feature_map, path, levels, ratios, most) * judges.expansion
    sizes = np.abs(errors[:, -1:] - errors)  # of what levels gain at this site
    of_held = errors[:, -1] if judges is held else np.zeros(len(path))
    told = np.concatenate([of_held, [held.weights.total], errors.ravel(), sizes.ravel()])
    largest_error = (most + tree.largest_response) ** 2 * max(1, n_outputs)
    total = yield from tree.sum(told, lambda masks: 2.0**masks.rows * largest_error, single)
    of_held, (n_held,), of_judges, of_sizes = np.split(total, np.cumsum([len(path), 1, errors.size]))
    errors, sizes = of_judges.reshape(errors.shape), of_sizes.reshape(errors.shape)
    gains = errors[:, -1:] - errors
    by_ridge = (of_held - gains.max(axis=1)) / n_held if n_held > 0 else np.array([fit.error for fit in path])
    best = int(np.argmin(by_ridge))
    chosen = largest_ratio(ratios, errors[best], sizes[best] / np.sqrt(roster.n_sites))
    return SharedPart(feature_map, *path[best], errors=by_ridge, ratio=chosen, of_site=levels)


def largest_ratio(ratios: Sequence[float], errors: Array, noise: Array) -> float:
    """Return the largest ratio whose held-out error is next to the least, or no level where none lowers it clearly.

    Levels take from the shared part what it can know of differences between sites, the more the smaller the ratio is. A
    row from elsewhere has no level. So levels hold no more than they must. Ratios ascend, and the last is that of no
    levels. An error must be below that one by its `noise`: about its standard error over sites.

    Examples
    --------
    >>> errors = np.array([2.0, 2.01, 2.3, 4.0])
    >>> largest_ratio((0.1, 1.0, 10.0, NO_LEVEL), errors, np.array([1.0, 1.0, 1.0, 0.0]))
    1.0
    >>> largest_ratio((0.1, 1.0, 10.0, NO_LEVEL), errors, np.array([3.0, 3.0, 3.0, 0.0]))
    inf
    """
    allowed = errors[-1] - errors >= noise
    allowed[-1] = True
    least = max(float(np.min(errors, where=allowed, initial=np.inf)), 0.0)
    near = allowed & (errors <= (1 + _NEXT_TO) * least)
    return ratios[int(np.flatnonzero(near if near.any() else allowed).max())]


def _path(
    feature_map: FeatureMap, ridges: Sequence[float], sums: OwnSums, n_counted: float, n_rows: int, n_levels: float
) -> list[Ridge]:
    if not has_constant(feature_map):
        return path_of(sums, n_counted, ridges, n_rows, n_levels)
    return path_with_intercept(sums, constant_of(feature_map), n_counted, ridges, n_rows, n_levels)


def _ridges_over_tree(
    start: Start,
    run: Run,
    feature_map: FeatureMap,
    rows: Rows,
    solve: Callable[[OwnSums, float, int, float], list[Ridge]],
    n_fits: int,
    ratio: float,
    least: float,
) -> Procedure[tuple[list[Ridge], LevelSums | None]]:
    """Return the `n_fits` regressions that the root solves from the sums over all sites' rows, and the site's own sums.

    Their ridges are at least `least`.
    The latter are what its level follows from; None where there is no constant among the features.
    """
    settings, tree = run.settings, (yield from start.tree())
    roster = tree.roster
    start.site.check_shared(rows, feature_map, settings)
    size, outputs = feature_map.n_features, start.rows.sample.y.shape[1:]
    shape, n_outputs = (size, *outputs), math.prod(outputs)
    levels: list[LevelSums] = []
    has_levels = settings.site_effect is not None
    counts_levels = ratio != NO_LEVEL and has_levels  # how many there are, as degrees of freedom
    room = room_of(least, size, roster) if tree.rounds else 0.0
    first = constant_of(feature_map) if tree.rounds and has_constant(feature_map) else 0
    form = BranchSums(size, size * n_outputs + 1 + counts_levels, room, first)
    # The sums of few rows are larger than the rows: each site makes them when it is its turn to send them.
    later = tree.masks is None and rows.n_rows < size
    as_factor = later and rows.n_rows <= form.most_rows and rows.expansion == 1

    def summed() -> Array:
        if as_factor:
            return factored()
        own, _ = accumulate(rows, feature_map, {})
        if has_levels:
            levels.append(LevelSums.of(own, feature_map, roster.mean_weight))
            own = levels[0].reduced(own, ratio)
        return form.of_gram(own.gram, beside(own.moment, own.response_energy))

    def factored() -> Array:
        features, responses = _weighted(rows, feature_map)
        if has_levels:
            levels.append(LevelSums.of_rows(features, responses, feature_map, roster.mean_weight))
            root = LevelSums.roots(features, feature_map)
            features, responses = (levels[0].reduced_rows(part, root, ratio) for part in (features, responses))
        return form.of_rows(features, beside(features.T @ responses, float(np.vdot(responses, responses))))

    def beside(moment: Array, energy: float) -> Array:
        return np.append(moment, [energy, *([levels[0].share(ratio)] if counts_levels else [])])

    def largest(masks: Masks) -> Array:
        bounds = largest_sums(feature_map, n_outputs, masks)
        if ratio != NO_LEVEL:  # what a level takes off the responses is no larger than they are
            bounds[:-1] *= 2.0
        return np.append(bounds, 1.0) if counts_levels else bounds

    def solved(total: Array) -> Array:
        gram, beside = form.whole(total)
        moment, energy = beside[: size * n_outputs], float(beside[size * n_outputs])
        sums = OwnSums(gram, moment.reshape(shape), energy)
        fits = solve(sums, max(roster.n_counted, 1e-300), roster.n_rows, float(beside[-1]) if counts_levels else 0.0)
        return np.concatenate([np.append(fit.coefficients.ravel(), [fit.ridge, fit.error]) for fit in fits])

    values, n_results = summed if later else summed(), n_fits * (size * n_outputs + 2)
    told = single if n_fits > 1 else Total  # one solution is few numbers, and what all sites have in the end
    result = yield from tree.result(values, solved, n_results, largest, form, told)
    fits = [Ridge(one[:-2].reshape(shape), float(one[-2]), float(one[-1])) for one in result.reshape(n_fits, -1)]
    return fits, levels[0] if levels else None


def _weighted(rows: Rows, feature_map: FeatureMap) -> tuple[Array, Array]:
    """Return the features and the responses of rows, multiplied by the roots of their weights."""
    blocks = list(rows.blocks(max(1, rows.n_rows)))
    features = np.concatenate([weighted_features(feature_map, block) for block in blocks])
    return features, np.concatenate([weighted_responses(block) for block in blocks])


def held_out(start: Start, settings: DeKRRSettings, fold: int) -> tuple[Rows, ArrayRows]:
    """Return the rows to fit, and those held out: a fold where all rows are in memory, otherwise none.

    A constant and the columns are among the features here and in the shared part, which has all rows. What the sums of
    both differ by is a sum over the held-out rows. So with `rows_per_feature` a site holds out none where that sum
    would be over too few rows, or where it would leave too few others.
    """
    sample = start.rows.sample
    if sample.n_rows < start.rows.n_rows or sample.n_rows < _FEWEST_TO_HOLD_OUT:
        return start.rows, sample.take(slice(0, 0))
    is_held = start.site.fold_of(FOLDS) == fold
    held = sample.take(is_held)
    in_both = sample.n_columns + 1
    if settings.rows_per_feature and start.site.neighbors:
        too_few = held.n_effective < settings.min_rows or not is_usual(held.n_rows, sample.n_rows, FOLDS)
        if too_few or in_both > longest_shortlist(held.n_effective, settings.rows_per_feature):
            return start.rows, sample.take(slice(0, 0))
    return sample.take(~is_held), held


def errors_of(
    held: ArrayRows,
    feature_map: FeatureMap,
    path: Sequence[Ridge],
    levels: LevelSums | None,
    ratios: Sequence[float],
    most: float,
) -> Array:
    """Return the squared error of each solution with the site's level by each ratio, shape (n_solutions, n_ratios).

    Predictions are cut to `most`.
    """
    features = feature_map(held.X)
    weights = np.ones(held.n_rows) if held.weight is None else held.weight
    weights = weights.reshape(-1, *[1] * (held.y.ndim - 1))
    errors = np.empty((len(path), len(ratios)))
    models = np.array([fit.coefficients for fit in path])
    of_path = np.moveaxis(np.tensordot(models, features, ((1,), (1,))), -1, 1)[:, None]
    at_once = max(1, _PREDICTIONS_AT_ONCE // max(held.n_rows, 1))
    for start in range(0, len(path), at_once):
        some = slice(start, start + at_once)
        predicted = of_path[some]
        if levels is not None:
            predicted = predicted + levels.levels(models[some], ratios)[:, :, None]
        squares = (np.clip(predicted, -most, most) - held.y) ** 2 * weights
        errors[some] = np.sum(squares.reshape(*squares.shape[:2], -1), axis=2)
    return errors


_LEAST = 0.01  # of the largest scale
_POWERS = (0.0, 0.5, 1.0)  # of the scales that candidates are drawn in
_MOST_ROWS_FOR_SCALES = 500  # that a site votes by
_MOST_WITHOUT = 0.5  # of the columns, that may not matter where candidates are drawn in equal scales
_MOST_RISE = 0.12  # of the held-out error without votes and features of few columns, for which there are more of such
_LEAST_FALL = 0.05  # of the held-out error, for which squares are taken


class Learnt(NamedTuple):
    """What the models that scales are learnt from tell."""

    # shape (n_columns,): a scale for each column, the largest 1; None where all count alike
    scales: Array | None = None
    # shape (n_columns,): the same for features that are smooth and depend on all columns; None where there should be
    # none
    of_whole: Array | None = None
    ridge: float | None = None  # the least ridge for what follows
    ratio: float = NO_LEVEL  # of the variances of noise and of sites' levels
    alpha: float = 0.0  # the least regularisation of the agreed part: the ridge that was best for models with levels


def agree_on_scales(
    start: Start, run: Run, wanted: str | Sequence[float] | None, n_features: int, sigma: float, spreads: Array
) -> Procedure[Learnt]:
    """Return a scale for each column, as the run `wanted` it, and what else was learnt with them.

    The model whose gradients are taken has `n_features` and the bandwidth `sigma`; `spreads` are the columns' standard
    deviations.
    """
    if isinstance(wanted, str):
        return (yield from learn_scales(start, run, n_features, sigma, spreads))
    scales: Array | None = None
    if wanted is not None:
        scales = np.asarray(wanted, dtype=float)
        if scales.shape != (start.rows.n_columns,):
            raise SettingsError(f"column_scales has {scales.size} numbers for {start.rows.n_columns} columns")
        scales = np.asarray(scales / scales.max())
    ratio = first_ratio(run.settings)
    if run.settings.shared is not None and run.settings.site_effect == "auto":
        for purpose in ("levels", "levels again"):
            kind = Candidates(
                purpose, n_features, candidate_scales(scales, spreads), rough=False, max_rows=_MOST_ROWS_FOR_SCALES
            )
            ratio = (yield from fit_shared(start, run, sigma, [kind], fold=1, ratio=ratio)).ratio
    return Learnt(scales, scales, None, ratio)


def learn_scales(start: Start, run: Run, n_features: int, sigma: float, spreads: Array) -> Procedure[Learnt]:
    """Return the scales that small models in turn find, and the ridge that was best for them."""

    def fitted(purpose: str, sets: Scales, fold: int, ratio: float) -> Procedure[SharedPart]:
        kind = Candidates(purpose, n_features, sets, rough=False, max_rows=_MOST_ROWS_FOR_SCALES)
        return fit_shared(start, run, sigma, [kind], fold=fold, ratio=ratio)

    first = yield from fitted("column scales", (), 0, first_ratio(run.settings))
    scales = yield from scales_of(start, first)
    second = yield from fitted("column scales again", candidate_scales(scales, spreads), 1, first.ratio)
    scales = yield from scales_of(start, second)
    third = yield from fitted("sharper column scales", candidate_scales(scales**2, spreads), 1, second.ratio)
    alone = candidate_scales(scales, spreads)[-1:]
    kind = Candidates("column scales of smooth features", n_features, alone, rough=False, whole=True, voted=False)
    smooth = yield from fit_shared(start, run, sigma, [kind], fold=1, ratio=second.ratio)
    of_whole: Array | None = None
    if smooth.errors.min() <= (1 + _MOST_RISE) * second.errors.min():
        of_whole = yield from scales_of(start, smooth)
    if third.errors.min() <= (1 - _LEAST_FALL) * second.errors.min():
        scales = (yield from scales_of(start, third)) ** 2
    ridge = best_ridge([model.errors for model in (first, second, third, smooth)])
    alpha = min(ridge, best_ridge([model.errors for model in (second, third, smooth)]))
    return Learnt(scales, of_whole, ridge, min(third.ratio, smooth.ratio), alpha)


def first_ratio(settings: DeKRRSettings) -> float:
    """Return the ratio of variances that a run starts from: no levels, unless it is given."""
    return float(settings.site_effect) if isinstance(settings.site_effect, int | float) else NO_LEVEL


def best_ridge(errors: Sequence[Array]) -> float:
    """Return the ridge with the least error in the mean over models, each relative to the model's least."""
    relative = [one / max(float(one.min()), np.finfo(float).tiny) for one in errors]
    return float(RIDGES[int(np.argmin(np.mean(relative, axis=0)))])


def scales_of(start: Start, model: SharedPart) -> Procedure[Array]:
    """Return the roots of the mean squared derivatives of a model over all rows, divided by the largest."""
    own = squared_gradients(start.rows.sample, model.feature_map, model.coefficients)

    def largest(masks: Masks) -> Array:
        bounds = largest_squared_gradients(model.feature_map, model.coefficients)
        return np.asarray(2.0**masks.rows * np.maximum(bounds, np.finfo(float).tiny))

    total = yield from (yield from start.tree()).sum(own, largest)
    roots = np.sqrt(np.maximum(total, 0.0))
    if not roots.max(initial=0.0) > 0:
        return np.ones_like(roots)
    return np.asarray(np.maximum(roots / roots.max(), _LEAST))


def candidate_scales(scales: Array | None, spreads: Array) -> Scales:
    """Return the column scales that candidates take turns in: none, half and all of what was learnt.

    Where most columns do not matter, no candidates are drawn in equal scales. The scales are brought to the same mean
    square over rows, by the `spreads` (standard deviations) of columns, so that a bandwidth means the same in all of
    them.

    Examples
    --------
    >>> candidate_scales(None, np.ones(2))
    ()
    >>> [tuple(round(s, 3) for s in one) for one in candidate_scales(np.array([1.0, 0.25]), np.ones(2))]
    [(1.0, 1.0), (1.265, 0.632), (1.372, 0.343)]
    >>> len(candidate_scales(np.array([1.0, 0.01]), np.ones(2)))
    2
    """
    if scales is None:
        return ()
    weights = spreads**2 if spreads.any() else np.ones_like(spreads)
    powers = _POWERS[1:] if np.mean(scales <= _LEAST) >= _MOST_WITHOUT else _POWERS
    sets = [scales**power for power in powers]
    return tuple(tuple((one / np.sqrt(np.average(one**2, weights=weights))).tolist()) for one in sets)
