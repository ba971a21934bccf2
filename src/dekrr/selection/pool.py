"""The candidates that features are chosen from."""

import numpy as np

from ..features import FeatureMap, paired
from ..types import Array


class Pool:
    """The candidates of one selection: frequencies with phases, or cos/sin pairs of frequencies.

    Parameters
    ----------
    frequencies : ndarray of shape (n_columns, n_candidates)
    phases : ndarray of shape (n_candidates,) or None
        None makes every candidate a cos/sin pair, which counts as two features.
    amplitudes : ndarray of shape (n_candidates,), optional
        All 1 by default.

    Examples
    --------
    >>> import numpy as np
    >>> pool = Pool(np.array([[1.0, 2.0, 3.0]]), phases=None)
    >>> pool.keep(np.array([2, 0])).frequencies
    array([[3., 1., 3., 1.]])
    """

    def __init__(self, frequencies: Array, phases: Array | None, amplitudes: Array | None = None) -> None:
        self.frequencies = frequencies
        self.phases = phases
        self.amplitudes = np.ones(frequencies.shape[1]) if amplitudes is None else amplitudes

    @property
    def n_candidates(self) -> int:
        """The number of candidates; a pair is one candidate."""
        return int(self.frequencies.shape[1])

    @property
    def width(self) -> int:
        """The number of features per candidate: 1, or 2 for a pair."""
        return 1 if self.phases is not None else 2

    @property
    def feature_map(self) -> FeatureMap:
        """The map of all candidates with their own amplitudes; for pairs, all cosines come before all sines."""
        if self.phases is not None:
            return FeatureMap(self.frequencies, self.phases, self.amplitudes)
        pairs = paired(self.frequencies)
        return FeatureMap(pairs.frequencies, pairs.phases, np.tile(self.amplitudes, 2))

    @property
    def pairs(self) -> FeatureMap:
        """The map of the cosine and the sine of every candidate's frequency, without phases; cosines come first."""
        return Pool(self.frequencies, None, self.amplitudes).feature_map

    def take(self, chosen: np.ndarray) -> "Pool":
        """Return the pool of the chosen candidates."""
        phases = self.phases[chosen] if self.phases is not None else None
        return Pool(self.frequencies[:, chosen], phases, self.amplitudes[chosen])

    def keep(self, chosen: np.ndarray, weights: Array | None = None) -> FeatureMap:
        """Return the map of the chosen candidates: sqrt(2/D) times their amplitudes times `weights`.

        Parameters
        ----------
        chosen : ndarray of int, shape (n_chosen,)
        weights : ndarray of shape (n_chosen,), optional
        """
        kept = self.take(chosen).feature_map
        amplitudes = kept.amplitudes * np.sqrt(2 / max(kept.n_features, 1))
        if weights is not None:
            amplitudes = amplitudes * np.tile(weights, self.width)
        return FeatureMap(kept.frequencies, kept.phases, amplitudes)


def random_columns(
    n_columns: int, n_candidates: int, most: int, rng: np.random.Generator, scales: Array | None = None
) -> Array:
    """Return factors for frequencies by which each candidate depends on 1 to `most` random columns only.

    The expected squared length of a frequency stays the same.

    Parameters
    ----------
    n_columns, n_candidates, most : int
    rng : Generator
    scales : ndarray of shape (n_columns, n_candidates), optional
        What frequencies are multiplied by besides. A column is drawn with a chance that is proportional to its scale,
        and the factors make up for the scales of the columns that are drawn: their mean square counts as 1.

    Returns
    -------
    ndarray of shape (n_columns, n_candidates)
        0 for a column that a candidate does not depend on, sqrt(n_columns / q) for each of its q columns.

    Examples
    --------
    >>> scales = np.array([[3.0], [1e-9], [1e-9]])
    >>> random_columns(3, 1, 1, np.random.default_rng(0), scales).round(3).ravel()
    array([0.577, 0.   , 0.   ])
    """
    how_many = np.minimum(rng.integers(1, most + 1, n_candidates), n_columns)
    draws = rng.random((n_columns, n_candidates))
    if scales is not None:
        draws = -np.log1p(-draws) / scales  # the first arrival of each column, at a rate that is its scale
    lowest = np.sort(np.partition(draws, min(most, n_columns) - 1, axis=0)[:most], axis=0)
    used = draws <= lowest[how_many - 1, np.arange(n_candidates)]
    lengths = how_many if scales is None else np.sum(used * scales**2, axis=0)
    return np.where(used, np.sqrt(n_columns / lengths), 0.0)
