"""Choosers that draw features with a chance: by leverage scores, or by a surrogate of them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from ..features import FeatureMap
from ..rules import POSITIVE, Rule
from ..types import Array
from .choosers import Chooser, outputs, roots
from .pool import Pool


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
