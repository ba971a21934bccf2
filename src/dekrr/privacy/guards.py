"""What a site refuses to a neighbour, whatever the neighbour says.

A neighbour that may choose its features freely can choose them so that sums give rows away: very high
frequencies turn a sum into a fingerprint of its rows, and more features than rows leave a null space that
only the rows fit. `docs/privacy.md` has both attacks with their figures.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from scipy import stats
from sklearn.base import clone

from ..errors import DataError, MessageError, SettingsError
from ..features import FeatureMap
from ..messages import Chosen
from ..rows import ArrayRows, Rows
from ..selection import LONG_WAVE, GreedySelector, Selector
from ..statistics import accumulate, weighted_features
from ..types import Array

MAX_MAPS = 64
ROWS_PER_FEATURE = 1.5
MAX_LEVERAGE = 0.8
_LEVERAGE_PASSES = 3
_ROWS_PER_BLOCK = 2048
_ROUNDING = 1e-12
_LARGEST_POOL = 1 << 30  # bytes of frequencies that a neighbour may have this site draw
_LARGEST_AMPLITUDE = 1e8  # a sampled feature's is 1 / sqrt(pool size times its chance)
_ONE_IN = 1e-12  # a frequency that an honest site draws less often than this is refused


@dataclass(frozen=True, eq=False)
class Ledger:
    """The maps that each neighbour has asked sums for in this run."""

    maps: dict[str, set[bytes]] = field(default_factory=dict)

    def admit(self, asked: Mapping[str, FeatureMap], most: int) -> None:
        """Note the maps asked for now, and refuse a neighbour's map number `most` + 1.

        Every further map is another set of equations for the same rows.
        """
        for neighbor, feature_map in asked.items():
            known = self.maps.setdefault(neighbor, set())
            known.add(fingerprint(feature_map))
            if len(known) > most:
                raise MessageError(
                    f"site {neighbor!r} asks for sums of its feature map number {len(known)} in this run; "
                    f"the most is max_maps={most}",
                    neighbor,
                )


def fingerprint(feature_map: FeatureMap) -> bytes:
    """Return a digest that two maps share only when they are equal."""
    digest = hashlib.sha256()
    for part in (feature_map.frequencies, feature_map.phases, feature_map.amplitudes):
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.digest()


def frequency_limit(selector: Selector, n_columns: int) -> float:
    """Return the longest frequency, |w|, that the agreed kernel draws but once in 10^12 draws.

    A candidate that looks at q of n columns has sqrt(n / q) times the kernel's frequencies in them: with a gaussian
    kernel its length is sqrt(n / q) chi_q, the longer the fewer columns. The laplacian kernel's frequencies have
    such heavy tails that its limit hardly limits; `verify_features` does.
    """
    narrowest = float(selector.sigma) * float(np.min(selector.bandwidths))
    shortest = LONG_WAVE if isinstance(selector, GreedySelector) and selector.linear else 0.0
    return max(_longest_of_unit(selector.kernel, selector.max_columns, n_columns) / narrowest, shortest)


@cache
def _longest_of_unit(kernel: str, max_columns: int | None, n_columns: int) -> float:
    each = _ONE_IN / n_columns
    if kernel == "laplacian":
        return float(np.sqrt(n_columns) * stats.cauchy.isf(each / 2))
    if kernel == "cauchy":
        return float(np.sqrt(n_columns) * stats.laplace.isf(each / 2))
    columns = np.arange(1, min(max_columns, n_columns) + 1) if max_columns else np.array([n_columns])
    return float(np.max(np.sqrt(n_columns / columns) * stats.chi.isf(_ONE_IN, columns)))


def check_frequencies(maps: Mapping[str, FeatureMap], limit: float) -> None:
    """Refuse maps with frequencies that no honest site draws from the agreed kernel."""
    for neighbor, feature_map in maps.items():
        longest = float(np.max(np.linalg.norm(feature_map.frequencies, axis=0), initial=0.0))
        if not longest <= limit:
            raise MessageError(
                f"site {neighbor!r} sent a frequency of length {longest:.4g}; the agreed kernel and bandwidth give "
                f"{limit:.4g} at most: it has another sigma, or it is after single rows",
                neighbor,
            )


def check_amplitudes(neighbor: str, amplitudes: Array) -> None:
    """Refuse amplitudes that no honest site has, and whose sums would overflow."""
    largest = float(np.max(np.abs(amplitudes), initial=0.0))
    if largest > _LARGEST_AMPLITUDE:
        raise MessageError(f"site {neighbor!r} sent an amplitude of {largest:.4g}, which no feature has", neighbor)


def check_rows(
    site: str,
    n_rows: int,
    own_map: FeatureMap,
    maps: Mapping[str, FeatureMap],
    rows_per_feature: float,
    n_lone: int = 0,
) -> None:
    """Refuse sums of more features than the site's rows, without those that are left out, can hide among.

    Where a site has fewer rows than there are features, its own and the neighbour's together, the sums have a null
    space that singles the rows out; just above that, directions with next to no weight still do.
    """
    for neighbor, feature_map in maps.items():
        features = own_map.n_features + feature_map.n_features
        if n_rows - n_lone < rows_per_feature * features:
            there = f"{n_rows} rows, {n_lone} of which stand alone," if n_lone else f"{n_rows} rows,"
            raise DataError(
                f"site {site!r} has {there} too few for sums of its {own_map.n_features} features and the "
                f"{feature_map.n_features} of site {neighbor!r}: from less than {rows_per_feature:g} rows a feature, "
                f"{int(np.ceil(rows_per_feature * features))} here, rows can be computed. Use fewer features, join the "
                "site to another, or lower rows_per_feature"
            )


def longest_shortlist(n_rows: int, rows_per_feature: float) -> float:
    """Return how many features of a shortlist a site of `n_rows` rows sends sums of.

    As many as a neighbour of equally many features may have, half of what it may ask for together with the site's own.
    """
    return np.floor(n_rows / (2 * rows_per_feature)) if rows_per_feature else np.inf


def check_rows_of_shortlists(site: str, n_rows: int, maps: Mapping[str, FeatureMap], rows_per_feature: float) -> None:
    """Refuse sums of a shortlist of more features than the site's rows can hide among; see `check_rows`."""
    for neighbor, feature_map in maps.items():
        if feature_map.n_features > longest_shortlist(n_rows, rows_per_feature):
            raise DataError(
                f"site {site!r} has {n_rows} rows, too few for sums of the {feature_map.n_features} features that site "
                f"{neighbor!r} has on its shortlist: from less than {2 * rows_per_feature:g} rows a feature rows that "
                "stand alone can be computed. Use fewer features, join the site to another, or lower rows_per_feature"
            )


def typical_rows(rows: ArrayRows, feature_map: FeatureMap, max_leverage: float) -> ArrayRows:
    """Return the rows with a leverage z(x)'(Z'Z)^-1 z(x) of at most `max_leverage`.

    A row of leverage 1 is alone in some direction of the features: sums with it say where it is. Rows that others hid
    behind show when those are gone, so that it is done three times; not more often, as few rows a feature would leave
    none.
    """
    return _trim(rows, feature_map, max_leverage)[0] if max_leverage < 1 else rows


class LoneRows:
    """Tells rows whose leverage by any of some maps is above `max_leverage`, and counts them.

    Leverages are those among the rows of the site's sample, without those that are lone there.

    Parameters
    ----------
    rows : Rows
    maps : sequence of FeatureMap
    max_leverage : float
        Below 1.

    Attributes
    ----------
    count : int
        How many were told so far.
    """

    def __init__(self, rows: Rows, maps: Sequence[FeatureMap], max_leverage: float) -> None:
        self.count = 0
        self._max_leverage = max_leverage
        self._whitenings = [_trim(rows.sample, feature_map, max_leverage)[1] for feature_map in maps]

    def __call__(self, features: Sequence[Array]) -> np.ndarray:
        """Return which rows of a block are lone, from their features by each map."""
        leverages = [_leverage(part, whitening) for part, whitening in zip(features, self._whitenings, strict=True)]
        lone = np.max(leverages, axis=0) > self._max_leverage
        self.count += int(np.count_nonzero(lone))
        return np.asarray(lone)


def _trim(rows: ArrayRows, feature_map: FeatureMap, max_leverage: float) -> tuple[ArrayRows, Array]:
    """Return the rows that are not lone, and the (Z'Z)^-1/2 that told; where all would be lone, none is.

    Features are brought to one length first: one of a large amplitude would pass off all others as rounding.
    """
    told = np.zeros((feature_map.n_features, feature_map.n_features))
    for _ in range(_LEVERAGE_PASSES):
        gram = accumulate(rows, feature_map, {})[0].gram / rows.expansion
        lengths = np.sqrt(np.diag(gram))
        lengths[lengths == 0] = 1.0
        values, vectors = np.linalg.eigh(gram / np.outer(lengths, lengths))
        whitening = vectors / np.sqrt(np.maximum(values, _ROUNDING * values[-1])) / lengths[:, None]
        leverages = [_leverage(weighted_features(feature_map, b), whitening) for b in rows.blocks(_ROWS_PER_BLOCK)]
        typical = np.concatenate(leverages) <= max_leverage
        if not typical.any():
            break
        told = whitening
        if typical.all():
            break
        rows = rows.take(typical)
    return rows, told


def _leverage(features: Array, whitening: Array) -> Array:
    return np.asarray(np.sum((features @ whitening.astype(features.dtype, copy=False)) ** 2, axis=1))


def site_rng(seed: int, name: str, purpose: str = "features") -> np.random.Generator:
    """Return the random numbers of the site called `name` for one purpose: a stream that anybody can redraw."""
    digest = hashlib.sha256(f"{purpose} {name}".encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8])])


def prove(selector: Selector, feature_map: FeatureMap, seed: int, name: str, n_neighbors: int) -> Chosen:
    """Return a site's choice as the pool's seed and the indices of its candidates.

    Parameters
    ----------
    selector : Selector
        With the site's own number of features.
    feature_map : FeatureMap
        What it chose from the pool that `site_rng(seed, name)` draws: its features, or a shortlist.
    seed : int
    name : str
    n_neighbors : int
    """
    pool = selector.draw_pool(feature_map.n_columns, site_rng(seed, name))
    places = {column.tobytes(): i for i, column in reversed(list(enumerate(_columns(pool.frequencies))))}
    try:
        indices = [places[column.tobytes()] for column in _columns(feature_map.frequencies)]
    except KeyError:
        raise SettingsError(
            f"site {name!r} has features that are not in the pool of the run's seed, so it cannot prove them; "
            "let a selector choose, or set verify_features=False"
        ) from None
    kept = pool.keep(np.array(indices[: len(indices) // pool.width]))
    empty = np.empty(0)
    same_phases = np.array_equal(kept.phases, feature_map.phases)
    same_amplitudes = np.array_equal(kept.amplitudes, feature_map.amplitudes)
    return Chosen(
        seed,
        int(selector.n_features),
        indices[: len(indices) // pool.width],
        empty if same_phases else feature_map.phases,
        empty if same_amplitudes else feature_map.amplitudes,
        n_neighbors,
    )


def redraw(selector: Selector, message: Chosen, seed: int, sender: str, n_columns: int) -> FeatureMap:
    """Return the map that `prove` stands for, drawing the sender's pool again."""
    if message.seed != seed:
        raise MessageError(
            f"site {sender!r} drew its pool with seed {message.seed}, not with the run's seed {seed}", sender
        )
    n_sent = len(message.indices) * selector.width
    if not n_sent:
        raise MessageError(f"site {sender!r} chose no features at all", sender)
    if not 0 < message.n_features <= n_sent or message.n_features % selector.width:
        raise MessageError(
            f"site {sender!r} sent {n_sent} features from a pool that it says is for {message.n_features}",
            sender,
        )
    bytes_of_pool = 8 * n_columns * message.n_features * selector.pool_ratio
    if message.n_features > selector.n_features and bytes_of_pool > _LARGEST_POOL:
        raise MessageError(f"site {sender!r} drew a pool for {message.n_features} features, too large to draw", sender)
    sized: Selector = clone(selector).set_params(n_features=message.n_features)
    pool = sized.draw_pool(n_columns, site_rng(seed, sender))
    if min(message.indices) < 0 or max(message.indices) >= pool.n_candidates:
        raise MessageError(f"site {sender!r} chose candidates outside its pool of {pool.n_candidates}", sender)
    chosen = np.asarray(message.indices, dtype=np.intp)
    kept = pool.keep(chosen)
    given = {"phases": message.phases, "amplitudes": message.amplitudes}
    for name, values in given.items():
        if values.shape not in ((0,), (kept.n_features,)):
            raise MessageError(f"site {sender!r} sent {values.size} {name} for {kept.n_features} features", sender)
    check_amplitudes(sender, message.amplitudes)
    return FeatureMap(
        kept.frequencies,
        message.phases if message.phases.size else kept.phases,
        message.amplitudes if message.amplitudes.size else kept.amplitudes,
    )


def _columns(frequencies: Array) -> Array:
    return np.ascontiguousarray(frequencies.T)
