"""Proofs that a site's features come from the agreed pool: its seed and the indices of the chosen candidates."""

import hashlib

import numpy as np

from ..errors import MessageError, SettingsError
from ..features import FeatureMap
from ..messages import Chosen
from ..selection import Chooser
from ..types import Array
from .maps_of_neighbors import check_amplitudes

_LARGEST_POOL = 1 << 30  # bytes of frequencies that a neighbour may have this site draw


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
