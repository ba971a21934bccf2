"""Membership by shadow data sets: was a known row among those that a sum is over?

The likelihood-ratio attack of Carlini, Chien, Nasr, Song, Terzis and Tramèr (Membership inference attacks from first
principles, IEEE Symposium on Security and Privacy, 2022), on one Gram matrix Z'Z that a neighbour was sent. The
attacker has a pool of candidates, half of which were in the sum. It draws shadow data sets, random halves of the pool,
and computes their Gram matrices itself. The statistic of a candidate is the logarithm of its leverage z'(Z'Z)^-1 z. A
row that is in the sum lowers its own leverage. For each candidate two normal distributions are fitted to the statistic:
over the shadows with it, and over those without it. The score is the logarithm of the likelihood ratio at the sum that
was sent. Sums that several neighbours were sent have independent features, so that their scores add up.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ..types import Array
from .views import Block

_SHADOWS = 128
_LEAST_VARIANCE = 1e-6
_ROUNDING = 1e-10


def scores(
    blocks: Iterable[Block],
    pool: Array,
    n_rows: int | Sequence[int],
    rng: np.random.Generator,
    n_shadows: int = _SHADOWS,
    *,
    sites: np.ndarray | None = None,
) -> Array:
    """Return the log-likelihood ratio of each candidate, shape (n_candidates,); higher is likelier a member.

    Parameters
    ----------
    blocks : iterable of Block
        Gram matrices over the same rows.
    pool : ndarray of shape (n_candidates, n_columns)
        Members and others, in any order.
    n_rows : int, or sequence of int
        How many rows the sums are over; of each site, where they are over several.
    rng : Generator
    n_shadows : int, default=128
    sites : ndarray of int, shape (n_candidates,), optional
        The site of each candidate, 0, 1 and so on, where the sums are over several.

    Examples
    --------
    >>> from dekrr.features import FeatureMap
    >>> from dekrr.attacks.views import summed
    >>> rng = np.random.default_rng(0)
    >>> pool = rng.uniform(size=(80, 2))
    >>> features = FeatureMap.unweighted(rng.normal(scale=4, size=(2, 25)), rng.uniform(0, 7, 25))
    >>> heard = summed(features, features, pool[:40], pool[:40, 0], np.ones(1, dtype=bool))
    >>> found = scores([heard], pool, 40, rng)
    >>> bool(found[:40].mean() > found[40:].mean())
    True
    """
    sites = np.zeros(len(pool), dtype=int) if sites is None else sites
    halves = np.zeros((n_shadows, len(pool)), dtype=bool)
    for site, count in enumerate([n_rows] if isinstance(n_rows, int) else n_rows):
        places = np.flatnonzero(sites == site)
        halves[:, places] = [_half(len(places), count, rng) for _ in range(n_shadows)]
    return np.asarray(sum((_scores_of(block, pool, halves) for block in blocks), np.zeros(len(pool))))


def scores_of_models(
    heard: Array,
    residuals: Callable[[np.ndarray], Array],
    n_rows: int,
    rng: np.random.Generator,
    n_shadows: int = _SHADOWS,
) -> Array:
    """Return the log-likelihood ratio of each candidate by a model; the statistic is its residual.

    Parameters
    ----------
    heard : ndarray of shape (n_candidates,)
        The residuals of the model under attack.
    residuals : callable
        Takes a mask of candidates, and returns the residuals of all candidates by a model of those.
    n_rows : int
        How many rows the model is of.
    rng : Generator
    n_shadows : int, default=128
    """
    halves = np.array([_half(len(heard), n_rows, rng) for _ in range(n_shadows)])
    shadows = np.array([residuals(half) for half in halves])
    return _log_likelihood(heard, shadows, halves, 1e-12) - _log_likelihood(heard, shadows, ~halves, 1e-12)


def _half(n_candidates: int, n_rows: int, rng: np.random.Generator) -> np.ndarray:
    taken = np.zeros(n_candidates, dtype=bool)
    taken[rng.permutation(n_candidates)[:n_rows]] = True
    return taken


def _scores_of(block: Block, pool: Array, halves: np.ndarray) -> Array:
    features = block.left(pool)
    shadows = np.array([_log_leverages(features, features[half].T @ features[half]) for half in halves])
    heard = _log_leverages(features, block.sums)
    return _log_likelihood(heard, shadows, halves) - _log_likelihood(heard, shadows, ~halves)


def _log_leverages(features: Array, gram: Array) -> Array:
    ridge = _ROUNDING * float(np.trace(gram))
    solved = np.linalg.solve(gram + ridge * np.eye(len(gram)), features.T)
    return np.asarray(np.log(np.maximum(np.einsum("nd,dn->n", features, solved), _ROUNDING)))


def _log_likelihood(heard: Array, shadows: Array, which: np.ndarray, least: float = _LEAST_VARIANCE) -> Array:
    """Return the log-density of what was heard, by a normal law of the chosen shadows, for each candidate."""
    counts = np.maximum(which.sum(axis=0), 1)
    means = (shadows * which).sum(axis=0) / counts
    variances = ((shadows - means) ** 2 * which).sum(axis=0) / counts + least
    return np.asarray(-(np.log(variances) + (heard - means) ** 2 / variances) / 2)
