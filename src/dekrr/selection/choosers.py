"""How a site chooses its features from its own rows.

A selector draws a pool of `pool_ratio` times `n_features` candidates from the kernel's spectral density
and keeps `n_features` of them. Each selector is a scikit-learn transformer that works alone, for instance
in a pipeline with Ridge.

References
----------
energy : Shahrampour, Beirami and Tarokh, On data-dependent random features for improved generalization in
    supervised learning, AAAI 2018.
leverage : Li, Ton, Oglic and Sejdinovic, Towards a unified analysis of random Fourier features, ICML 2019.
surrogate : Liu, Huang, Chen, Yang and Suykens, Random Fourier features via fast surrogate leverage
    weighted sampling, AAAI 2020.
greedy : Chen, Billings and Luo, Orthogonal least squares methods and their application to non-linear
    system identification, International Journal of Control 50(5), 1989.
"""

from abc import abstractmethod
from dataclasses import dataclass, field
from inspect import signature
from numbers import Integral, Real
from typing import Any, ClassVar, Protocol, Self, dataclass_transform

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from .cosines import loops_for
from .errors import SettingsError
from .features import FeatureMap, paired
from .kernels import KERNELS, make_kernel
from .statistics import weigh
from .types import Array

MAPPINGS = ("cos", "cossin")
LONG_WAVE = 0.02
_WHOLE_FROM = 0.1  # of the pool taken, its products are computed as a whole


@dataclass_transform(eq_default=False, kw_only_default=True)
def parameters(estimator: type[Any]) -> Any:
    """Give an estimator a constructor that only stores its keywords, as scikit-learn wants it.

    Its signature, which scikit-learn asks for in every call of fit, is found once.
    """
    made = dataclass(eq=False, repr=False, kw_only=True)(estimator)
    made.__init__.__signature__ = signature(made.__init__)
    return made


class Pool:
    """The candidates of one selection: frequencies with phases, or cos/sin pairs of frequencies.

    Parameters
    ----------
    frequencies : ndarray of shape (n_columns, n_candidates)
    phases : ndarray of shape (n_candidates,) or None
        None makes every candidate a cos/sin pair, which counts as two features.
    amplitudes : ndarray of shape (n_candidates,), optional
        1 when left out.
    """

    def __init__(self, frequencies: Array, phases: Array | None, amplitudes: Array | None = None) -> None:
        self.frequencies = frequencies
        self.phases = phases
        self.amplitudes = np.ones(frequencies.shape[1]) if amplitudes is None else amplitudes

    @property
    def n_candidates(self) -> int:
        """How many candidates there are; a pair is one."""
        return int(self.frequencies.shape[1])

    @property
    def width(self) -> int:
        """How many features one candidate is: 1, or 2 for a pair."""
        return 1 if self.phases is not None else 2

    @property
    def feature_map(self) -> FeatureMap:
        """All candidates as features of their own amplitudes; pairs have all cosines, then all sines."""
        if self.phases is not None:
            return FeatureMap(self.frequencies, self.phases, self.amplitudes)
        pairs = paired(self.frequencies)
        return FeatureMap(pairs.frequencies, pairs.phases, np.tile(self.amplitudes, 2))

    @property
    def pairs(self) -> FeatureMap:
        """The cosine and the sine of every candidate's frequency, whatever its phase; all cosines come first."""
        return Pool(self.frequencies, None, self.amplitudes).feature_map

    def take(self, chosen: np.ndarray) -> "Pool":
        """Return the pool of the chosen candidates."""
        phases = self.phases[chosen] if self.phases is not None else None
        return Pool(self.frequencies[:, chosen], phases, self.amplitudes[chosen])

    def keep(self, chosen: np.ndarray, weights: Array | None = None) -> FeatureMap:
        """Return the map of the chosen candidates: sqrt(2/D) times their amplitudes times `weights`."""
        every = self.take(chosen).feature_map
        amplitudes = every.amplitudes * np.sqrt(2 / max(every.n_features, 1))
        if weights is not None:
            amplitudes = amplitudes * np.tile(weights, self.width)
        return FeatureMap(every.frequencies, every.phases, amplitudes)


@parameters
class Selector(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base of the selectors; see the module's documentation.

    Parameters
    ----------
    n_features : int, default=100
        How many features to keep (the paper's D). A cos/sin pair is two.
    kernel : {"gaussian", "laplacian", "cauchy"}, default="gaussian"
    sigma : float, default=1.0
        The kernel's bandwidth.
    bandwidths : sequence of float, default=(1.0,)
        Candidates are drawn in equal parts with bandwidth sigma times each of these.
    max_columns : int, optional
        Let every candidate look at 1 to `max_columns` columns, drawn at random, with the same length of
        frequency as if it looked at all. None has it look at all columns.
    mapping : {"cos", "cossin"}, default="cos"
        One cosine with a random phase per candidate, or a cos/sin pair.
    pool_ratio : float, default=20
        Candidates per feature kept (the paper's D_0 / D).
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    feature_map_ : FeatureMap
        The chosen features.
    """

    uses_rows: ClassVar[bool] = True
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_features": [Interval(Integral, 1, None, closed="left")],
        "kernel": [StrOptions(set(KERNELS))],
        "sigma": [Interval(Real, 0, None, closed="neither")],
        "bandwidths": ["array-like"],
        "max_columns": [Interval(Integral, 1, None, closed="left"), None],
        "mapping": [StrOptions(set(MAPPINGS))],
        "pool_ratio": [Interval(Real, 0, None, closed="neither")],
        "random_state": ["random_state"],
    }

    n_features: int = field(default=100, kw_only=False)
    kernel: str = "gaussian"
    sigma: float = 1.0
    bandwidths: tuple[float, ...] = (1.0,)
    max_columns: int | None = None
    mapping: str = "cos"
    pool_ratio: float = 20
    random_state: Any = None

    def fit(self, X: Any, y: Any) -> Self:
        """Choose features from rows.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns)
        y : array-like of shape (n_rows,)
        """
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        self.feature_map_ = self.checked().select(X, y, np.random.default_rng(seed))
        self._n_features_out = self.feature_map_.n_features
        return self

    def transform(self, X: Any) -> Array:
        """Return the chosen features of rows `X`, shape (n_rows, n_features)."""
        check_is_fitted(self)
        features: Array = self.feature_map_(validate_data(self, X, dtype=np.float64, reset=False))
        return features

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def checked(self) -> Self:
        """Return the selector itself, or raise an error that names the parameter that is wrong."""
        self._validate_params()
        return self

    def select(self, X: Array, y: Array, rng: np.random.Generator) -> FeatureMap:
        """Draw a pool with `rng` and keep the best for rows `X` (n_rows, n_columns) and responses `y`.

        Parameters are taken as `checked`.
        """
        return self._choose(self._large_enough_pool(X.shape[1], rng), X, y, rng)

    def _large_enough_pool(self, n_columns: int, rng: np.random.Generator) -> Pool:
        pool = self.draw_pool(n_columns, rng)
        if self._n_kept > pool.n_candidates:
            raise SettingsError(
                f"{self.n_features} features cannot be chosen from a pool of {pool.n_candidates * pool.width}: "
                f"pool_ratio={self.pool_ratio} must be at least 1"
            )
        return pool

    def most_features(self, wanted: int, n_rows: int) -> int:
        """Return how many features to choose by `n_rows` rows when `wanted` are asked for."""
        return wanted

    @property
    def width(self) -> int:
        """Features that a candidate gives: a cosine, or a cosine and a sine."""
        return 1 if self.mapping == "cos" else 2

    @property
    def _n_kept(self) -> int:
        """How many candidates are kept: half of `n_features` when each is a pair."""
        if self.n_features % self.width:
            raise SettingsError(f'mapping="cossin" needs an even number of features, got {self.n_features}')
        return int(self.n_features) // self.width

    def draw_pool(self, n_columns: int, rng: np.random.Generator) -> Pool:
        """Draw the candidates for rows of `n_columns` columns."""
        return self._draw(n_columns, round(self._n_kept * self.pool_ratio), rng)

    def _draw(self, n_columns: int, n_candidates: int, rng: np.random.Generator) -> Pool:
        bandwidths = np.asarray(self.bandwidths, dtype=float)
        if bandwidths.ndim != 1 or not bandwidths.size or not (np.isfinite(bandwidths) & (bandwidths > 0)).all():
            raise SettingsError(f"bandwidths must be positive numbers, got {self.bandwidths!r}")
        parts = np.array_split(np.arange(n_candidates), bandwidths.size)
        frequencies = np.hstack(
            [
                make_kernel(self.kernel, self.sigma * factor).draw_frequencies(n_columns, part.size, rng)
                for factor, part in zip(bandwidths, parts, strict=True)
            ]
        )
        if self.max_columns is not None:
            frequencies *= _random_columns(n_columns, n_candidates, self.max_columns, rng)
        phases = rng.uniform(0, 2 * np.pi, n_candidates) if self.mapping == "cos" else None
        return Pool(frequencies, phases)

    @abstractmethod
    def _choose(self, pool: Pool, X: Array, y: Array, rng: np.random.Generator) -> FeatureMap:
        """Return the map of the candidates to keep."""


def _random_columns(n_columns: int, n_candidates: int, most: int, rng: np.random.Generator) -> Array:
    """Return factors that leave each candidate 1 to `most` random columns, at the same expected length."""
    how_many = np.minimum(rng.integers(1, most + 1, n_candidates), n_columns)
    draws = rng.random((n_columns, n_candidates))
    lowest = np.sort(np.partition(draws, min(most, n_columns) - 1, axis=0)[:most], axis=0)
    used = draws <= lowest[how_many - 1, np.arange(n_candidates)]
    return np.where(used, np.sqrt(n_columns / how_many), 0.0)


@parameters
class PlainSelector(Selector):
    """No selection: as many features as asked for, straight from the kernel's density.

    `pool_ratio` has no effect here.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.zeros((4, 3))
    >>> PlainSelector(n_features=6, random_state=0).fit(X, np.zeros(4)).transform(X).shape
    (4, 6)
    """

    uses_rows: ClassVar[bool] = False

    def draw_pool(self, n_columns: int, rng: np.random.Generator) -> Pool:
        """Draw just the features that are kept."""
        return self._draw(n_columns, self._n_kept, rng)

    def _choose(self, pool: Pool, X: Array, y: Array, rng: np.random.Generator) -> FeatureMap:
        return pool.keep(np.arange(pool.n_candidates))


@parameters
class EnergySelector(Selector):
    """Keep the candidates that correlate most with the response: the highest |mean(y psi)|, the paper's.

    Parameters
    ----------
    redraw_phases : bool, default=True
        Draw new phases for the chosen frequencies, as the authors' code does. Keeping the scored ones
        keeps near-copies of one good feature.
    phase_free : bool, default=False
        Score sqrt(C^2 + S^2) of the correlations with the cosine and the sine, whatever the phase.

    See Also
    --------
    Selector : the parameters that all selectors share.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **Selector._parameter_constraints,
        "redraw_phases": ["boolean"],
        "phase_free": ["boolean"],
    }

    redraw_phases: bool = True
    phase_free: bool = False

    def scores(self, pool: Pool, X: Array, y: Array) -> Array:
        """Return sqrt(2 / n_candidates) |mean(y psi)| of every candidate, shape (n_candidates,)."""
        strength = self._strength(pool, self._scored(pool).moment(X, y))
        return np.asarray(np.sqrt(2 / pool.n_candidates) / len(y) * strength)

    def _scored(self, pool: Pool) -> FeatureMap:
        return pool.pairs if self.phase_free else pool.feature_map

    def _strength(self, pool: Pool, moment: Array) -> Array:
        """Return |y'psi| of every candidate, or the length of that of a cosine and a sine."""
        parts = moment.reshape(-1, pool.n_candidates)
        return np.asarray(np.abs(parts[0]) if len(parts) == 1 else np.hypot(*parts))

    def best(self, pool: Pool, X: Array, y: Array) -> np.ndarray:
        """Return the candidates of the highest scores, best first.

        Single precision tells which may be among them; double precision, of those alone, which are.
        """
        moment, error = self._scored(pool).rough_moment(X, y)
        rough, margin = self._strength(pool, moment), self._strength(pool, error)
        cut = np.partition(rough - margin, -self._n_kept)[-self._n_kept]
        possible = np.flatnonzero(rough + margin >= cut)
        return possible[np.argsort(-self.scores(pool.take(possible), X, y), kind="stable")[: self._n_kept]]

    def _choose(self, pool: Pool, X: Array, y: Array, rng: np.random.Generator) -> FeatureMap:
        chosen = self.best(pool, X, y)
        if self.redraw_phases and pool.phases is not None:
            return FeatureMap.unweighted(pool.frequencies[:, chosen], rng.uniform(0, 2 * np.pi, chosen.size))
        return pool.keep(chosen)


@parameters
class _SampledSelector(Selector):
    """Draw candidates with replacement in proportion to a score, weighted so that the kernel stays unbiased."""

    @abstractmethod
    def scores(self, pool: Pool, X: Array, y: Array) -> Array:
        """Return a positive score of every candidate, shape (n_candidates,)."""

    def _choose(self, pool: Pool, X: Array, y: Array, rng: np.random.Generator) -> FeatureMap:
        scores = self.scores(pool, X, y)
        probabilities = scores / scores.sum()
        chosen = rng.choice(pool.n_candidates, size=self._n_kept, p=probabilities)
        return pool.keep(chosen, weights=1 / np.sqrt(pool.n_candidates * probabilities[chosen]))


@parameters
class LeverageSelector(_SampledSelector):
    """Sample by ridge leverage score, diag(Z'Z (Z'Z + n alpha I)^-1) over the pool (Li et al. 2019).

    Parameters
    ----------
    alpha : float, default=1e-6
        The regularisation of the scores (the paper's lambda).

    See Also
    --------
    Selector : the parameters that all selectors share.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **Selector._parameter_constraints,
        "alpha": [Interval(Real, 0, None, closed="neither")],
    }

    alpha: float = 1e-6

    def scores(self, pool: Pool, X: Array, y: Array) -> Array:
        """Return the ridge leverage score of every candidate; a pair has the sum of its two."""
        features = pool.feature_map(X)
        features *= np.sqrt(2 / features.shape[1])
        ridge = len(X) * self.alpha
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


@parameters
class SurrogateSelector(_SampledSelector):
    """Sample by the response-weighted surrogate leverage z'(yy' + n I)z of Liu et al. 2020, in linear time.

    See Also
    --------
    Selector : the parameters that all selectors share.
    """

    def scores(self, pool: Pool, X: Array, y: Array) -> Array:
        """Return (z'y)^2 + n |z|^2 of every candidate z; a pair has the sum of its two."""
        features = pool.feature_map(X)
        scores = (y @ features) ** 2 + len(X) * np.einsum("ni,ni->i", features, features)
        summed: Array = scores.reshape(pool.width, -1).sum(axis=0)
        return summed


@parameters
class GreedySelector(Selector):
    """Orthogonal least squares: take, one after another, the candidate that most reduces the ridge residual.

    With S the features taken so far, G the pool's Gram matrix and mu the ridge, adding candidate i lowers
    min |y - Z_S theta|^2 + mu |theta|^2 by r_i^2 / s_i, where r = Z'(y - Z_S theta) and
    s_i = G_ii + mu - G_iS (G_SS + mu I)^-1 G_Si. Both are kept up to date for all candidates with one
    column of a growing Cholesky factor per feature taken; nothing is refitted.

    The choice needs sums over rows only. In a network a site takes `shortlist` times as many candidates by its
    own rows first, asks its neighbours for their sums over those, and chooses among them with the neighbours'
    rows counting as much, together, as its own.

    Parameters
    ----------
    bandwidths : sequence of float, default=(1.0, 2.0, 4.0, 8.0)
    max_columns : int or None, default=4
    linear : bool, default=True
        Have the raw columns and a constant among the candidates (for mapping "cos"). A raw column is a wave so
        long, `LONG_WAVE` radians a unit, that it is straight to 1 in 15,000 on [0, 1].
    shortlist : float, default=3.0
        Candidates per feature that neighbours are asked about; 1 asks nobody.
    ridge : float, default=1e-6
        mu divided by the number of rows, for candidates of amplitude 1.
    max_rows : int or None, default=5000
        Choose by at most so many rows, drawn at random.

    See Also
    --------
    Selector : the parameters that all selectors share.
    """

    bandwidths: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    max_columns: int | None = 4
    linear: bool = True
    shortlist: float = 3.0
    ridge: float = 1e-6
    max_rows: int | None = 5000

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **Selector._parameter_constraints,
        "linear": ["boolean"],
        "shortlist": [Interval(Real, 1, None, closed="left")],
        "ridge": [Interval(Real, 0, None, closed="neither")],
        "max_rows": [Interval(Integral, 1, None, closed="left"), None],
    }

    def draw_pool(self, n_columns: int, rng: np.random.Generator) -> Pool:
        """Draw the candidates, and add a constant and the raw columns where they are wanted."""
        drawn = super().draw_pool(n_columns, rng)
        if not self.linear or drawn.phases is None:
            return drawn
        frequencies = np.hstack([drawn.frequencies, np.zeros((n_columns, 1)), LONG_WAVE * np.eye(n_columns)])
        phases = np.concatenate([drawn.phases, [0.0], np.full(n_columns, -np.pi / 2)])
        amplitudes = np.concatenate([drawn.amplitudes, [1.0], np.full(n_columns, np.sqrt(2) / LONG_WAVE)])
        return Pool(frequencies, phases, amplitudes)

    def most_features(self, wanted: int, n_rows: int) -> int:
        """Return at most as many features as rows: what comes after leaves no residual to choose by."""
        return min(wanted, max(self.width, n_rows - n_rows % self.width))

    def shortlisted(self, X: Array, y: Array, rng: np.random.Generator) -> Pool:
        """Return the best candidates by these rows: `shortlist` times as many as will be kept."""
        return self.fold_shortlists(X, y, np.zeros(len(y), dtype=int), 0, rng)[-1]

    def fold_shortlists(
        self, X: Array, y: Array, fold_of: np.ndarray, n_folds: int, rng: np.random.Generator
    ) -> list[Pool]:
        """Return the shortlist by the rows outside each fold, and last the one by all rows.

        Sums over rows add up, so that all folds cost one pass over the pool.

        Parameters
        ----------
        X, y : ndarray of shape (n_rows, n_columns) and (n_rows,)
        fold_of : ndarray of int, shape (n_rows,)
        n_folds : int
        rng : Generator
        """
        pool = self._large_enough_pool(X.shape[1], rng)
        n_listed = min(round(self._n_kept * self.shortlist), max(self._n_kept, len(y)), pool.n_candidates)
        sample = self._sample(len(y), rng)
        products = _Products(pool, X[sample], y[sample], n_listed, fold_of[sample])
        outside = [np.flatnonzero(products.folds != fold) for fold in range(n_folds)]
        kept = [*outside, np.arange(len(products.folds))]
        return [pool.take(self._order(pool, _PoolSums(products, folds), n_listed)) for folds in kept]

    def gains(self, X: Array, y: Array, n_taken: int, rng: np.random.Generator) -> Array:
        """Return by how much each further candidate would lower the squared error on these rows, at most `n_taken`."""
        pool = self._large_enough_pool(X.shape[1], rng)
        sample = self._sample(len(y), rng)
        n_taken = min(n_taken, pool.n_candidates)
        sums = _PoolSums(_Products(pool, X[sample], y[sample], n_taken))
        gains = greedy_path(sums, n_taken, ridge=self.ridge * sums.n_rows, width=pool.width)[1]
        return np.asarray(gains * len(y) / sums.n_rows)

    def choose_from(self, pool: Pool, gram: Array, moment: Array, n_rows: float) -> FeatureMap:
        """Return the map of the best candidates by sums Z'Z and Z'y over `n_rows` (weighted) rows."""
        sums = _GramSums(gram, moment, n_rows)
        return pool.keep(self._order(pool, sums, self._n_kept))

    def _choose(self, pool: Pool, X: Array, y: Array, rng: np.random.Generator) -> FeatureMap:
        sample = self._sample(len(y), rng)
        sums = _PoolSums(_Products(pool, X[sample], y[sample], self._n_kept))
        return pool.keep(self._order(pool, sums, self._n_kept))

    def _sample(self, n_rows: int, rng: np.random.Generator) -> np.ndarray | slice:
        if self.max_rows is None or n_rows <= self.max_rows:
            return slice(None)
        return np.sort(rng.choice(n_rows, size=self.max_rows, replace=False))

    def _order(self, pool: Pool, sums: "_Sums", n_taken: int) -> np.ndarray:
        return greedy_path(sums, n_taken, ridge=self.ridge * sums.n_rows, width=pool.width)[0]


class _Sums(Protocol):
    """Z'y and Z'Z of all candidates over some rows, as far as they are asked for."""

    moment: Array
    n_rows: float

    def diagonal(self, offset: int = 0) -> Array:
        """Return the entries (i, i + offset) of Z'Z."""

    def column(self, i: int) -> Array:
        """Return column i of Z'Z."""


class _GramSums:
    """Sums whose Z'Z is there."""

    def __init__(self, gram: Array, moment: Array, n_rows: float) -> None:
        self._gram = gram
        self.moment = moment
        self.n_rows = n_rows

    def diagonal(self, offset: int = 0) -> Array:
        return np.diagonal(self._gram, offset)

    def column(self, i: int) -> Array:
        return np.asarray(self._gram[i])


class _Products:
    """Products of candidates over the rows of each fold.

    Orthogonal least squares needs the columns of Z'Z of what it takes. Where folds together take a tenth of the pool or
    more, Z'Z as a whole takes the least time. Otherwise columns are computed when they are asked for. Each reads the
    whole pool, which is then kept in single precision, if compiled loops are there; products and sums of it are in
    double, so that Z'Z is that of features next to the right ones.

    Parameters
    ----------
    pool : Pool
    X, y : ndarray of shape (n_rows, n_columns) and (n_rows,)
    n_taken : int
        How many candidates are going to be taken.
    fold_of : ndarray of int, shape (n_rows,), optional
    """

    def __init__(self, pool: Pool, X: Array, y: Array, n_taken: int, fold_of: np.ndarray | None = None) -> None:
        fold_of = np.zeros(len(y), dtype=int) if fold_of is None else fold_of
        order = np.argsort(fold_of, kind="stable")
        folds, counts = np.unique(fold_of, return_counts=True)
        self.folds: np.ndarray = folds if len(y) else np.zeros(1, dtype=int)
        self.n_rows: np.ndarray = counts if len(y) else np.zeros(1, dtype=int)
        ends = np.cumsum(self.n_rows)
        whole = n_taken * len(self.folds) >= _WHOLE_FROM * pool.n_candidates
        n_features = pool.n_candidates * pool.width
        single = not whole and loops_for(len(y) * n_features) is not None
        features = np.empty((len(y), n_features), dtype=np.float32 if single else np.float64)
        feature_map, X, y = pool.feature_map, X[order], y[order]
        if single:
            center = X.mean(axis=0)
            feature_map, X = feature_map.around(center), X - center
        feature_map(X, out=features)
        self._parts = [features[end - size : end] for end, size in zip(ends, self.n_rows, strict=True)]
        responses = [y[end - size : end] for end, size in zip(ends, self.n_rows, strict=True)]
        self.moments = np.array([weigh(*each) for each in zip(responses, self._parts, strict=True)])
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


class _PoolSums:
    """Sums over the rows of some folds."""

    def __init__(self, products: _Products, folds: np.ndarray | None = None) -> None:
        self._products = products
        self._folds = np.arange(len(products.folds)) if folds is None else folds
        self.moment: Array = products.moments[self._folds].sum(axis=0)
        self.n_rows = float(products.n_rows[self._folds].sum())

    def diagonal(self, offset: int = 0) -> Array:
        return np.asarray(self._products.diagonals(offset)[self._folds].sum(axis=0))

    def column(self, i: int) -> Array:
        return np.asarray(self._products.columns(i)[self._folds].sum(axis=0))


def greedy_path(sums: _Sums, n_taken: int, *, ridge: float, width: int = 1) -> tuple[np.ndarray, Array]:
    """Return what orthogonal least squares takes, in order, and by how much each lowers the ridge residual.

    It needs sums over rows alone.

    Parameters
    ----------
    sums : object with `moment`, `column(i)` and `diagonal(offset)`
        Z'y and Z'Z of all candidates. For ``width=2``, candidate i is the pair of features i and
        n_candidates + i.
    n_taken : int
    ridge : float
        mu of `GreedySelector`.
    width : {1, 2}
    """
    n_features = len(sums.moment)
    n_candidates = n_features // width
    correlation = sums.moment
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
            correlation = correlation - row * (correlation[column] / pivot)
            remaining = remaining - row**2
            if width == 2:
                pair_product = pair_product - row[:n_candidates] * row[n_candidates:]
        open_candidates[best] = False
        taken.append(best)
        gains.append(float(gain[best]))
    return np.array(taken), np.array(gains)


def _gain(correlation: Array, remaining: Array, pair_product: Array, width: int, floor: float) -> Array:
    """Return how much each candidate lowers the ridge residual: r's^-1 r, with s a number or 2 x 2."""
    if width == 1:
        return np.asarray(correlation**2 / np.maximum(remaining, floor))
    (r_cos, r_sin), (s_cos, s_sin) = correlation.reshape(2, -1), remaining.reshape(2, -1)
    determinant = np.maximum(s_cos * s_sin - pair_product**2, floor**2)
    return np.asarray((s_sin * r_cos**2 - 2 * pair_product * r_cos * r_sin + s_cos * r_sin**2) / determinant)


SELECTORS: dict[str, type[Selector]] = {
    "plain": PlainSelector,
    "energy": EnergySelector,
    "leverage": LeverageSelector,
    "surrogate": SurrogateSelector,
    "greedy": GreedySelector,
}
