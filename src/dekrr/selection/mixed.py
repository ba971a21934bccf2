"""Greedy choice from a mixed pool: smooth and rough candidates, of all columns and of few, in several column scales."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..features import FeatureMap
from ..kernels import Gaussian, Kernel, Laplacian
from ..rules import FLAG, Rule
from ..types import Array
from .choosers import scales_of
from .greedy import Greedy, PoolSums, Products, greedy_path
from .pool import Pool, random_columns

_ROUGH = (1.0, 2.0)  # bandwidths of the Laplacian candidates, in units of sigma times the root of the columns


@dataclass(frozen=True, kw_only=True)
class Mixed(Greedy):
    """Greedy selection from a pool of Gaussian and Laplacian frequencies, half of them on few columns.

    A third of the candidates has Gaussian frequencies of bandwidth sigma. The others have Laplacian frequencies, whose
    heavy tails fit responses with kinks and jumps. In n columns the Laplacian kernel of bandwidth sqrt(n) sigma is
    about as wide as the Gaussian kernel of bandwidth sigma; a third has this bandwidth, and a third twice that. Every
    second candidate depends on 1 to `max_columns` random columns alone, which are drawn by their scales; with None, all
    depend on all columns. `kernel` and `bandwidths` have no effect.

    Parameters
    ----------
    rough : bool, default=True
        Whether there are Laplacian candidates. Without, all are Gaussian.
    max_columns : int or None, default=3
    pool_ratio : float, default=10
    shortlist : float, default=1.0

    See Also
    --------
    Greedy : the choice, and its other parameters.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.random((50, 3))
    >>> Mixed(6, sigma=0.5).select(X, X[:, 0], rng).n_features
    6
    """

    rules: ClassVar[Mapping[str, Rule]] = {**Greedy.rules, "rough": FLAG}

    rough: bool = True
    bandwidths: tuple[float, ...] = (1.0,)
    max_columns: int | None = 3
    pool_ratio: float = 10
    shortlist: float = 1.0

    def _kernels_for(self, n_columns: int) -> list[Kernel]:
        sigma = self.bandwidth
        factors = _ROUGH if self.rough else ()
        return [Gaussian(sigma), *(Laplacian(sigma * float(np.sqrt(n_columns)) * factor) for factor in factors)]

    def longest_frequency(self, n_columns: int, chance: float) -> float:
        """Return a length that a candidate's frequency exceeds with probability at most `chance`."""
        counts = {n_columns, *range(1, min(self.max_columns or 0, n_columns) + 1)}
        longest = max(
            float(np.sqrt(n_columns / q)) * kernel.longest_frequency(q, chance)
            for kernel in self._kernels_for(n_columns)
            for q in counts
        )
        return max(longest * self.largest_scale, self.long_wave if self.linear else 0.0)

    def _draw(self, n_columns: int, n_candidates: int, rng: np.random.Generator) -> Pool:
        kernels = self._kernels_for(n_columns)
        parts = np.array_split(np.arange(n_candidates), len(kernels))
        drawn = [
            kernel.draw_frequencies(n_columns, part.size, rng) for kernel, part in zip(kernels, parts, strict=True)
        ]
        frequencies = np.hstack(drawn)
        if self.max_columns is not None:
            scales = scales_of(self, n_columns, n_candidates)
            few = random_columns(n_columns, n_candidates, self.max_columns, rng, scales)
            frequencies[:, ::2] *= few[:, ::2]
        phases = rng.uniform(0, 2 * np.pi, n_candidates) if self.mapping == "cos" else None
        return Pool(self.scaled(frequencies), phases)

    def votes(self, pool: Pool, X: Array, y: Array, n_taken: int, rng: np.random.Generator) -> Array:
        """Return the gain of each candidate on the greedy path over some rows; 0 for those that are not taken.

        Parameters
        ----------
        pool : Pool
        X : ndarray of shape (n_rows, n_columns)
        y : ndarray of shape (n_rows,) or (n_rows, n_outputs)
        n_taken : int
        rng : Generator
            Of the sample, where there are more than `max_rows` rows.

        Returns
        -------
        ndarray of shape (n_candidates,)
            Reductions of the squared error over all rows.
        """
        sample = self._sample(len(y), rng)
        n_taken = min(n_taken, pool.n_candidates)
        sums = PoolSums(Products(pool, X[sample], y[sample], n_taken))
        taken, gains = greedy_path(sums, n_taken, ridge=self.ridge * max(sums.n_rows, 1.0), width=pool.width)
        votes = np.zeros(pool.n_candidates)
        votes[taken] = np.maximum(gains, 0.0) * len(y) / max(sums.n_rows, 1.0)
        return votes

    def elected(self, pool: Pool, votes: Array) -> FeatureMap:
        """Return the `n_features` drawn candidates with the most votes."""
        n_drawn = round(self.n_kept * self.pool_ratio)
        first = np.argsort(-votes[:n_drawn], kind="stable")[: self.n_kept]
        return pool.keep(np.sort(first))


def with_columns(maps: Sequence[FeatureMap], sigma: float, long_wave: float = Mixed.long_wave) -> FeatureMap:
    """Return the cosines of several maps with equal amplitudes, a constant and the raw columns.

    A raw column has a slope of 1 / sigma, as steep as the cosines are. So the ridge bears on it as on them: where some
    rows are far from all others, a plane is what is known of the responses there.

    Parameters
    ----------
    maps : sequence of FeatureMap
        With one phase for each frequency.
    sigma : float
    long_wave : float, default=0.02
        The frequency of the cosine that represents a raw column; see `Greedy`.

    Examples
    --------
    >>> cosine = FeatureMap(np.array([[3.0]]), np.zeros(1), np.ones(1))
    >>> with_columns([cosine, cosine], sigma=0.5)(np.array([[0.0], [0.1]])).round(3)
    array([[0.707, 0.707, 1.414, 0.   ],
           [0.676, 0.676, 1.414, 0.2  ]])
    """
    cosines, n_columns = cosines_of(maps), maps[0].n_columns
    n_features = cosines.n_features + 1 + n_columns
    amplitudes = [np.sqrt(2 / n_features), np.sqrt(0.5) / sigma, 1 / (long_wave * sigma)]
    return FeatureMap(
        np.hstack([cosines.frequencies, np.zeros((n_columns, 1)), long_wave * np.eye(n_columns)]),
        np.concatenate([cosines.phases, [0.0], np.full(n_columns, -np.pi / 2)]),
        np.repeat(amplitudes, [cosines.n_features, 1, n_columns]),
    )


def cosines_of(maps: Sequence[FeatureMap]) -> FeatureMap:
    """Return the features of several maps in one, with equal amplitudes."""
    frequencies, phases = np.hstack([one.frequencies for one in maps]), np.concatenate([one.phases for one in maps])
    return FeatureMap.unweighted(frequencies, phases)
