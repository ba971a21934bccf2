"""What a site refuses to a neighbour, whatever the neighbour says.

A neighbour that may choose its features freely can choose them so that sums give rows away: very high
frequencies turn a sum into a fingerprint of its rows, and more features than rows leave a null space that
only the rows fit. `docs/privacy.md` has both attacks with their figures.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..errors import DataError, MessageError, SettingsError
from ..features import FeatureMap
from ..messages import Chosen
from ..rows import ArrayRows, Rows
from ..selection import Chooser
from ..statistics import weighted_features
from ..types import Array
from .admission import leverages, whiten

_ALONE = 0.8  # leverage among a map's features from which a row does not count as hidden
_LEVERAGE_PASSES = 3
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


def frequency_limit(selector: Chooser, n_columns: int) -> float:
    """Return the longest frequency, |w|, that the agreed chooser and kernel draw but once in 10^12 draws.

    Each kernel knows its own law; one that does not is refused. The laplacian kernel's frequencies have such heavy
    tails that its limit hardly limits; `verify_features` does.
    """
    return selector.longest_frequency(n_columns, _ONE_IN)


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
    own_map: FeatureMap | None,
    maps: Mapping[str, FeatureMap],
    rows_per_feature: float,
    n_lone: int = 0,
) -> None:
    """Refuse sums of more features than the site's rows, without those that stand alone, can hide among.

    Where a site has fewer rows than there are features, its own and the neighbour's together, the sums have a null
    space that singles the rows out; just above that, directions with next to no weight still do.
    """
    for neighbor, feature_map in maps.items():
        n_own = own_map.n_features if own_map is not None else 0
        features = n_own + feature_map.n_features
        if n_rows - n_lone < rows_per_feature * features:
            there = f"{n_rows} rows, {n_lone} of which stand alone," if n_lone else f"{n_rows} rows,"
            what = f"its {n_own} features and the {feature_map.n_features} of site {neighbor!r}"
            if own_map is None:
                what = f"the {feature_map.n_features} features that site {neighbor!r} has on its shortlist"
            raise DataError(
                f"site {site!r} has {there} too few for sums of {what}: from less than {rows_per_feature:g} rows a "
                f"feature, {int(np.ceil(rows_per_feature * features))} here, rows can be computed. Use fewer features, "
                "join the site to another, or lower rows_per_feature"
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


def check_rows_of_shared(
    site: str, n_rows: int, feature_map: FeatureMap, neighbors: Collection[str], rows_per_feature: float
) -> None:
    """Refuse sums of features that all sites share over too few rows; see `check_rows_of_shortlists`."""
    if neighbors and feature_map.n_features > longest_shortlist(n_rows, rows_per_feature):
        raise DataError(
            f"site {site!r} has {n_rows} rows, too few for sums of the {feature_map.n_features} features that all "
            f"sites share: from less than {2 * rows_per_feature:g} rows a feature rows can be computed. Use fewer "
            "features, join the site to another, or lower rows_per_feature"
        )


def check_leverages(
    site: str, rows: Rows, own_map: FeatureMap | None, maps: Mapping[str, FeatureMap], rows_per_feature: float
) -> None:
    """Refuse sums of features among which too many of the site's rows stand alone; see `check_rows`.

    A liar's map, or one of very many features, leaves most rows alone. Which rows are in sums does not depend on it: a
    site sends sums over all rows that it admits, or refuses.

    Parameters
    ----------
    site : str
    rows : Rows
    own_map : FeatureMap or None
        None where the sums are of a neighbour's shortlist alone.
    maps : mapping of neighbour to FeatureMap
    rows_per_feature : float
    """
    sample = rows.sample
    of_own = _stands_alone(sample, own_map) if own_map is not None else np.zeros(sample.n_rows, dtype=bool)
    share = rows.n_rows / max(rows.sample.n_rows, 1)
    for neighbor, feature_map in maps.items():
        alone = of_own | _stands_alone(sample, feature_map)
        n_lone = round(share * int(alone.sum()))
        check_rows(site, rows.n_rows, own_map, {neighbor: feature_map}, rows_per_feature, n_lone)


def _stands_alone(rows: ArrayRows, feature_map: FeatureMap) -> np.ndarray:
    """Return which rows have a leverage near 1 among features, shape (n_rows,); where all would, none does.

    Rows that others hid behind show when those are gone, so that it is done three times.
    """
    features = weighted_features(feature_map, rows.arrays())
    left = np.arange(rows.n_rows)
    for _ in range(_LEVERAGE_PASSES if rows.n_rows else 0):
        typical = leverages(features[left], whiten(features[left].T @ features[left])) <= _ALONE
        if typical.all() or not typical.any():
            break
        left = left[typical]
    return np.asarray(~np.isin(np.arange(rows.n_rows), left))


def site_rng(seed: int, name: str, purpose: str = "features") -> np.random.Generator:
    """Return the random numbers of the site called `name` for one purpose: a stream that anybody can redraw."""
    digest = hashlib.sha256(f"{purpose} {name}".encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8])])


def prove(selector: Chooser, feature_map: FeatureMap, seed: int, name: str, n_neighbors: int) -> Chosen:
    """Return a site's choice as the pool's seed and the indices of its candidates.

    Parameters
    ----------
    selector : Chooser
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
            "let a chooser choose from its pool, or set verify_features=False"
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


def redraw(selector: Chooser, message: Chosen, seed: int, sender: str, n_columns: int) -> FeatureMap:
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
    pool = selector.replace(n_features=message.n_features).draw_pool(n_columns, site_rng(seed, sender))
    if min(message.indices) < 0 or max(message.indices) >= pool.n_candidates:
        raise MessageError(f"site {sender!r} chose candidates outside its pool of {pool.n_candidates}", sender)
    chosen = np.asarray(message.indices, dtype=np.intp)
    kept = pool.keep(chosen)
    for name, values in (("phases", message.phases), ("amplitudes", message.amplitudes)):
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
