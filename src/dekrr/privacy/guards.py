"""What a site refuses to a neighbour, whatever the neighbour says.

A neighbour that may choose its features freely can choose them so that sums give rows away: very high
frequencies turn a sum into a fingerprint of its rows, and more features than rows leave a null space that
only the rows fit. `docs/privacy.md` has both attacks with their figures.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy import stats
from sklearn.base import clone

from ..errors import DataError, MessageError, SettingsError
from ..features import FeatureMap
from ..messages import Chosen
from ..selection import Selector
from ..types import Array

MAX_MAPS = 64
ROWS_PER_FEATURE = 1.5
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
                    f"the most is max_maps={most}"
                )


def fingerprint(feature_map: FeatureMap) -> bytes:
    """Return a digest that two maps share only when they are equal."""
    digest = hashlib.sha256()
    for part in (feature_map.frequencies, feature_map.phases, feature_map.amplitudes):
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.digest()


def frequency_limit(selector: Selector, n_columns: int) -> float:
    """Return the longest frequency, |w|, that the agreed kernel draws but once in 10^12 draws.

    The laplacian kernel's frequencies have such heavy tails that its limit hardly limits; `verify_features`
    does.
    """
    narrowest = float(selector.sigma) * float(np.min(selector.bandwidths))
    each = _ONE_IN / n_columns
    unit = {
        "gaussian": stats.chi.isf(_ONE_IN, n_columns),
        "laplacian": np.sqrt(n_columns) * stats.cauchy.isf(each / 2),
        "cauchy": np.sqrt(n_columns) * stats.laplace.isf(each / 2),
    }
    return float(unit[selector.kernel]) / narrowest


def check_frequencies(maps: Mapping[str, FeatureMap], limit: float) -> None:
    """Refuse maps with frequencies that no honest site draws from the agreed kernel."""
    for neighbor, feature_map in maps.items():
        longest = float(np.max(np.linalg.norm(feature_map.frequencies, axis=0), initial=0.0))
        if not longest <= limit:
            raise MessageError(
                f"site {neighbor!r} sent a frequency of length {longest:.4g}; the agreed kernel and bandwidth give "
                f"{limit:.4g} at most: it has another sigma, or it is after single rows"
            )


def check_rows(
    site: str, n_rows: int, own_map: FeatureMap, maps: Mapping[str, FeatureMap], rows_per_feature: float
) -> None:
    """Refuse sums of more features than the site's rows can hide among.

    Where a site has fewer rows than there are features, its own and the neighbour's together, the sums have a null
    space that singles the rows out; just above that, directions with next to no weight still do.
    """
    for neighbor, feature_map in maps.items():
        features = own_map.n_features + feature_map.n_features
        if n_rows < rows_per_feature * features:
            raise DataError(
                f"site {site!r} has {n_rows} rows, too few for sums of its {own_map.n_features} features and the "
                f"{feature_map.n_features} of site {neighbor!r}: from less than {rows_per_feature:g} rows a feature, "
                f"{int(np.ceil(rows_per_feature * features))} here, rows can be computed. Use fewer features, join the "
                "site to another, or lower rows_per_feature"
            )


def site_rng(seed: int, name: str) -> np.random.Generator:
    """Return the random numbers of the site called `name`: a stream that anybody can redraw."""
    digest = hashlib.sha256(name.encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8])])


def prove(selector: Selector, feature_map: FeatureMap, seed: int, name: str, n_neighbors: int) -> Chosen:
    """Return a site's choice as the pool's seed and the indices of its candidates.

    Parameters
    ----------
    selector : Selector
    feature_map : FeatureMap
        What it chose from the pool that `site_rng(seed, name)` draws.
    seed : int
    name : str
    n_neighbors : int
    """
    pool = _sized(selector, feature_map.n_features).draw_pool(feature_map.n_columns, site_rng(seed, name))
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
        indices[: len(indices) // pool.width],
        empty if same_phases else feature_map.phases,
        empty if same_amplitudes else feature_map.amplitudes,
        n_neighbors,
    )


def redraw(selector: Selector, message: Chosen, seed: int, sender: str, n_columns: int) -> FeatureMap:
    """Return the map that `prove` stands for, drawing the sender's pool again."""
    if message.seed != seed:
        raise MessageError(f"site {sender!r} drew its pool with seed {message.seed}, not with the run's seed {seed}")
    n_features = len(message.indices) * (2 if selector.mapping == "cossin" else 1)
    if not n_features:
        raise MessageError(f"site {sender!r} chose no features at all")
    pool = _sized(selector, n_features).draw_pool(n_columns, site_rng(seed, sender))
    chosen = np.asarray(message.indices, dtype=np.intp)
    if chosen.min() < 0 or chosen.max() >= pool.n_candidates:
        raise MessageError(f"site {sender!r} chose candidates outside its pool of {pool.n_candidates}")
    kept = pool.keep(chosen)
    given = {"phases": message.phases, "amplitudes": message.amplitudes}
    for name, values in given.items():
        if values.shape not in ((0,), (kept.n_features,)):
            raise MessageError(f"site {sender!r} sent {values.size} {name} for {kept.n_features} features")
    return FeatureMap(
        kept.frequencies,
        message.phases if message.phases.size else kept.phases,
        message.amplitudes if message.amplitudes.size else kept.amplitudes,
    )


def _columns(frequencies: Array) -> Array:
    return np.ascontiguousarray(frequencies.T)


def _sized(selector: Selector, n_features: int) -> Selector:
    copy: Selector = clone(selector).set_params(n_features=n_features)
    return copy
