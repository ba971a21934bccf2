"""The shared part: one model for all sites, on the same features, from sums over the spanning tree.

All sites draw the same pool from the run's seed. Each votes for the candidates that its own rows would take, with their
gains in a greedy selection. The votes are summed over the tree, and the candidates with the most are the features of
all. Half of them are of mixed kinds. The others are smooth and depend on all columns, in scales that such features
alone have found: these are better where responses have heavy tails. Then every site sums Z'Z, Z'y and y'y over its
rows. The sums go up the tree, the root solves the ridge regression of the pooled rows, and its coefficients come down.
No site but the root learns sums over all rows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import SettingsError
from ..features import FeatureMap
from ..privacy.proofs import site_rng
from ..privacy.rows_per_feature import check_leverages, check_rows_of_shared, longest_shortlist
from ..ridge import Ridge, path_of
from ..rows import ArrayRows, Rows
from ..scaling import Unscaled
from ..selection.mixed import Mixed, cosines_of, with_columns
from ..settings import DeKRRSettings
from ..statistics import OwnSums, accumulate, pack_symmetric, unpack_symmetric
from ..types import Array
from .masking import unit_of, unit_of_gram
from .outcome import Part
from .roster import Roster
from .run import Run
from .site import Procedure
from .spanning_tree import tree_result, tree_sum
from .stages import Start

Scales = tuple[tuple[float, ...], ...]

_MOST_FEATURES = 700
_ROWS_PER_FEATURE = 10  # of all sites together
RIDGES = tuple(10.0 ** np.arange(-6.5, -1.9, 0.5))  # with less, a few rows far from all others decide
_VOTES_PER_FEATURE = 1.5  # of all sites together; several sites vote for the same
_FEWEST_VOTES = 5
_MOST_ROWS = 1000  # that a site votes by
_POOL_RATIO = 8
_MOST_CANDIDATES = 4500  # which the ratio falls for where features are many
_LEAST_POOL_RATIO = 2
_FOLDS = 5  # one of which is held out
_FEWEST_TO_HOLD_OUT = 20
_MOST_SPANS = 4.0  # of responses, that predictions are cut to where errors are masked


def agree_on_spreads(start: Start) -> Procedure[Array]:
    """Return the standard deviation of each column over all sites' rows, shape (n_columns,)."""
    roster, sample = (yield from start.roll.roster()), start.rows.sample
    masks = None
    if start.masking is not None:
        if isinstance(start.scaling, Unscaled):
            raise SettingsError(
                "masks hide only numbers of known size, and unscaled columns can have any size: scale them, or give "
                "shared=None, local=None and column_scales=None"
            )
        masks = yield from start.masking.agreed()
    own = sample.expansion * np.concatenate([sample.X.sum(axis=0), (sample.X**2).sum(axis=0)])
    total = yield from tree_sum(start.site, roster, own, masks, 2.0**masks.rows if masks is not None else 1.0)
    means, squares = np.split(total / max(roster.n_rows, 1), 2)
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
    """What some features of a shared model are taken from: a pool that all sites draw alike.

    Parameters
    ----------
    purpose : str
        Names the pool: each purpose has its own.
    n_features : int
        As many are taken.
    column_scales : tuple of tuples of float
        As `dekrr.selection.Chooser` has them.
    rough : bool, default=True
        Whether there are Laplacian candidates.
    whole : bool, default=False
        Whether all candidates depend on all columns; otherwise half of them depend on few.
    voted : bool, default=True
        Whether the sites vote; otherwise there are no more candidates than features.
    max_rows : int
        The most rows that a site votes by.
    """

    purpose: str
    n_features: int
    column_scales: tuple[tuple[float, ...], ...] = ()
    rough: bool = True
    whole: bool = False
    voted: bool = True
    max_rows: int = _MOST_ROWS

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
    """Return the candidates of the shared part: half of mixed kinds, half smooth and of all columns.

    Parameters
    ----------
    n_features : int
    sets : tuple of tuples of float
        The column scales of the mixed kinds.
    of_whole : tuple of tuples of float
        Those of the others; where there are none, neither are these.
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
) -> Procedure[Part]:
    """Return a model that is the same at all sites.

    Where it has more features than there are columns, a constant and the raw columns come on top.

    Parameters
    ----------
    start : Start
        With the rows to fit.
    run : Run
    sigma : float
        The bandwidth, the same at all sites.
    kinds : sequence of Candidates
    ridge : float, optional
        See `solve_shared`.
    fold : int, optional
        See `solve_held_out`; without one, no rows are held out.
    """
    linear = sum(kind.n_features for kind in kinds) > start.rows.n_columns
    maps: list[FeatureMap] = []
    for kind in kinds:
        maps += [(yield from elect(start, sigma, kind, linear=linear))]
    feature_map = with_columns(maps, sigma) if linear else cosines_of(maps)
    if fold is not None:
        return (yield from solve_held_out(start, run, feature_map, fold))
    return (yield from solve_shared(start, run, feature_map, ridge))


def elect(start: Start, sigma: float, kind: Candidates, *, linear: bool) -> Procedure[FeatureMap]:
    """Return the features that all sites vote for, in a choice with the raw columns or without."""
    site, sample = start.site, start.rows.sample
    roster = yield from start.roll.roster()
    chooser = kind.chooser(sigma, linear=linear)
    pool = chooser.draw_pool(sample.n_columns, site_rng(site.seed, "", kind.purpose))
    if not kind.voted:
        return chooser.elected(pool, np.zeros(pool.n_candidates))
    n_votes = max(_FEWEST_VOTES, math.ceil(_VOTES_PER_FEATURE * kind.n_features / roster.n_sites))
    votes = np.zeros(pool.n_candidates)
    if sample.n_rows:
        taken = min(n_votes, sample.n_rows)
        votes = sample.expansion * chooser.votes(pool, sample.X, sample.y, taken, site.rng(kind.purpose))
    masks = (yield from start.masking.agreed()) if start.masking is not None else None
    largest = 1.0
    if masks is not None:
        largest = 2.0 ** (masks.rows + 2 * masks.responses) * max(1, math.prod(sample.y.shape[1:]))
    total = yield from tree_sum(site, roster, votes, masks, largest)
    return chooser.elected(pool, total)


def solve_shared(start: Start, run: Run, feature_map: FeatureMap, ridge: float | None) -> Procedure[Part]:
    """Return the ridge regression of all sites' rows, its ridge by generalised cross-validation, but at least `ridge`.

    Generalised cross-validation needs the sums alone. It takes too small a ridge where few rows far from all others
    have large responses.
    """

    at_root: list[Array] = []

    def cautious(sums: OwnSums, n_counted: float, n_rows: int) -> list[Ridge]:
        at_root.append(sums.gram)
        best = min(_path(sums, n_counted, n_rows), key=lambda fit: fit.error)
        return path_of(sums, n_counted, [ridge], n_rows) if ridge is not None and ridge > best.ridge else [best]

    (found,) = yield from _ridges_over_tree(start, run, feature_map, start.rows, cautious, 1)
    return Part(feature_map, *found, gram=at_root[0] if at_root else None)


def solve_held_out(start: Start, run: Run, feature_map: FeatureMap, fold: int) -> Procedure[Part]:
    """Return the ridge regression whose ridge has the least error on a fold of the rows that is held out.

    Where rows are not in memory, none are held out, and generalised cross-validation decides.
    """
    rows, held = held_out(start, run.settings, fold)
    path = yield from _ridges_over_tree(start, run, feature_map, rows, _path, len(RIDGES))
    roster = yield from start.roll.roster()
    masks = (yield from start.masking.agreed()) if start.masking is not None else None
    most, largest = np.inf, 1.0
    if masks is not None:
        responses = 2.0**masks.responses
        most = _MOST_SPANS * responses
        largest = 2.0**masks.rows * (most + responses) ** 2 * max(1, math.prod(held.y.shape[1:]))
    errors = errors_of(held, feature_map, np.array([fit.coefficients for fit in path]), most)
    total = yield from tree_sum(start.site, roster, np.append(errors, held.n_rows), masks, largest)
    found = total[:-1] / total[-1] if total[-1] >= 1 else np.array([fit.error for fit in path])
    best = path[int(np.argmin(found))]
    return Part(feature_map, best.coefficients, best.ridge, errors=found)


def _path(sums: OwnSums, n_counted: float, n_rows: int) -> list[Ridge]:
    return path_of(sums, n_counted, RIDGES, n_rows)


def _ridges_over_tree(
    start: Start,
    run: Run,
    feature_map: FeatureMap,
    rows: Rows,
    solve: Callable[[OwnSums, float, int], list[Ridge]],
    n_fits: int,
) -> Procedure[list[Ridge]]:
    """Return the `n_fits` regressions that the root of the tree solves from the sums over all sites' rows."""
    site, settings = start.site, run.settings
    roster = yield from start.roll.roster()
    check_rows_of_shared(site.name, rows.n_rows, feature_map, site.neighbors, settings.rows_per_feature)
    if settings.max_leverage < 1 and site.neighbors and rows.n_rows:
        check_leverages(site.name, rows, None, dict.fromkeys(site.neighbors, feature_map), settings.rows_per_feature)
    own, _ = accumulate(rows, feature_map, {}, settings.precision)
    size, shape, n_outputs = feature_map.n_features, own.moment.shape, own.moment.size // feature_map.n_features
    values = np.concatenate([pack_symmetric(own.gram), own.moment.ravel(), [own.response_energy]])
    masks = (yield from start.masking.agreed()) if start.masking is not None else None
    largest: Array | float = 1.0
    if masks is not None:
        of_rows, of_responses = 2.0**masks.rows, 2.0**masks.responses
        of_moment = of_rows * of_responses * np.repeat(np.abs(unit_of(feature_map)), n_outputs)
        of_gram = of_rows * np.abs(unit_of_gram(feature_map))
        largest = np.concatenate([of_gram, of_moment, [of_rows * of_responses**2 * n_outputs]])

    def solved(total: Array) -> Array:
        gram, moment, energy = np.split(total, [-own.moment.size - 1, -1])
        sums = OwnSums(unpack_symmetric(gram, size), moment.reshape(shape), float(energy[0]))
        fits = solve(sums, max(roster.n_counted, 1e-300), roster.n_rows)
        return np.concatenate([np.append(fit.coefficients.ravel(), [fit.ridge, fit.error]) for fit in fits])

    result = yield from tree_result(site, roster, values, solved, n_fits * (own.moment.size + 2), masks, largest)
    return [Ridge(one[:-2].reshape(shape), float(one[-2]), float(one[-1])) for one in result.reshape(n_fits, -1)]


def held_out(start: Start, settings: DeKRRSettings, fold: int) -> tuple[Rows, ArrayRows]:
    """Return the rows to fit, and those held out: a fold where all rows are in memory, otherwise none.

    A constant and the columns are among the features here and in the shared part, which has all rows. What the sums of
    both differ by is a sum over the held-out rows. So with `rows_per_feature` a site holds out none where that sum
    would be over too few rows.
    """
    sample = start.rows.sample
    if sample.n_rows < start.rows.n_rows or sample.n_rows < _FEWEST_TO_HOLD_OUT:
        return start.rows, sample.take(slice(0, 0))
    is_held = start.site.rng("held out").permutation(sample.n_rows) % _FOLDS == fold
    held = sample.take(is_held)
    in_both = sample.n_columns + 1
    if settings.rows_per_feature and start.site.neighbors:
        too_few = held.n_effective < settings.min_rows
        if too_few or in_both > longest_shortlist(held.n_effective, settings.rows_per_feature):
            return start.rows, sample.take(slice(0, 0))
    return sample.take(~is_held), held


def errors_of(held: ArrayRows, feature_map: FeatureMap, coefficients: Array, most: float) -> Array:
    """Return the squared error of each of several solutions, whose predictions are cut to `most`, shape (n,)."""
    features, weight = feature_map(held.X), held.weight
    weights = np.ones(held.n_rows) if weight is None else weight * held.n_rows / max(float(weight.sum()), 1e-300)
    residuals = [np.clip(features @ one, -most, most) - held.y for one in coefficients]
    return np.array([np.sum((residual.T**2) * weights) for residual in residuals])
