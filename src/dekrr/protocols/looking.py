"""Looking before summing: which site's rows look wrong, and whether the others are better off without it.

Every site has one vote, whatever its rows: the quartiles of the columns and of the response are those of the sites'
mean distribution, from rounded counts (`preparation`). One wrong site of many does not move them far. In
these units all sites sum a small model of smooth features over four fifths of their rows. The totals come down the
tree, so that each site can subtract its own sums, and solve for the model of all others. These models, one per site, go
to all sites, which measure them on the rows that were held out. From sums of these errors all sites know what every
site contributes: the error of the others with it and without it.

A site harms the others where, beyond chance, nearly all of them are better off without it, by a tenth of their error in
the mean; where the others' model explains less than half of its own response, which leaves the site little to lose; and
where its error by that model is far above what other sites have. Sites with functions of their own fail at least one
of these.

Under masks no site sees the sums of another one, and nobody can tell whether they are those of its rows: what is
measured at a site is what it says.

Between organisations that is too much to tell: from a model of all others, and the sums of all, much of a site's own
sums follows. There each site compares itself with all (`look_under_guards`). Sums that masks are to hide have to be
over one set of sites, so no site can be left out once they are formed; and what rows mixed up or other functions do to
the others remains unseen, until the others' own rows tell it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from ..features import FeatureMap
from ..parts.local import NO_LEVEL, LevelSums
from ..scaling import Scaling
from ..selection import Auto
from ..selection.greedy import with_columns
from ..settings import DeKRRSettings
from ..statistics import OwnSums, accumulate, pack_symmetric, path_of, unpack_symmetric
from ..tables.rows import LARGEST, ArrayRows
from ..types import Array, Block
from .dekrr import agreement_of, plan, start_of
from .masking import MOST_SPANS, Masks, largest_sums
from .preparation import ROOM, agree_on_quantiles
from .roll_call import RollCall, Roster
from .run import Start, weigh_rows
from .shared_part import (
    RIDGES,
    Candidates,
    agree_on_spreads,
    bandwidth_of,
    elect,
    held_out,
    shared_size,
)
from .site import FOLDS, Limits, Procedure, Site
from .spanning_tree import Tree, single, tree_of

FEWEST_SITES = 3  # of two sites nobody can tell which is wrong
_SHARES = (0.25, 0.1, 0.01, 0.001)  # outside either quartile; smaller ones where that leaves one value of a column
_ROOM_OF_RESPONSES = 3.0  # the same for responses that are not masked: harm is to show, but one row must not decide
_MOST_FEATURES = 60
_ROWS_PER_FEATURE = 4  # a model that is too small makes honest sites with other columns look harmful
_MANY_SITES = 50  # that hold out one fold alone
_RATIO = 10.0  # rows that a site's level is shrunk by
_MOST_COEFFICIENT = 2.0**20  # under masks
_LEAST_HARM = 0.1  # of the others' error
_LEAST_BETTER = 0.75  # of the others, that are better off without the site
_LEAST_Z = 3.0  # standard errors of what the others' held-out rows gain
_LEAST_USELESS = 0.5  # of the variance of the site's response, that the others' model leaves
_LEAST_OUTLYING = 3.0  # times the median over sites of the error by the others' model
_FEWEST_ALIKE = 3  # rows with one value far outside, that make a code
_LEAST_ALIKE = 0.01  # of the rows
_FAR = 100.0  # spreads from the quartiles
MANY_OF_SITES = 5  # more than one in so many that have far values: the column is like that
_ROOM_OF_LIMITS = 4.0  # spreads from the quartiles that far values are moved to
_OTHER_UNITS = 5.0  # times the spread
_MOST_SLOPE = -0.3  # of a response over what the others' model predicts, where its sign is changed
_MOST_CORRELATION = -0.4  # of both, where none of the others was asked
_MOST_TOLD = 3  # findings of a site
KINDS = {  # what other sites are told of a finding
    "code": "seems to have a code for missing values",
    "constant": "is constant",
    "units": "seems to be in other units",
    "shifted": "seems to be shifted",
    "sign": "seems to have another sign",
    "relation": "has little to do with the columns",
}


class Finding(NamedTuple):
    """What looks wrong at a site."""

    place: int  # of the column; -1 is the response, or the last of them
    text: str  # what it looks like, and a guess at the reason
    kind: str  # of `KINDS`


_AGAINST = Finding(-1, "falls where the others' rises: is its sign changed?", "sign")


class Contribution(NamedTuple):
    """What a site's rows do for all others."""

    # with_site, without_site: the squared error per held-out row of the other sites, with this site's sums and without,
    # by a small shared model. It is in units of the agreed spread of the response. The first is smaller where the site
    # helps.
    with_site: float
    without_site: float


@dataclass(frozen=True)
class Looked:
    """What a look tells a site, of all sites but for the findings."""

    # empty where there were too few sites, or too many, to tell what each contributes
    contributions: Mapping[str, Contribution] = field(default_factory=dict)
    harmful: str | None = None  # the site that harms the others most
    findings: tuple[Finding, ...] = ()  # what looks wrong at this site
    # shape (n_columns + n_outputs,): what to move values to that are far off; infinite where no site has such values
    limits: Limits | None = None
    # by site, the places and kinds of what sites tell each other of their findings, where they do so
    told: Mapping[str, tuple[tuple[int, str], ...]] = field(default_factory=dict)


class _Begun(NamedTuple):
    """What sites agree on at the beginning of a look: quartiles, units, and which values are far off."""

    whole: ArrayRows
    start: Start
    tree: Tree
    lower: Array
    upper: Array
    limits: Limits | None
    is_limited: np.ndarray

    @property
    def responses_vary(self) -> bool:
        return bool((self.upper > self.lower)[self.start.rows.n_columns :].all())

    def findings(self, *, of_response: bool = False, fewest: int = 1) -> Iterator[Finding]:
        ends = self.lower, self.upper
        return _findings(self.whole, *ends, self.is_limited, of_response=of_response, fewest=fewest)


class _Measured(NamedTuple):
    """Sums over the tree, each with an entry per site."""

    with_site: Array
    without_site: Array
    squares: Array
    n_better: Array
    n_others: Array
    n_rows_of_others: Array
    level_alone: Array
    by_others: Array
    n_rows: Array


def look(site: Site, settings: DeKRRSettings) -> Procedure[Looked]:
    """Return what is known of the rows of all sites, and of this site's, before any of them are in a model."""
    begun = yield from _begin(site, settings)
    if begun is None:
        return Looked()
    start, roster, limits = begun.start, begun.tree.roster, begun.limits
    site, findings = start.site, tuple(begun.findings())
    if not roster.names_all or not begun.responses_vary:
        return Looked(findings=findings, limits=limits)
    # Sums are over the rows that are not held out, which are fewest where a fold is as large as guards let it be.
    per_feature = settings.rows_per_feature / (1.0 - LARGEST / FOLDS)
    feature_map = yield from _features(start, roster, _MOST_FEATURES, per_feature, always_linear=True)
    # Sums without one fold and without another differ by sums over few rows, which guards would have to count.
    folds = range(FOLDS if roster.n_sites <= _MANY_SITES and not settings.rows_per_feature else 1)
    parts = [held_out(start, settings, fold) for fold in folds]
    for rows, _ in parts:
        site.check_shared(rows, feature_map, settings)
    tree = yield from start.tree()
    ratio = _RATIO if settings.site_effect is not None else NO_LEVEL
    levels, reduced = [], []
    for rows, _ in parts:
        own, _ = accumulate(rows, feature_map, {})
        levels.append(LevelSums.of(own, feature_map, roster.mean_weight))
        own = levels[-1].reduced(own, ratio)
        reduced.append([*pack_symmetric(own.gram), *own.moment.ravel(), own.response_energy, rows.weights.total])
    packed, shape = np.array(reduced), own.moment.shape
    largest = partial(_largest, feature_map, site.rows.n_outputs)
    total = yield from tree.sum(packed, lambda masks: np.tile(2.0 * largest(masks), len(parts)), single)
    names = tuple(sorted(roster.rows))
    place = names.index(site.name)
    told = np.zeros((len(names), len(parts), own.moment.size))
    told[place] = [_solved(each, shape).ravel() for each in total - packed]
    told = np.clip(told, -_MOST_COEFFICIENT, _MOST_COEFFICIENT)
    without = yield from tree.sum(told, _MOST_COEFFICIENT, single)
    most = MOST_SPANS * tree.largest_response
    n_outputs, fitted = site.rows.n_outputs, []
    for k, (_, held) in enumerate(parts):
        of_all = np.frombuffer(_solved_once(total[k].tobytes(), shape)).reshape(shape)
        models = np.array([np.zeros(shape), of_all, *without[:, k].reshape(-1, *shape)])
        features = feature_map(held.X)
        by_models = np.array([features @ model for model in models]) + levels[k].levels(models, [ratio])
        fitted.append(by_models.reshape(len(models), held.n_rows, n_outputs))
    predicted = np.concatenate(fitted, axis=1)
    y = np.concatenate([held.y.reshape(held.n_rows, n_outputs) for _, held in parts])
    weights = np.concatenate([np.ones(held.n_rows) if held.weight is None else held.weight for _, held in parts])
    errors = ((np.clip(predicted, -most, most) - y) ** 2).sum(axis=2) * weights
    largest_gain = (most + tree.largest_response) ** 4 * n_outputs**2
    found = _Measured(
        *(yield from tree.sum(_told(errors, place), lambda masks: 2.0**masks.rows * largest_gain, single))
    )
    harmful = _harmful(found)
    if harmful == place:
        findings = tuple(begun.findings(of_response=True)) or (_of_relation(predicted[2 + place], y),)
    per_row = np.maximum(found.n_rows_of_others, 1.0)
    errors = zip((found.with_site / per_row).tolist(), (found.without_site / per_row).tolist(), strict=True)
    contributions = {name: Contribution(*pair) for name, pair in zip(names, errors, strict=True)}
    return Looked(contributions, None if harmful is None else names[harmful], findings, limits)


def look_under_guards(site: Site, settings: DeKRRSettings, *, has_codes: bool = False) -> Procedure[Looked]:
    """Return what looks wrong at this site beside all, in its own words, and what other sites tell of theirs.

    What is told is counts, one sum over the rows of all sites, from which each takes its own, and for each of a site's
    findings the column and the kind. Responses may be codes of classes (`has_codes`), which have no units.
    """
    begun = yield from _begin(site, settings)
    if begun is None:
        return Looked()
    site, roster, n_outputs = begun.start.site, begun.tree.roster, begun.start.rows.n_outputs
    findings = [
        one
        for one in begun.findings(of_response=True, fewest=settings.min_rows)
        if one.place >= 0 or not has_codes or one.kind == "constant"
    ]
    if begun.responses_vary and roster.whole.fewest[0] >= settings.min_rows:
        is_against = yield from _is_against(begun, settings)
        if is_against and all(one.place >= 0 for one in findings):
            findings.append(_AGAINST)
    names, kinds = tuple(sorted(roster.rows)), tuple(KINDS)
    told = np.zeros((len(names), _MOST_TOLD))
    for i, one in enumerate(findings[:_MOST_TOLD]):
        told[names.index(site.name), i] = 1 + kinds.index(one.kind) + len(kinds) * (one.place + n_outputs)
    most = float(len(kinds) * (site.rows.n_columns + n_outputs))
    total = np.rint((yield from begun.tree.sum(told, most)))
    heard: dict[str, tuple[tuple[int, str], ...]] = {}
    for name, own in zip(names, total, strict=True):
        places = [divmod(int(one) - 1, len(kinds)) for one in own if 1 <= one <= most]
        if places:
            heard[name] = tuple((place - n_outputs, kinds[kind]) for place, kind in places)
    return Looked(findings=tuple(findings), limits=begun.limits, told=heard)


def _begin(site: Site, settings: DeKRRSettings) -> Procedure[_Begun | None]:
    run = plan(Auto(1), settings)  # what it says of masks and guards is asked for here alone
    whole = site.rows.sample
    site = site.withholding(run.max_leverage).in_order()
    roll = RollCall(site)
    roster = yield from roll.roster()
    site.enter("looking at rows")
    if roster.n_sites < FEWEST_SITES:
        return None
    if run.settings.weighted:
        yield from weigh_rows(site, roll)
    agreement = agreement_of(site, roll, run)
    tree = yield from tree_of(roll, agreement)
    lower, upper = yield from _quartiles(site, tree, settings.min_rows)
    spread = upper - lower
    rooms = np.full(len(lower), ROOM)
    rooms[site.rows.n_columns :] = _ROOM_OF_RESPONSES if tree.masks is None else 1.0
    ends = lower - spread, upper + spread
    rooms = rooms * (ends[1] - ends[0])
    start = start_of(site, Scaling(*ends, (ends[0] - rooms, ends[1] + rooms)), roll, agreement)
    limits, is_limited = yield from _limits(tree, whole, settings.min_rows, lower, upper)
    return _Begun(whole, start, tree, lower, upper, limits, is_limited)


def _is_against(begun: _Begun, settings: DeKRRSettings) -> Procedure[bool]:
    """Return whether this site's responses fall where those of the others rise, beyond chance.

    Let G be the sum of all sites' squares and products, and m that of all others' products with the response. Then
    G^-1 m predicts for this site's rows what the others' rows add to a model of all: little where they have none, so
    that nothing is extrapolated. Each site's responses are in its own units, so that none counts for more by them.
    """
    start, roster, wanted = begun.start, begun.tree.roster, settings.shared
    most = min(_MOST_FEATURES, wanted) if isinstance(wanted, int) else _MOST_FEATURES
    feature_map = yield from _features(start, roster, most, settings.rows_per_feature)
    low, middle, high = np.quantile(start.rows.sample.y, [0.25, 0.5, 0.75], axis=0)
    unit = np.where(high > low, high - low, np.inf)

    def in_own_units(block: Block) -> Block:
        return block._replace(y=np.clip((block.y - middle) / unit, -1.0, 1.0))

    rows = start.rows.mapped(in_own_units)
    start.site.check_shared(rows, feature_map, settings)
    own, _ = accumulate(rows, feature_map, {})
    packed = np.array([*pack_symmetric(own.gram), *own.moment.ravel(), own.response_energy, rows.weights.total])
    total = yield from (yield from start.tree()).sum(packed, partial(_largest, feature_map, rows.n_outputs))
    sums, count = _unpacked(total, own.moment.shape)
    ridge = min(path_of(sums, count, RIDGES), key=lambda fit: fit.error).ridge
    (of_others,) = path_of(replace(sums, moment=sums.moment - own.moment), count, [ridge])
    fitted = feature_map.apply(rows.sample.X, of_others.coefficients)
    fitted, y = (part.reshape(len(part), -1) - part.mean(axis=0).ravel() for part in (fitted, rows.sample.y))
    norms = np.linalg.norm(fitted, axis=0) * np.linalg.norm(y, axis=0)
    correlations = (fitted * y).sum(axis=0) / np.maximum(norms, np.finfo(float).tiny)
    return bool((correlations <= min(_MOST_CORRELATION, -_LEAST_Z / np.sqrt(max(len(y), 1)))).any())


def _features(
    start: Start, roster: Roster, most: int, rows_per_feature: float, *, always_linear: bool = False
) -> Procedure[FeatureMap]:
    """Return smooth features that all sites draw alike; with the columns where these are fewer, or always."""
    sigma = bandwidth_of((yield from agree_on_spreads(start)))
    wanted = max(1, min(most, roster.n_rows // _ROWS_PER_FEATURE))
    n_features = shared_size(wanted, roster, start.rows.n_columns, rows_per_feature)
    linear = always_linear or n_features > start.rows.n_columns
    drawn = yield from elect(start, sigma, Candidates("looking", n_features, rough=False, voted=False), linear=linear)
    return with_columns([drawn], sigma) if linear else drawn


def _largest(feature_map: FeatureMap, n_outputs: int, masks: Masks) -> Array:
    """Return public bounds of a site's packed sums, and of the weight of their rows."""
    return np.append(largest_sums(feature_map, n_outputs, masks), 2.0**masks.rows)


def _limits(
    tree: Tree, whole: ArrayRows, min_rows: int, lower: Array, upper: Array
) -> Procedure[tuple[Limits | None, np.ndarray]]:
    """Return limits of the columns and responses of which few sites have values that are far off, and which these are.

    Where no site has such values, there are no limits; where many have, they are nothing to tell. Rows count, withheld
    ones too, where they are as many as may be told of; fewer are clipped as the bounds of a run have it.
    """
    room = upper - lower

    def n_far(rows: ArrayRows) -> np.ndarray:
        values = np.column_stack([rows.X, rows.y])
        return np.asarray(((values < lower - _FAR * room) | (values > upper + _FAR * room)).sum(axis=0))

    is_far = (n_far(whole) >= max(min_rows, 1)) & (room > 0)
    n_sites = np.rint((yield from tree.sum(is_far.astype(float))))
    is_limited = (n_sites > 0) & (n_sites <= max(1, tree.roster.n_sites // MANY_OF_SITES))
    if not is_limited.any():
        return None, is_limited
    room = np.where(is_limited, _ROOM_OF_LIMITS * room, np.inf)
    return (lower - room, upper + room), is_limited


def _quartiles(site: Site, tree: Tree, min_rows: int) -> Procedure[tuple[Array, Array]]:
    """Return bounds that leave out a quarter of the rows on either side, or less where these are equal."""
    fewest = max(min_rows, min(10, site.n_rows // 10))
    lower, upper = yield from agree_on_quantiles(site.rows.sample, tree, fewest, share=_SHARES[0], of_sites=True)
    for share in _SHARES[1:]:
        is_one = lower == upper
        if not is_one.any():
            break
        wider = yield from agree_on_quantiles(site.rows.sample, tree, fewest, share=share, of_sites=True)
        lower, upper = np.where(is_one, wider[0], lower), np.where(is_one, wider[1], upper)
    return lower, upper


def _solved(packed: Array, shape: tuple[int, ...]) -> Array:
    """Return the coefficients of the ridge regression of some sums, its ridge by generalised cross-validation."""
    return min(path_of(*_unpacked(packed, shape), RIDGES), key=lambda fit: fit.error).coefficients


def _unpacked(packed: Array, shape: tuple[int, ...]) -> tuple[OwnSums, float]:
    """Return sums, and the weight of their rows."""
    gram, moment, (energy, count) = np.split(packed, [-int(np.prod(shape)) - 2, -2])
    return OwnSums(unpack_symmetric(gram, shape[0]), moment.reshape(shape), float(energy)), max(float(count), 1.0)


@lru_cache(maxsize=2 * FOLDS)
def _solved_once(packed: bytes, shape: tuple[int, ...]) -> bytes:
    """Return what is solved of the sums over all sites: once for all sites of a process."""
    return _solved(np.frombuffer(packed), shape).tobytes()


def _told(errors: Array, place: int) -> Array:
    """Return what a site tells of its held-out rows' errors, shape (2 + n_sites, n_rows); see `_Measured`.

    They are by its level alone, by the model of all sites, and by the models without each of them.
    """
    n_sites, n_rows = len(errors) - 2, errors.shape[1]
    is_other = (np.arange(n_sites) != place).astype(float)
    gains = errors[1] - errors[2:]
    own = np.zeros((3, n_sites))
    own[:, place] = errors[0].sum(), errors[2 + place].sum(), n_rows
    others = [
        np.full(n_sites, errors[1].sum()),
        errors[2:].sum(axis=1),
        (gains**2).sum(axis=1),
        gains.sum(axis=1) > 0,
        np.full(n_sites, n_rows > 0),
        np.full(n_sites, n_rows),
    ]
    return np.concatenate([is_other * np.array(others, dtype=float), own])


def _harmful(found: _Measured) -> int | None:
    """Return the place of the site that harms the others most, where one does; see above."""
    tiny = np.finfo(float).tiny
    gains = found.with_site - found.without_site
    by_others = found.by_others / np.maximum(found.n_rows, 1.0)
    there = found.n_rows > 0
    usual = max(float(np.median(by_others[there])) if there.any() else 0.0, tiny)
    harms = gains / np.maximum(found.without_site, tiny)
    is_harmful = (
        there
        & (harms >= _LEAST_HARM)
        & (gains >= _LEAST_Z * np.sqrt(found.squares))
        & (found.n_better >= _LEAST_BETTER * found.n_others)
        & (found.by_others >= _LEAST_USELESS * found.level_alone)
        & (by_others >= _LEAST_OUTLYING * usual)
    )
    return int(np.argmax(np.where(is_harmful, harms, -np.inf))) if is_harmful.any() else None


def _findings(
    rows: ArrayRows, lower: Array, upper: Array, is_limited: np.ndarray, *, of_response: bool = False, fewest: int = 1
) -> Iterator[Finding]:
    """Yield what of a site's columns is far from what sites agree on, and of its responses, where it is asked for.

    What fewer than `fewest` rows say makes no finding and hides none: others are told of it.
    """
    values = np.column_stack([rows.X, rows.y])
    n_columns = rows.n_columns
    for i in np.flatnonzero(upper > lower) if rows.n_rows else ():
        own, place = values[:, i], int(i if i < n_columns else i - len(lower))
        if not is_limited[i] and not (of_response and place < 0):
            continue
        spread, middle = upper[i] - lower[i], (upper[i] + lower[i]) / 2
        low, median, high = np.quantile(own, [0.25, 0.5, 0.75])
        ratio = (high - low if place < 0 else max(high - low, abs(median - middle))) / spread
        codes, counts = np.unique(own[np.abs(own - middle) > _FAR * spread], return_counts=True)
        most = int(counts.max(initial=0))
        if max(_FEWEST_ALIKE, fewest, _LEAST_ALIKE * len(own)) <= most < len(own) / 2:
            text = f"is {codes[counts.argmax()]:.10g} in {most} of {len(own)} rows: a code for missing?"
            yield Finding(place, text, "code")
        elif place < 0 and (unlike := int((own != median).sum())) < fewest:
            share = f"{len(own) - unlike} of" if unlike else "all"
            yield Finding(place, f"is {median:.6g} in {share} {len(own)} rows: is it constant?", "constant")
        elif ratio >= _OTHER_UNITS or (place < 0 and 0 < ratio <= 1 / _OTHER_UNITS):
            yield Finding(place, f"is about {_rounded(ratio)} times the others': other units?", "units")
        elif place < 0 and abs(median - middle) > _OTHER_UNITS * spread:
            text = f"is about {median:.3g} where the others' is about {middle:.3g}: is it shifted?"
            yield Finding(place, text, "shifted")


def _rounded(ratio: float) -> str:
    return f"{float(f'{ratio:.1g}'):,.10g}"


def _of_relation(fitted: Array, y: Array) -> Finding:
    """Return how the response of a site that harms the others relates to what they would predict for it."""
    fitted, y = fitted - fitted.mean(axis=0), y - y.mean(axis=0)
    slope = float(np.vdot(fitted, y)) / max(float(np.vdot(fitted, fitted)), np.finfo(float).tiny)
    if slope < _MOST_SLOPE:
        return _AGAINST
    return Finding(-1, "has little to do with the columns as the others' has: are rows mixed up?", "relation")
