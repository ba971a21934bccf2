"""Which rows of a site may be in sums that leave it: a rule that is made once, before the first message.

Any two sums over sets of rows that differ by few rows give those rows away: their difference is a sum over those few.
So a row must be in all sums that leave its site, or in none: of shortlists and choices, of folds and of all rows,
before and after the loss of a site, of one run and the next. The rule is therefore a function of a row alone. It is
learnt from the site's own rows and knows nothing of a run's features or neighbours. A deployment keeps it on disk, for
later runs and later rows.

A row is withheld where it stands alone: where its leverage z(x)'(Z'Z)^-1 z(x) among reference features z is above a
limit. Those are plain random waves of several lengths, with at least three rows a feature. A single sum with such a row
tells where it is. A withheld row has no part in any sum over features that leaves the site: neither in sums for
neighbours nor in the site's own sums, because coefficients show those. What sites tell about raw columns, before
features are drawn, counts all rows: which of them stand alone is known only when columns are numbers.

Few rows can stand alone together. Where a column has few different values, features of it alone make up the indicator
of each value; a word of a raw column, and no value, have an indicator of their own. A target is an indicator already:
products with it are sums over the rows of that value. So a site withholds rows with a value that too few rows have, too
(`rare_values`), in a deployment.

**What a site refuses because it has too few rows for the features of a sum.**

More features than rows leave a null space that only the rows fit. `docs/explanation/privacy-evidence.md` has the attack
with its figures.

**What a site refuses of the maps that neighbours send: too many, too long frequencies, too large amplitudes.**

A neighbour that may choose its features freely can choose them so that sums give rows away: very high frequencies turn
a sum into a fingerprint of its rows. `docs/explanation/privacy-evidence.md` has the attack with its figures.

A neighbour proves that its features come from the agreed pool by its seed and the indices of the chosen candidates.
"""

import hashlib
import hmac
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..disk import replacing
from ..errors import DataError, MessageError, SettingsError
from ..features import FeatureMap
from ..messages import Chosen
from ..scaling import Scaling
from ..selection import Chooser, Plain
from ..statistics import OwnSums, weighted_features
from ..tables.rows import ArrayRows, Rows
from ..types import Array

_REFERENCE = Plain(sigma=1.0, bandwidths=(1.0, 2.0, 4.0, 8.0), max_columns=4)
_ROWS_PER_FEATURE = 3
_MOST_FEATURES = 512
_PASSES = 3
_ROUNDING = 1e-12
_MOST_VALUES = 20  # of a column that a sum over the rows of one value can be worked out for


AnyAdmission = Callable[[Array], np.ndarray]
"""Tells for rows in their own units which of them are admitted, shape (n_rows,)."""


@dataclass(frozen=True, eq=False)
class Admission:
    """Tells for each row whether it may be in sums."""

    bounds: Scaling  # the site's own smallest and largest values: the units of the reference features
    reference: FeatureMap
    # shape (n_features, n_features): (Z'Z)^-1/2 over the rows that are admitted, of the rows that the rule was learnt
    # from
    whitening: Array
    max_leverage: float
    # the places of the rule's columns in the rows that it is asked about, where they come in another order
    order: np.ndarray | None = None

    def __call__(self, X: Array) -> np.ndarray:
        """Return which rows are admitted, shape (n_rows,), from rows in their own units."""
        ordered = X if self.order is None else X[:, self.order]
        return leverages(self.reference(self.bounds.rows(ordered)), self.whitening) <= self.max_leverage

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the rule to a file for its owner's eyes alone; it holds sums over the site's rows."""
        tensors = {
            "lower": self.bounds.lower,
            "upper": self.bounds.upper,
            "frequencies": self.reference.frequencies,
            "phases": self.reference.phases,
            "amplitudes": self.reference.amplitudes,
            "whitening": self.whitening,
            "max_leverage": np.array([self.max_leverage]),
        }
        with replacing(Path(path), durable=True) as temporary:
            try:
                save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, temporary)
            except SafetensorError as error:
                raise DataError(f"{path} cannot be written, and nothing is sent without it: {error}") from None


def learn(rows: ArrayRows, max_leverage: float) -> Admission:
    """Return the rule that a site's rows, or a sample of them, give; a leverage of 1 admits all of these.

    Rows that others hid behind show when those are gone, so that it is done three times; not more often, as that would
    leave none. The same rows give the same rule.
    """
    n_features = min(_MOST_FEATURES, 1 << (max(2, rows.n_rows // _ROWS_PER_FEATURE).bit_length() - 1))
    reference = _REFERENCE.replace(n_features=n_features).select(
        np.empty((0, rows.n_columns)), np.empty(0), np.random.default_rng(0)
    )
    features = reference(rows.bounds.rows(rows.X))
    told, kept = np.zeros((n_features, n_features)), features
    for _ in range(_PASSES):
        whitening = whiten(kept.T @ kept)
        admitted = leverages(kept, whitening) <= max_leverage
        if not admitted.any():
            break
        told, kept = whitening, kept[admitted]
        if admitted.all():
            break
    return Admission(rows.bounds, reference, told, max_leverage)


def rare_values(columns: Iterable[np.ndarray], inside: np.ndarray, fewest: Sequence[int]) -> np.ndarray:
    """Return the rows with a value that fewer than `fewest` rows have, in a column of few values; shape (n_rows,).

    Columns are those of rows, targets and weights, each with its own number; one number is for all. The rows `inside`
    would be in sums.

    Examples
    --------
    >>> rare_values([np.array([0.0, 0.0, 0.0, 1.0])], np.ones(4, dtype=bool), fewest=[2])
    array([False, False, False,  True])
    """
    columns, rare = list(columns), np.zeros(len(inside), dtype=bool)
    needs = list(fewest) if len(fewest) > 1 else list(fewest) * len(columns)
    while True:  # a value can become rare when rows are withheld for another
        left = np.flatnonzero(inside & ~rare)
        for values, need in zip(columns, needs, strict=True):
            _, places, counts = np.unique(values[left], return_inverse=True, return_counts=True)
            if 1 < len(counts) <= _MOST_VALUES:
                rare[left] |= counts[places] < need
        if not rare[left].any():
            return rare


def kept(path: Path, make: Callable[[], Admission], n_columns: int) -> Admission:
    """Return the rule in a file, or the one that is made now and written there before it is used."""
    if not path.exists():
        made = make()
        made.save(path)
        return made
    try:
        with safe_open(path, framework="numpy") as file:
            parts = {name: np.asarray(file.get_tensor(name), dtype=float) for name in file.keys()}  # noqa: SIM118
        reference = FeatureMap(parts["frequencies"], parts["phases"], parts["amplitudes"])
        bounds = Scaling(parts["lower"], parts["upper"])
        found = Admission(bounds, reference, parts["whitening"], float(parts["max_leverage"][0]))
        fits = found.reference.n_columns == n_columns < len(found.bounds.lower)  # and the targets
    except (SafetensorError, OSError, KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(f"{path} says which rows may be in sums, and cannot be read: {error}; restore it") from None
    if not fits:
        raise DataError(f"{path} is about rows of {found.reference.n_columns} columns, not of {n_columns}")
    return found


def whiten(gram: Array) -> Array:
    """Return (Z'Z)^-1/2 from Z'Z.

    Features are brought to one length first: one of a large amplitude would pass off all others as rounding.
    """
    lengths = np.sqrt(np.diag(gram))
    lengths[lengths == 0] = 1.0
    values, vectors = np.linalg.eigh(gram / np.outer(lengths, lengths))
    return np.asarray(vectors / np.sqrt(np.maximum(values, _ROUNDING * values[-1])) / lengths[:, None])


def leverages(features: Array, whitening: Array) -> Array:
    """Return z'(Z'Z)^-1 z of each row's features, shape (n_rows,)."""
    return np.asarray(np.sum((features @ whitening.astype(features.dtype, copy=False)) ** 2, axis=1))


_ALONE = 0.8  # leverage among a map's features from which a row does not count as hidden


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
                f"site {site!r} has {there} too few for sums of {what}: with fewer than {rows_per_feature:g} rows per "
                f"feature ({int(np.ceil(rows_per_feature * features))} here), rows can be computed from the sums. Use "
                "fewer features, join the site to another, or lower rows_per_feature"
            ).about(code="few-rows")


def longest_shortlist(n_rows: int, rows_per_feature: float) -> float:
    """Return how many features of a shortlist a site of `n_rows` rows sends sums of.

    As many as a neighbour of equally many features may have, half of what it may ask for together with the site's own.
    """
    return np.floor(n_rows / (2 * rows_per_feature)) if rows_per_feature else np.inf


def check_rows_of_shared(
    site: str,
    n_rows: int,
    feature_map: FeatureMap,
    neighbors: Collection[str],
    rows_per_feature: float,
    whose: str = "that all sites share",
) -> None:
    """Refuse sums of features alone, those that all sites share or `whose` they are, over too few rows."""
    if neighbors and feature_map.n_features > longest_shortlist(n_rows, rows_per_feature):
        raise DataError(
            f"site {site!r} has {n_rows} rows, too few for sums of the {feature_map.n_features} features {whose}: with "
            f"fewer than {2 * rows_per_feature:g} rows per feature, rows can be computed from the sums. Use fewer "
            "features, join the site to another, or lower rows_per_feature"
        ).about(code="few-rows")


def check_leverages(
    site: str, rows: Rows, own_map: FeatureMap | None, maps: Mapping[str, FeatureMap], rows_per_feature: float
) -> None:
    """Refuse sums of features among which too many of the site's rows stand alone; see `check_rows`.

    A liar's map, or one of very many features, leaves most rows alone. Which rows are in sums does not depend on it: a
    site sends sums over all rows that it admits, or refuses. Without an `own_map` sums are of a neighbour's shortlist
    alone.
    """
    for neighbor, n_lone in lone_rows(rows, own_map, maps).items():
        check_rows(site, rows.n_rows, own_map, {neighbor: maps[neighbor]}, rows_per_feature, n_lone)


def lone_rows(rows: Rows, own_map: FeatureMap | None, maps: Mapping[str, FeatureMap]) -> dict[str, int]:
    """Return for each neighbour how many rows stand alone among its features or the site's own."""
    sample = rows.sample
    of_own = _stands_alone(sample, own_map) if own_map is not None else np.zeros(sample.n_rows, dtype=bool)
    share = rows.n_rows / max(sample.n_rows, 1)
    return {
        neighbor: round(share * int((of_own | _stands_alone(sample, feature_map)).sum()))
        for neighbor, feature_map in maps.items()
    }


def _stands_alone(rows: ArrayRows, feature_map: FeatureMap) -> np.ndarray:
    """Return which rows have a leverage near 1 among features, shape (n_rows,); where all would, none does.

    Rows that others hid behind show when those are gone, so that it is done three times.
    """
    features = weighted_features(feature_map, rows.arrays())
    left = np.arange(rows.n_rows)
    for _ in range(_PASSES if rows.n_rows else 0):
        typical = leverages(features[left], whiten(features[left].T @ features[left])) <= _ALONE
        if typical.all() or not typical.any():
            break
        left = left[typical]
    return np.asarray(~np.isin(np.arange(rows.n_rows), left))


_LARGEST_AMPLITUDE = 1e8  # a sampled feature's is 1 / sqrt(pool size times its chance)
ONE_IN = 1e-12  # a frequency that an honest site draws less often than this is refused


@dataclass(frozen=True, eq=False)
class AskedMaps:
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
                    f"site {neighbor!r} asks for sums of its feature map number {len(known)} in this run; the limit is "
                    f"max_maps={most}",
                    neighbor,
                )


class Vault:
    """Keeps the one release of a private run; by a secret key it is told whether something else is to be released."""

    def __init__(self, secret: bytes = b"") -> None:
        self._secret = secret
        self._kept: tuple[str, OwnSums] | None = None

    def once(self, key: bytes, draw: Callable[[], OwnSums]) -> OwnSums:
        """Return the release for `key`: the one that is kept, or what `draw` gives now.

        Raises `SettingsError` when something else was released in this run, so that the budget is spent.
        """
        name = hmac.digest(self._secret, key, "sha256").hex()
        if self._kept is None:
            self._keep(name, draw())
        assert self._kept is not None
        if self._kept[0] != name:
            raise SettingsError(
                "the privacy budget of this run is spent: sums of other rows, features or another budget were released "
                "in it already; start a new run"
            )
        return self._kept[1]

    def _keep(self, key: str, sums: OwnSums) -> None:
        self._kept = key, sums


def fingerprint(feature_map: FeatureMap) -> bytes:
    """Return a digest that two maps share only when they are equal."""
    digest = hashlib.sha256()
    for part in (feature_map.frequencies, feature_map.phases, feature_map.amplitudes):
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.digest()


def check_frequencies(maps: Mapping[str, FeatureMap], chooser: Chooser, n_columns: int) -> None:
    """Refuse maps with frequencies that the agreed chooser and kernel draw less than once in 10^12 draws.

    Each kernel knows its own law; one that does not is refused. The laplacian kernel's frequencies have such heavy
    tails that its limit hardly limits; `verify_features` does.
    """
    limit = chooser.longest_frequency(n_columns, ONE_IN)
    for neighbor, feature_map in maps.items():
        longest = float(np.max(np.linalg.norm(feature_map.frequencies, axis=0), initial=0.0))
        if not longest <= limit:
            raise MessageError(
                f"site {neighbor!r} sent a frequency of length {longest:.4g}; the agreed kernel and bandwidth give "
                f"{limit:.4g} at most: it has another sigma, or is trying to single out rows",
                neighbor,
            )


def check_amplitudes(neighbor: str, amplitudes: Array) -> None:
    """Refuse amplitudes that no honest site has, and whose sums would overflow."""
    largest = float(np.max(np.abs(amplitudes), initial=0.0))
    if largest > _LARGEST_AMPLITUDE:
        raise MessageError(f"site {neighbor!r} sent an amplitude of {largest:.4g}, which no feature has", neighbor)


_LARGEST_POOL = 1 << 30  # bytes of frequencies that a neighbour may have this site draw


def site_rng(seed: int, name: str, purpose: str = "features") -> np.random.Generator:
    """Return the random numbers of the site called `name` for one purpose: a stream that anybody can redraw."""
    digest = hashlib.sha256(f"{purpose} {name}".encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8])])


def prove(selector: Chooser, feature_map: FeatureMap, seed: int, name: str, n_neighbors: int) -> Chosen:
    """Return a site's choice as the pool's seed and the indices of its candidates.

    The selector has the site's own number of features. The map, of features or a shortlist, was chosen from the pool
    that `site_rng(seed, name)` draws.
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
