"""Orthogonal least squares: a greedy choice of features. Each step adds the feature that lowers the residual most.

References
----------
Chen, Billings and Luo, Orthogonal least squares methods and their application to non-linear system identification,
International Journal of Control 50(5), 1989.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from ..features import FeatureMap, exact_loops, loops_for
from ..kernels import Gaussian, Kernel, Laplacian
from ..rules import FLAG, POSITIVE, Rule, number, whole_number
from ..statistics import weigh
from ..types import Array
from .choosers import Chooser, Pool, large_enough_pool, outputs, random_columns, roots, scales_of

_WHOLE_FROM = 0.1  # the share of candidates taken from which on Z'Z of the whole pool is computed at once


@dataclass(frozen=True, kw_only=True)
class Greedy(Chooser):
    """Orthogonal least squares: take, one after another, the candidate that most reduces the ridge residual.

    S are the features taken so far, G is the pool's Gram matrix, and mu is the ridge. Adding candidate i lowers
    min |y - Z_S theta|^2 + mu |theta|^2 by r_i^2 / s_i, where r = Z'(y - Z_S theta) and
    s_i = G_ii + mu - G_iS (G_SS + mu I)^-1 G_Si. Each step adds one row to a Cholesky factor and updates r and s of
    all candidates; nothing is refitted. Where y has several columns, the gain is the sum of r_i^2 / s_i over them.

    The choice needs sums over rows only. In a network a site first takes `shortlist` times as many candidates, by its
    own rows. It then asks its neighbours for their sums over this shortlist, and makes the final choice from it. In
    that choice the rows of all neighbours together have the same weight as the site's own rows.

    Parameters
    ----------
    linear : bool, default=True
        Add the raw columns and a constant to the candidates (for mapping "cos"). A raw column is represented by a
        cosine of very low frequency.
    long_wave : float, default=0.02
        That frequency, in radians per unit. On [0, 1], the range of scaled columns, 0.02 makes the cosine linear up to
        a relative error of 1 in 15,000. Unscaled columns with larger values need a lower frequency.
    shortlist : float, default=3.0
        The number of candidates per feature in the shortlist for the neighbours; 1 means that none is sent.
    ridge : float, default=1e-6
        mu divided by the number of rows, for candidates of amplitude 1.
    max_rows : int or None, default=5000
        The largest number of rows to choose by. A site with more rows takes a random sample.

    See Also
    --------
    Chooser : the parameters that all choosers share.
    """

    rules: ClassVar[Mapping[str, Rule]] = {
        **Chooser.rules,
        "linear": FLAG,
        "long_wave": POSITIVE,
        "shortlist": number(1),
        "ridge": POSITIVE,
        "max_rows": whole_number(1).or_none(),
    }

    bandwidths: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    max_columns: int | None = 4
    linear: bool = True
    long_wave: float = 0.02
    shortlist: float = 3.0
    ridge: float = 1e-6
    max_rows: int | None = 5000

    def draw_pool(self, n_columns: int, rng: np.random.Generator) -> Pool:
        """Draw the candidates, and add a constant and the raw columns if `linear` is set."""
        drawn = super().draw_pool(n_columns, rng)
        if not self.linear or drawn.phases is None:
            return drawn
        n_drawn = drawn.n_candidates
        frequencies = np.zeros((n_columns, n_drawn + 1 + n_columns))  # not by hstack: it copies what is large, and 0
        frequencies[:, :n_drawn] = drawn.frequencies
        np.fill_diagonal(frequencies[:, n_drawn + 1 :], self.long_wave)
        phases = np.concatenate([drawn.phases, [0.0], np.full(n_columns, -np.pi / 2)])
        amplitudes = np.concatenate([drawn.amplitudes, [1.0], np.full(n_columns, np.sqrt(2) / self.long_wave)])
        return Pool(frequencies, phases, amplitudes)

    def longest_frequency(self, n_columns: int, chance: float) -> float:
        """Return a length that a candidate's frequency exceeds with probability at most `chance`."""
        drawn = super().longest_frequency(n_columns, chance)
        return max(drawn, self.long_wave) if self.linear else drawn

    def most_features(self, wanted: int, n_rows: int) -> int:
        """Return at most `n_rows` features: with as many features as rows there is no residual left to choose by."""
        return min(wanted, max(self.width, n_rows - n_rows % self.width))

    def shortlisted(self, X: Array, y: Array, rng: np.random.Generator, weight: Array | None = None) -> Pool:
        """Return the shortlist: the best candidates for these rows, `shortlist` times as many as will be kept."""
        return self.fold_shortlists(X, y, np.zeros(len(y), dtype=int), 0, rng, weight)[-1]

    def fold_shortlists(
        self,
        X: Array,
        y: Array,
        fold_of: np.ndarray,
        n_folds: int,
        rng: np.random.Generator,
        weight: Array | None = None,
    ) -> list[Pool]:
        """Return a shortlist for each fold, from the rows outside the fold, and last a shortlist from all rows.

        The sums over the rows of each fold are computed once and then added, so that all folds cost one pass.
        """
        pool = large_enough_pool(self, X.shape[1], rng)
        n_listed = min(round(self.n_kept * self.shortlist), max(self.n_kept, len(y)), pool.n_candidates)
        sample = self._sample(len(y), rng)
        products = Products(pool, X[sample], y[sample], n_listed, fold_of[sample], _part(weight, sample))
        outside = [np.flatnonzero(products.folds != fold) for fold in range(n_folds)]
        kept = [*outside, np.arange(len(products.folds))]
        return [pool.take(self._order(pool, PoolSums(products, folds), n_listed)) for folds in kept]

    def choose_from(self, pool: Pool, gram: Array, moment: Array, n_rows: float) -> FeatureMap:
        """Return the map of the best candidates, given Z'Z and Z'y over `n_rows` (weighted) rows."""
        return pool.keep(self._order(pool, GramSums(gram, moment, n_rows), self.n_kept))

    def choose(
        self, pool: Pool, X: Array, y: Array, rng: np.random.Generator, weight: Array | None = None
    ) -> FeatureMap:
        """Keep the candidates of the greedy path."""
        sample = self._sample(len(y), rng)
        sums = PoolSums(Products(pool, X[sample], y[sample], self.n_kept, weight=_part(weight, sample)))
        return pool.keep(self._order(pool, sums, self.n_kept))

    def _sample(self, n_rows: int, rng: np.random.Generator) -> np.ndarray | slice:
        if self.max_rows is None or n_rows <= self.max_rows:
            return slice(None)
        return np.sort(rng.choice(n_rows, size=self.max_rows, replace=False))

    def _order(self, pool: Pool, sums: "CandidateSums", n_taken: int) -> np.ndarray:
        return greedy_path(sums, n_taken, ridge=self.ridge * sums.n_rows, width=pool.width)[0]


@dataclass(frozen=True, kw_only=True)
class Auto(Greedy):
    """The choice where nobody has named one: `Greedy`, and `Mixed` in a run that has more than the agreed part."""


def _part(weight: Array | None, rows: np.ndarray | slice) -> Array | None:
    return None if weight is None else weight[rows]


class CandidateSums(Protocol):
    """Z'y and Z'Z of all candidates over some rows; the entries of Z'Z may be computed on demand.

    `moment` has the shape (n_features,) or (n_features, n_outputs).
    """

    moment: Array
    n_rows: float

    def diagonal(self, offset: int = 0) -> Array:
        """Return the entries (i, i + offset) of Z'Z."""

    def column(self, i: int) -> Array:
        """Return column i of Z'Z."""


class GramSums:
    """Sums with Z'Z in memory."""

    def __init__(self, gram: Array, moment: Array, n_rows: float) -> None:
        self._gram = gram
        self.moment = moment
        self.n_rows = n_rows

    def diagonal(self, offset: int = 0) -> Array:
        """Return the entries (i, i + offset) of Z'Z."""
        return np.diagonal(self._gram, offset)

    def column(self, i: int) -> Array:
        """Return column i of Z'Z."""
        return np.asarray(self._gram[i])


class Products:
    """Products of candidates over the rows of each fold.

    Orthogonal least squares needs only the columns of Z'Z that belong to the candidates it takes. If all folds together
    take a tenth of the pool or more, Z'Z is computed at once, which is then faster. Otherwise a column is computed when
    it is needed, and each column reads the features of the whole pool. Where compiled loops are available, these
    features are in single precision; products and sums are in double precision. Z'Z is then exact for features that
    differ from the true ones by their rounding.
    """

    def __init__(
        self,
        pool: Pool,
        X: Array,
        y: Array,
        n_taken: int,
        fold_of: np.ndarray | None = None,
        weight: Array | None = None,
    ) -> None:
        fold_of = np.zeros(len(y), dtype=int) if fold_of is None else fold_of
        order = np.argsort(fold_of, kind="stable")
        folds, counts = np.unique(fold_of, return_counts=True)
        self.folds: np.ndarray = folds if len(y) else np.zeros(1, dtype=int)  # those that have rows
        self.n_rows: np.ndarray = counts if len(y) else np.zeros(1, dtype=int)  # of each fold, by weights
        whole = n_taken * len(self.folds) >= _WHOLE_FROM * pool.n_candidates
        n_features = pool.n_candidates * pool.width
        single = not whole and loops_for(len(y) * n_features) is not None
        features = np.empty((len(y), n_features), dtype=np.float32 if single else np.float64)
        feature_map, X, y = pool.feature_map, X[order], y[order]
        if single:
            center = X.mean(axis=0)
            feature_map, X = feature_map.around(center), X - center
        feature_map(X, out=features)
        ends = np.cumsum(self.n_rows)
        places = [slice(end - size, end) for end, size in zip(ends, self.n_rows, strict=True)]
        if weight is not None:
            root = roots(weight[order], len(y))
            features *= root.astype(features.dtype)
            y = (y.T * root[:, 0]).T
            self.n_rows = np.array([weight[order][rows].sum() for rows in places])
        self._parts = [features[rows] for rows in places]
        self.moments = np.array(  # Z'y, shape (n_folds, n_features, n_outputs)
            [
                np.transpose([weigh(column, part) for column in outputs(y[rows])])
                for rows, part in zip(places, self._parts, strict=True)
            ]
        )
        self._columns: dict[int, Array] = {}
        if whole:
            grams = np.empty((len(self._parts), n_features, n_features))
            for part, gram in zip(self._parts, grams, strict=True):
                np.matmul(part.T, part, out=gram)
            self._columns = dict(enumerate(grams.transpose(1, 0, 2)))

    def diagonals(self, offset: int) -> Array:
        """Return the entries (i, i + offset) of every fold's Z'Z, shape (n_folds, n_features - offset)."""
        last = self._parts[0].shape[1] - offset
        return np.array(
            [np.einsum("ni,ni->i", part[:, :last], part[:, offset:], dtype=np.float64) for part in self._parts]
        )

    def columns(self, i: int) -> Array:
        """Return column i of every fold's Z'Z, shape (n_folds, n_features)."""
        if i not in self._columns:
            self._columns[i] = np.array([weigh(part[:, i], part) for part in self._parts])
        return self._columns[i]


class PoolSums:
    """Sums over the rows of some folds, given by their places in `products.folds`; all by default."""

    def __init__(self, products: Products, folds: np.ndarray | None = None) -> None:
        self._products = products
        self._folds = np.arange(len(products.folds)) if folds is None else folds
        self.moment: Array = products.moments[self._folds].sum(axis=0)
        self.n_rows = float(products.n_rows[self._folds].sum())

    def diagonal(self, offset: int = 0) -> Array:
        """Return the entries (i, i + offset) of Z'Z."""
        return np.asarray(self._products.diagonals(offset)[self._folds].sum(axis=0))

    def column(self, i: int) -> Array:
        """Return column i of Z'Z."""
        return np.asarray(self._products.columns(i)[self._folds].sum(axis=0))


def greedy_path(sums: CandidateSums, n_taken: int, *, ridge: float, width: int = 1) -> tuple[np.ndarray, Array]:
    """Return the candidates that orthogonal least squares takes, in order, and the reduction of the objective by each.

    It needs sums over rows only. With the width 2, candidate i is the pair of features i and n_candidates + i. `ridge`
    is mu of `Greedy`; each gain is summed over the outputs.
    """
    correlation = np.atleast_2d(sums.moment.T)  # one row per output
    n_features = correlation.shape[1]
    loops = exact_loops() if width == 1 else None
    if loops is not None:
        return _compiled_path(loops, sums, correlation, n_taken, ridge)
    n_candidates = n_features // width
    remaining = sums.diagonal() + ridge
    floor = ridge / 2
    pair_product = sums.diagonal(n_candidates) if width == 2 else np.zeros(n_candidates)
    factor = np.empty((n_taken * width, n_features))
    taken: list[int] = []
    gains: list[float] = []
    open_candidates = np.ones(n_candidates, dtype=bool)

    for _ in range(n_taken):
        gain = np.where(open_candidates, _gain(correlation, remaining, pair_product, width, floor), -np.inf)
        best = int(np.argmax(gain))
        for column in range(best, width * n_candidates, n_candidates):
            size = len(taken) * width + column // n_candidates
            pivot = np.sqrt(max(remaining[column], floor))
            row = sums.column(column) - factor[:size, column] @ factor[:size]
            row[column] += ridge
            row /= pivot
            factor[size] = row
            correlation = correlation - row * (correlation[:, column, None] / pivot)
            remaining = remaining - row**2
            if width == 2:
                pair_product = pair_product - row[:n_candidates] * row[n_candidates:]
        open_candidates[best] = False
        taken.append(best)
        gains.append(float(gain[best]))
    return np.array(taken), np.array(gains)


def _compiled_path(
    loops: Any, sums: CandidateSums, correlation: Array, n_taken: int, ridge: float
) -> tuple[np.ndarray, Array]:
    """Return what `greedy_path` does for single features, to the last bit."""
    correlation, remaining, floor = correlation.copy(), sums.diagonal() + ridge, ridge / 2
    factor, is_open = np.empty((n_taken, len(remaining))), np.ones(len(remaining), dtype=bool)
    taken, gains = np.empty(n_taken, dtype=int), np.empty(n_taken)
    best, gain = loops.project_out(remaining, remaining, -1, ridge, floor, correlation, remaining, is_open)
    for size in range(n_taken):
        taken[size], gains[size] = best, gain
        factor[size] = sums.column(best)
        of_taken = factor[:size, best] @ factor[:size]
        best, gain = loops.project_out(factor[size], of_taken, best, ridge, floor, correlation, remaining, is_open)
    return taken, gains


def _gain(correlation: Array, remaining: Array, pair_product: Array, width: int, floor: float) -> Array:
    """Return the gain of each candidate, r's^-1 r summed over outputs; s is a number, or a 2 x 2 matrix for a pair.

    r are correlations of shape (n_outputs, n_features); s has the diagonal `remaining`, at least `floor`, and
    `pair_product`.
    """
    if width == 1:
        return np.asarray((correlation**2).sum(axis=0) / np.maximum(remaining, floor))
    s_cos, s_sin = remaining.reshape(2, -1)
    r_cos, r_sin = np.split(correlation, 2, axis=1)
    determinant = np.maximum(s_cos * s_sin - pair_product**2, floor**2)
    lowered = s_sin * r_cos**2 - 2 * pair_product * r_cos * r_sin + s_cos * r_sin**2
    return np.asarray(lowered.sum(axis=0) / determinant)


_ROUGH = (1.0, 2.0)  # bandwidths of the Laplacian candidates, in units of sigma times the root of the columns


@dataclass(frozen=True, kw_only=True)
class Mixed(Greedy):
    """Greedy selection from a pool of Gaussian and Laplacian frequencies, half of them on few columns.

    A third of the candidates has Gaussian frequencies of bandwidth sigma. The others have Laplacian frequencies, whose
    heavy tails fit responses with kinks and jumps. In n columns the Laplacian kernel of bandwidth sqrt(n) sigma is
    about as wide as the Gaussian kernel of bandwidth sigma; a third has this bandwidth, and a third twice that. Every
    second candidate depends on 1 to `max_columns` random columns alone, which are drawn by their scales; with None, all
    depend on all columns. `kernel` and `bandwidths` have no effect.

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

    rough: bool = True  # whether there are Laplacian candidates. Without, all are Gaussian.
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

    def votes(
        self, pool: Pool, X: Array, y: Array, n_taken: int, rng: np.random.Generator, weight: Array | None = None
    ) -> Array:
        """Return the gain of each candidate on the greedy path, 0 where not taken: shape (n_candidates,).

        It is the reduction of the squared error over all rows. The generator is of the sample of more than `max_rows`
        rows.
        """
        sample = self._sample(len(y), rng)
        n_taken = min(n_taken, pool.n_candidates)
        sums = PoolSums(
            Products(pool, X[sample], y[sample], n_taken, weight=None if weight is None else weight[sample])
        )
        taken, gains = greedy_path(sums, n_taken, ridge=self.ridge * sums.n_rows, width=pool.width)
        votes = np.zeros(pool.n_candidates)
        votes[taken] = np.maximum(gains, 0.0) * (len(y) if weight is None else weight.sum()) / sums.n_rows
        return votes

    def elected(self, votes: Array) -> np.ndarray:
        """Return the places of the `n_features` drawn candidates with the most votes, in ascending order."""
        n_drawn = round(self.n_kept * self.pool_ratio)
        return np.sort(np.argsort(-votes[:n_drawn], kind="stable")[: self.n_kept])


def with_columns(maps: Sequence[FeatureMap], sigma: float, long_wave: float = Mixed.long_wave) -> FeatureMap:
    """Return the cosines of several maps with equal amplitudes, a constant and the raw columns.

    A raw column has a slope of 1 / sigma, as steep as the cosines are. So the ridge bears on it as on them: where some
    rows are far from all others, a plane is what is known of the responses there. It is a cosine of the frequency
    `long_wave`; see `Greedy`.
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
    joint = FeatureMap.joined(maps)
    return FeatureMap.unweighted(joint.frequencies, joint.phases)
