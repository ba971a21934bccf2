"""Choosers: they choose a site's features by its own rows.

A chooser draws a pool of `pool_ratio` times `n_features` candidates from the kernel's spectral density and keeps
`n_features` of them. It is a frozen object that needs numpy only; `transformers` has a scikit-learn transformer for
each. `Chooser` is the base class for choosers that a user writes. The chooser in `greedy` asks its neighbours, too.

Responses `y` have one column, shape (n_rows,), or several, shape (n_rows, n_outputs). With several columns the squares
of the scores are added.

References
----------
energy : Shahrampour, Beirami and Tarokh, On data-dependent random features for improved generalization in
    supervised learning, AAAI 2018.
leverage : Li, Ton, Oglic and Sejdinovic, Towards a unified analysis of random Fourier features, ICML 2019.
surrogate : Liu, Huang, Chen, Yang and Suykens, Random Fourier features via fast surrogate leverage
    weighted sampling, AAAI 2020.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, ClassVar, Self

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from ..errors import SettingsError
from ..features import FeatureMap, paired
from ..kernels import KERNELS, Kernel, is_kernel, make_kernel
from ..rules import COLUMN_SCALES, FLAG, POSITIVE, POSITIVES, Rule, check, one_of, whole_number
from ..types import Array


class Pool:
    """The candidates of one selection: frequencies (n_columns, n_candidates) with phases, and amplitudes, by default 1.

    Without phases every candidate is a cos/sin pair, which counts as two features.
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
        """Return the map of the chosen candidates (their places): sqrt(2/D) times their amplitudes times `weights`."""
        kept = self.take(chosen).feature_map
        amplitudes = kept.amplitudes * np.sqrt(2 / max(kept.n_features, 1))
        if weights is not None:
            amplitudes = amplitudes * np.tile(weights, self.width)
        return FeatureMap(kept.frequencies, kept.phases, amplitudes)


def random_columns(
    n_columns: int, n_candidates: int, most: int, rng: np.random.Generator, scales: Array | None = None
) -> Array:
    """Return factors for frequencies by which each candidate depends on 1 to `most` random columns only.

    The expected squared length of a frequency stays the same. The shape is (n_columns, n_candidates): 0 for a column
    that a candidate does not depend on, sqrt(n_columns / q) for each of its q columns. `scales`, of the same shape, are
    what frequencies are multiplied by besides. A column is drawn with a chance that is proportional to its scale, and
    the factors make up for the scales of the columns that are drawn: their mean square counts as 1.
    """
    how_many = np.minimum(rng.integers(1, most + 1, n_candidates), n_columns)
    draws = rng.random((n_columns, n_candidates))
    if scales is not None:
        draws = -np.log1p(-draws) / scales  # the first arrival of each column, at a rate that is its scale
    lowest = np.sort(np.partition(draws, min(most, n_columns) - 1, axis=0)[:most], axis=0)
    used = draws <= lowest[how_many - 1, np.arange(n_candidates)]
    lengths = how_many if scales is None else np.sum(used * scales**2, axis=0)
    return np.where(used, np.sqrt(n_columns / lengths), 0.0)


MAPPINGS = ("cos", "cossin")


@dataclass(frozen=True, kw_only=True)
class Chooser:
    """The base class of choosers: their common parameters, and the methods that a run calls.

    A user's chooser is a subclass with a method `select`, or with a method `choose`, which gets the pool. Its further
    parameters are fields, under the decorator ``@dataclass(frozen=True, kw_only=True)``. It can declare capabilities:

    - ``uses_rows = False``: the choice depends on the kernel only. Differential privacy allows no other choosers. The
      features must then be the cos/sin pairs of a pool of mapping "cossin", all with the same amplitude.
    - a field `shortlist` above 1: the chooser asks neighbours. The site first calls `shortlisted` with its own rows.
      The shortlist has `shortlist` times `n_features` features. The neighbours send their sums over these features,
      and the site calls `choose_from` with the sums over the rows of all.

    Sites that verify each other's features (``verify_features=True``) draw each other's pools again. They accept only
    features of the first pool that `draw_pool` draws with the generator that `select` gets.

    Parameters
    ----------
    n_features : int, default=100
        The number of features to keep (the paper's D). A cos/sin pair is two features.
    kernel : {"gaussian", "laplacian", "cauchy"}, Kernel class or object, default="gaussian"
    sigma : float, optional
        The kernel's bandwidth. None leaves it to the regressor that uses the chooser; without a regressor it is 1.
    bandwidths : sequence of float, default=(1.0,)
        Factors of sigma. The candidates are divided evenly among the bandwidths sigma * factor.
    max_columns : int, optional
        Every candidate depends on 1 to `max_columns` random columns. Its frequency is scaled up to the expected squared
        length that it has with all columns. None means all columns.
    mapping : {"cos", "cossin"}, default="cos"
        "cos" makes a candidate one cosine with a random phase, "cossin" a cos/sin pair.
    pool_ratio : float, default=20
        The number of candidates per feature that is kept (the paper's D_0 / D).
    column_scales : sequence of sequences of float, default=()
        Factors of the columns, by which frequencies are multiplied. Where there are several sequences, the candidates
        take turns. Without any all columns count alike.

    Examples
    --------
    A chooser that keeps the smoothest candidates, without regard to the response:

    >>> import numpy as np
    >>> from dekrr import Chooser, DeKRRRegressor
    >>> from dekrr.data import make_sites
    >>> class Smoothest(Chooser):
    ...     def select(self, X, y, rng):
    ...         pool = self.draw_pool(X.shape[1], rng)
    ...         lengths = np.linalg.norm(pool.frequencies, axis=0)
    ...         return pool.keep(np.argsort(lengths)[: self.n_kept])
    >>> X, y, sites = make_sites(n_sites=3, random_state=0)
    >>> chooser = Smoothest(sigma=0.2, pool_ratio=5)
    >>> regressor = DeKRRRegressor(n_features=30, features=chooser, alpha=1e-4, consensus=1.0, random_state=0)
    >>> regressor.fit(X, y, sites=sites).score(X, y, sites=sites) > 0.8
    True
    """

    uses_rows: ClassVar[bool] = True
    rules: ClassVar[Mapping[str, Rule]] = {
        "n_features": whole_number(1),
        "kernel": Rule("one of " + ", ".join(map(repr, KERNELS)) + ", or a dekrr.Kernel", is_kernel),
        "sigma": POSITIVE.or_none(),
        "bandwidths": POSITIVES,
        "max_columns": whole_number(1).or_none(),
        "mapping": one_of(*MAPPINGS),
        "pool_ratio": POSITIVE,
        "column_scales": COLUMN_SCALES,
    }

    n_features: int = field(default=100, kw_only=False)
    kernel: str | type[Kernel] | Kernel = "gaussian"
    sigma: float | None = None
    bandwidths: tuple[float, ...] = (1.0,)
    max_columns: int | None = None
    mapping: str = "cos"
    pool_ratio: float = 20
    column_scales: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        check(type(self).__name__, vars(self), self.rules)
        object.__setattr__(self, "bandwidths", tuple(map(float, self.bandwidths)))
        object.__setattr__(self, "column_scales", tuple(tuple(map(float, one)) for one in self.column_scales))
        make_kernel(self.kernel, self.bandwidth)  # raises an error if the kernel object has another bandwidth

    def replace(self, **changes: Any) -> Self:
        """Return a copy of the chooser with other values of some parameters.

        Parameters
        ----------
        **changes : object
            The new values, by name.
        """
        return replace(self, **changes)

    @property
    def bandwidth(self) -> float:
        """The bandwidth in use: sigma, or the kernel's own bandwidth (by default 1) where sigma is None."""
        if self.sigma is not None:
            return float(self.sigma)
        return self.kernel.sigma if isinstance(self.kernel, Kernel) else 1.0

    @property
    def width(self) -> int:
        """The number of features per candidate: 1 for a cosine, 2 for a cos/sin pair."""
        return 1 if self.mapping == "cos" else 2

    @property
    def n_kept(self) -> int:
        """The number of candidates that are kept: half of `n_features` if each is a pair."""
        if self.n_features % self.width:
            raise SettingsError(f'mapping="cossin" needs an even number of features, got {self.n_features}')
        return int(self.n_features) // self.width

    @property
    def shortlist(self) -> float:
        """The number of candidates per feature in the shortlist for the neighbours; 1 means that none is sent."""
        return 1.0

    @property
    def asks_neighbors(self) -> bool:
        """Whether the choice takes the neighbours' sums into account."""
        return self.shortlist > 1

    def select(self, X: Array, y: Array, rng: np.random.Generator, weight: Array | None = None) -> FeatureMap:
        """Draw a pool with `rng` and keep the best candidates for the rows `X`, `y`.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_columns)
        y : ndarray of shape (n_rows,) or (n_rows, n_outputs)
        weight : ndarray of shape (n_rows,), optional
            How often each row counts. A chooser whose methods do not take weights is refused where rows have some.
        """
        pool = large_enough_pool(self, X.shape[1], rng)
        return self.choose(pool, X, y, rng, **weights_for(self, "choose", weight))

    def choose(
        self, pool: Pool, X: Array, y: Array, rng: np.random.Generator, weight: Array | None = None
    ) -> FeatureMap:
        """Return the map of the candidates to keep; see `select`."""
        raise _lacks(self, "choose(pool, X, y, rng)", "select(X, y, rng)")

    def draw_pool(self, n_columns: int, rng: np.random.Generator) -> Pool:
        """Draw the candidates for rows of `n_columns` columns."""
        return self._draw(n_columns, round(self.n_kept * self.pool_ratio), rng)

    def most_features(self, wanted: int, n_rows: int) -> int:
        """Return the number of features to choose from `n_rows` rows: `wanted`, or fewer."""
        return wanted

    def longest_frequency(self, n_columns: int, chance: float) -> float:
        """Return a length that a candidate's frequency exceeds with probability at most `chance`.

        A candidate that depends on q of n columns has sqrt(n / q) times the kernel's frequencies in these columns. With
        a gaussian kernel its length is distributed as sqrt(n / q) chi_q, which has a heavier tail for smaller q.
        """
        kernel = _kernels_of(self)[int(np.argmin(self.bandwidths))]
        counts = range(1, min(self.max_columns, n_columns) + 1) if self.max_columns else (n_columns,)
        longest = max(float(np.sqrt(n_columns / q)) * kernel.longest_frequency(q, chance) for q in counts)
        return longest * self.largest_scale

    @property
    def largest_scale(self) -> float:
        """The largest factor of a column; 1 without column scales."""
        return max((max(one) for one in self.column_scales), default=1.0)

    def scaled(self, frequencies: Array) -> Array:
        """Return frequencies of shape (n_columns, n_candidates), each multiplied by one sequence of column scales.

        Parameters
        ----------
        frequencies : ndarray of shape (n_columns, n_candidates)
        """
        scales = scales_of(self, *frequencies.shape)
        return frequencies if scales is None else frequencies * scales

    def shortened(self, most: float) -> Self:
        """Return a copy of the chooser whose shortlist has no more features than `most`."""
        longest = most // self.width * self.width / self.n_features
        return self.replace(shortlist=max(1.0, min(self.shortlist, longest)))

    def shortlisted(self, X: Array, y: Array, rng: np.random.Generator, weight: Array | None = None) -> Pool:
        """Return the shortlist: the best candidates for these rows, `shortlist` times as many as will be kept."""
        raise _lacks(self, "shortlisted(X, y, rng)")

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

        All shortlists are from the same pool, because each is drawn with a copy of the generator.

        Parameters
        ----------
        fold_of : ndarray of int, shape (n_rows,)
        """
        kept = [*(fold_of != fold for fold in range(n_folds)), slice(None)]
        weights = [None if weight is None else weight[rows] for rows in kept]
        return [
            self.shortlisted(X[rows], y[rows], deepcopy(rng), **weights_for(self, "shortlisted", part))
            for rows, part in zip(kept, weights, strict=True)
        ]

    def choose_from(self, pool: Pool, gram: Array, moment: Array, n_rows: float) -> FeatureMap:
        """Return the map of the best candidates of a shortlist, given sums over `n_rows` (weighted) rows.

        Parameters
        ----------
        gram : ndarray of shape (n_features, n_features)
            Z'Z of the pool's features.
        moment : ndarray of shape (n_features,) or (n_features, n_outputs)
            Z'y.
        """
        raise _lacks(self, "choose_from(pool, gram, moment, n_rows)")

    def _draw(self, n_columns: int, n_candidates: int, rng: np.random.Generator) -> Pool:
        parts = np.array_split(np.arange(n_candidates), len(self.bandwidths))
        drawn = zip(_kernels_of(self), parts, strict=True)
        frequencies = np.hstack([kernel.draw_frequencies(n_columns, part.size, rng) for kernel, part in drawn])
        if self.max_columns is not None:
            frequencies *= random_columns(n_columns, n_candidates, self.max_columns, rng)
        phases = rng.uniform(0, 2 * np.pi, n_candidates) if self.mapping == "cos" else None
        return Pool(self.scaled(frequencies), phases)


def scales_of(chooser: Chooser, n_columns: int, n_candidates: int) -> Array | None:
    """Return the column scales of every candidate, shape (n_columns, n_candidates); None where there are none."""
    if not chooser.column_scales:
        return None
    if any(len(one) != n_columns for one in chooser.column_scales):
        raise SettingsError(f"column_scales has {len(chooser.column_scales[0])} factors for {n_columns} columns")
    scales = np.array(chooser.column_scales)
    return np.asarray(scales[np.arange(n_candidates) % len(scales)].T)


def large_enough_pool(chooser: Chooser, n_columns: int, rng: np.random.Generator) -> Pool:
    """Draw the candidates; raise `SettingsError` if they are fewer than those to keep."""
    pool = chooser.draw_pool(n_columns, rng)
    if chooser.n_kept > pool.n_candidates:
        raise SettingsError(
            f"{chooser.n_features} features cannot be chosen from a pool of {pool.n_candidates * pool.width}: "
            f"pool_ratio={chooser.pool_ratio} must be at least 1"
        )
    return pool


def _kernels_of(chooser: Chooser) -> list[Kernel]:
    """Return the kernel with each of the bandwidths."""
    kernel = make_kernel(chooser.kernel, chooser.bandwidth)
    return [kernel.with_bandwidth(chooser.bandwidth * factor) for factor in chooser.bandwidths]


def _lacks(chooser: Chooser, *methods: str) -> SettingsError:
    return SettingsError(f"the chooser {type(chooser).__name__} must have the method {' or '.join(methods)}")


def weights_for(chooser: Chooser, method: str, weight: Array | None) -> dict[str, Array]:
    """Return the keyword by which a chooser's method gets the rows' weights: none where rows have none.

    A method of a user's chooser that does not take weights is refused: it would ignore them silently.
    """
    if weight is None:
        return {}
    if "weight" not in signature(getattr(chooser, method)).parameters:
        raise SettingsError(
            f"rows have weights, and {type(chooser).__name__}.{method} does not take them: give it the keyword weight, "
            "an array of shape (n_rows,)"
        )
    return {"weight": weight}


def roots(weight: Array | None, n_rows: int) -> Array:
    """Return the square root of each row's weight, shape (n_rows, 1): what features are multiplied by."""
    return np.ones((n_rows, 1)) if weight is None else np.sqrt(weight)[:, None]


def outputs(y: Array) -> list[Array]:
    """Return the columns of responses of shape (n_rows,) or (n_rows, n_outputs)."""
    return [y] if y.ndim == 1 else list(y.T)


@dataclass(frozen=True, kw_only=True)
class Plain(Chooser):
    """No selection: `n_features` features of the kernel's spectral density; `pool_ratio` has no effect here."""

    uses_rows: ClassVar[bool] = False

    def draw_pool(self, n_columns: int, rng: np.random.Generator) -> Pool:
        """Draw a pool of exactly the features that are kept."""
        return self._draw(n_columns, self.n_kept, rng)

    def choose(
        self, pool: Pool, X: Array, y: Array, rng: np.random.Generator, weight: Array | None = None
    ) -> FeatureMap:
        """Keep all candidates."""
        return pool.keep(np.arange(pool.n_candidates))


@dataclass(frozen=True, kw_only=True)
class Energy(Chooser):
    """Keep the candidates with the highest energy score |mean(y psi)|, the paper's choice.

    Parameters
    ----------
    redraw_phases : bool, default=True
        Draw new phases for the chosen frequencies, as the authors' code does. With the scored phases, near-copies of
        one good feature would be kept.
    phase_free : bool, default=False
        Use the score sqrt(C^2 + S^2), with C and S the correlations with the cosine and the sine of the frequency. This
        score does not depend on the phase.

    See Also
    --------
    Chooser : the parameters that all choosers share.
    """

    rules: ClassVar[Mapping[str, Rule]] = {**Chooser.rules, "redraw_phases": FLAG, "phase_free": FLAG}

    redraw_phases: bool = True
    phase_free: bool = False

    def scores(self, pool: Pool, X: Array, y: Array) -> Array:
        """Return sqrt(2 / n_candidates) |mean(y psi)| of every candidate, shape (n_candidates,).

        With several outputs |.| is the norm of the vector over outputs.
        """
        scored = self._scored(pool)
        strength = self._strength(pool, [scored.moment(X, column) for column in outputs(y)])
        return np.asarray(np.sqrt(2 / pool.n_candidates) / len(y) * strength)

    def _scored(self, pool: Pool) -> FeatureMap:
        return pool.pairs if self.phase_free else pool.feature_map

    def _strength(self, pool: Pool, moments: list[Array]) -> Array:
        """Return |y'psi| of every candidate: the norm over outputs, and over the cosine and the sine of a pair."""
        parts = np.concatenate(moments).reshape(-1, pool.n_candidates)
        return np.asarray(np.abs(np.hypot.reduce(parts)))

    def best(self, pool: Pool, X: Array, y: Array) -> np.ndarray:
        """Return the indices of the candidates with the highest scores, best first.

        Scores in single precision, with error bounds, rule out most candidates. Double precision decides among the
        rest.
        """
        scored = self._scored(pool)
        moments, errors = zip(*(scored.rough_moment(X, column) for column in outputs(y)), strict=True)
        rough, margin = self._strength(pool, [*moments]), self._strength(pool, [*errors])
        cut = np.partition(rough - margin, -self.n_kept)[-self.n_kept]
        possible = np.flatnonzero(rough + margin >= cut)
        return possible[np.argsort(-self.scores(pool.take(possible), X, y), kind="stable")[: self.n_kept]]

    def choose(
        self, pool: Pool, X: Array, y: Array, rng: np.random.Generator, weight: Array | None = None
    ) -> FeatureMap:
        """Keep the candidates with the highest scores."""
        chosen = self.best(pool, X, y if weight is None else (y.T * weight).T)
        if self.redraw_phases and pool.phases is not None:
            return FeatureMap.unweighted(pool.frequencies[:, chosen], rng.uniform(0, 2 * np.pi, chosen.size))
        return pool.keep(chosen)


@dataclass(frozen=True, kw_only=True)
class _Sampled(Chooser, ABC):
    """Importance sampling: draw candidates with replacement in proportion to a score.

    Weights keep the features an unbiased estimate of the kernel.
    """

    @abstractmethod
    def scores(self, pool: Pool, X: Array, y: Array, weight: Array | None = None) -> Array:
        """Return a positive score of every candidate, shape (n_candidates,)."""

    def choose(
        self, pool: Pool, X: Array, y: Array, rng: np.random.Generator, weight: Array | None = None
    ) -> FeatureMap:
        """Sample in proportion to the scores."""
        scores = self.scores(pool, X, y, weight)
        probabilities = scores / scores.sum()
        chosen = rng.choice(pool.n_candidates, size=self.n_kept, p=probabilities)
        return pool.keep(chosen, weights=1 / np.sqrt(pool.n_candidates * probabilities[chosen]))


@dataclass(frozen=True, kw_only=True)
class Leverage(_Sampled):
    """Sample by ridge leverage score, diag(Z'Z (Z'Z + n alpha I)^-1) over the pool (Li et al. 2019).

    Parameters
    ----------
    alpha : float, default=1e-6
        The regularisation of the scores (the paper's lambda).

    See Also
    --------
    Chooser : the parameters that all choosers share.
    """

    rules: ClassVar[Mapping[str, Rule]] = {**Chooser.rules, "alpha": POSITIVE}

    alpha: float = 1e-6

    def scores(self, pool: Pool, X: Array, y: Array, weight: Array | None = None) -> Array:
        """Return the ridge leverage score of every candidate; the score of a pair is the sum over its two features."""
        features = pool.feature_map(X)
        features *= np.sqrt(2 / features.shape[1]) * roots(weight, len(X))
        ridge = (len(X) if weight is None else float(weight.sum())) * self.alpha
        if features.shape[1] <= len(X):
            gram = features.T @ features
            inverse = cho_solve(cho_factor(gram + ridge * np.eye(len(gram))), np.eye(len(gram)))
            leverage = 1 - ridge * np.diag(inverse)
        else:
            outer = features @ features.T
            solved = cho_solve(cho_factor(outer + ridge * np.eye(len(outer))), features)
            leverage = np.sum(features * solved, axis=0)
        positive: Array = np.maximum(leverage, np.finfo(float).eps).reshape(pool.width, -1).sum(axis=0)
        return positive


@dataclass(frozen=True, kw_only=True)
class Surrogate(_Sampled):
    """Sample by the response-weighted surrogate leverage z'(yy' + n I)z of Liu et al. 2020, in linear time.

    See Also
    --------
    Chooser : the parameters that all choosers share.
    """

    def scores(self, pool: Pool, X: Array, y: Array, weight: Array | None = None) -> Array:
        """Return (z'y)^2 + n |z|^2 of every candidate z; the score of a pair is the sum over its two features."""
        root = roots(weight, len(X))
        features = pool.feature_map(X) * root
        correlations = sum((column @ features) ** 2 for column in outputs((y.T * root[:, 0]).T))
        n_rows = len(X) if weight is None else float(weight.sum())
        scores = correlations + n_rows * np.einsum("ni,ni->i", features, features)
        summed: Array = scores.reshape(pool.width, -1).sum(axis=0)
        return summed
