"""Two choosers: `Plain` keeps features as they are drawn, `Energy` those with the highest scores on a site's rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..features import FeatureMap
from ..rules import FLAG, Rule
from ..types import Array
from .choosers import Chooser, outputs
from .pool import Pool


@dataclass(frozen=True, kw_only=True)
class Plain(Chooser):
    """No selection: `n_features` features, drawn from the kernel's spectral density.

    `pool_ratio` has no effect here.

    See Also
    --------
    Chooser : the parameters that all choosers share.

    Examples
    --------
    >>> import numpy as np
    >>> from dekrr.selection import Plain
    >>> Plain(6).select(np.zeros((4, 3)), np.zeros(4), np.random.default_rng(0)).n_features
    6
    """

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
