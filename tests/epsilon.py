"""An audit of a privacy guarantee from outside: a lower bound on epsilon from many runs.

(epsilon, delta) differential privacy guarantees the following for any two neighbouring data sets: no test of a release
has a true positive rate above e^epsilon times its false positive rate plus delta. The same holds for the rates of
negatives. So any test with rates t and f shows epsilon >= log((t - delta) / f).

The test here is the likelihood ratio of a normal model. Pilot runs give its direction, and further runs its threshold.
Clopper and Pearson's intervals for the rates on fresh runs then give a bound that holds with the required confidence. A
bound above the promised epsilon means that the guarantee is broken: by a wrong sensitivity, by missing noise, or by a
value that bypassed the mechanism.

Jagielski, Ullman and Oprea, Auditing differentially private machine learning, NeurIPS 2020.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from dekrr.errors import SettingsError
from dekrr.types import Array

Data = TypeVar("Data")


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Parameters
    ----------
    lower_bound : float
        A lower bound on epsilon for any mechanism, with the required confidence.
    gaussian_bound : float
        A lower bound on epsilon for a mechanism that is known to add Gaussian noise. The rates give the scale of the
        noise, and the scale gives epsilon at the promised delta. This bound is much tighter (Nasr et al., Tight
        auditing, USENIX Security 2023).
    true_positives, false_positives : float
        The rates of the test on the fresh runs.
    runs : int
        The number of fresh runs on each data set.
    """

    lower_bound: float
    gaussian_bound: float
    true_positives: float
    false_positives: float
    runs: int


def audit(
    release: Callable[[Data], Array], first: Data, second: Data, *, runs: int, delta: float, confidence: float = 0.99
) -> Audit:
    """Bound epsilon from below by releasing each of two neighbouring data sets `runs` times.

    Parameters
    ----------
    release : callable
        Returns what an outsider sees of a data set, as a random vector of fixed length.
    first, second
        Neighbouring data sets.
    runs : int
        The number of runs on each data set: a quarter for the direction, a quarter for the threshold, half for the
        rates.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> found = audit(lambda x: x + rng.normal(size=1), np.zeros(1), np.ones(1), runs=2000, delta=1e-5)
    >>> found.lower_bound < found.gaussian_bound < gaussian_epsilon(1.0, 1e-5)
    True
    """
    if runs < 40:
        raise SettingsError(f"an audit needs at least 40 runs, got {runs}")
    samples = [np.array([release(data) for _ in range(runs)]) for data in (first, second)]
    pilot, middle = runs // 4, runs // 2
    direction = _direction(samples[0][:pilot], samples[1][:pilot])
    zeros, ones = (sample @ direction for sample in samples)
    n_fresh = runs - middle
    threshold, positive = _best_threshold(zeros[pilot:middle], ones[pilot:middle], delta)
    counts = [int(np.sum((scores[middle:] > threshold) == positive)) for scores in (zeros, ones)]
    if not positive:
        counts = counts[::-1]
    level = 1 - (1 - confidence) / 2
    false_upper = _upper(counts[0], n_fresh, level)
    true_lower = 1 - _upper(n_fresh - counts[1], n_fresh, level)
    bound = float(np.log((true_lower - delta) / false_upper)) if true_lower > delta else -np.inf
    cut = float(np.median(np.concatenate([zeros[pilot:middle], ones[pilot:middle]])))
    misses = [int(np.sum(zeros[middle:] > cut)), int(np.sum(ones[middle:] <= cut))]
    shift = -sum(float(stats.norm.ppf(_upper(count, n_fresh, level))) for count in misses)
    gaussian = gaussian_epsilon(shift, delta)
    return Audit(max(bound, 0.0), gaussian, counts[1] / n_fresh, counts[0] / n_fresh, n_fresh)


def gaussian_epsilon(shift: float, delta: float) -> float:
    """Return the epsilon of unit Gaussian noise for the sensitivity `shift` (Balle and Wang, ICML 2018)."""
    if shift <= 0:
        return 0.0

    def excess(epsilon: float) -> float:
        tail = np.exp(epsilon + stats.norm.logcdf(-shift / 2 - epsilon / shift))
        return float(stats.norm.cdf(shift / 2 - epsilon / shift) - tail - delta)

    return float(brentq(excess, 0.0, shift**2 / 2 + 10 * shift + 1)) if excess(0.0) > 0 else 0.0


def _direction(zeros: Array, ones: Array) -> Array:
    """Return the direction of the normal likelihood ratio, S^-1 (difference of means), with a shrinkage estimate of S.

    If an entry has no noise but differs between the data sets, such entries alone are the direction.
    """
    difference = ones.mean(axis=0) - zeros.mean(axis=0)
    deviations = np.vstack([zeros - zeros.mean(axis=0), ones - ones.mean(axis=0)])
    spread = deviations.std(axis=0)
    fixed = spread <= 1e-9 * np.maximum(np.abs(zeros).max(axis=0), 1e-300)
    telling = fixed & (np.abs(difference) > 1e-9 * np.maximum(np.abs(zeros).max(axis=0), 1e-300))
    if telling.any():
        return np.where(telling, np.sign(difference) / np.maximum(np.abs(difference), 1e-300), 0.0)
    scale = np.where(fixed, np.inf, spread)
    scaled = deviations / scale
    covariance = scaled.T @ scaled / len(scaled) + 1e-6 * np.eye(len(scale))
    return np.asarray(np.linalg.solve(covariance, difference / scale) / scale)


def _best_threshold(zeros: Array, ones: Array, delta: float) -> tuple[float, bool]:
    """Return the threshold with the largest bound on these runs, and whether scores above it are positive."""
    best = (-np.inf, float(np.median(np.concatenate([zeros, ones]))), True)
    n_runs = len(zeros)
    for threshold in np.quantile(np.concatenate([zeros, ones]), np.linspace(0.005, 0.995, 199)):
        high = [int(np.sum(scores > threshold)) for scores in (zeros, ones)]
        low = [n_runs - count for count in high]
        for positive, (false, true) in ((True, high), (False, low[::-1])):
            true_lower = 1 - _upper(n_runs - true, n_runs, 0.95)
            if true_lower > delta:
                bound = np.log((true_lower - delta) / _upper(false, n_runs, 0.95))
                best = max(best, (float(bound), float(threshold), positive))
    return best[1], best[2]


def _upper(count: int, trials: int, level: float) -> float:
    """Return Clopper and Pearson's upper confidence limit for a rate."""
    return float(stats.beta.ppf(level, count + 1, trials - count)) if count < trials else 1.0
