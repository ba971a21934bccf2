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

from ..errors import SettingsError
from ..features import FeatureMap
from ..messages import Coefficients, Sums
from ..networks.local import LocalNetwork
from ..privacy.mechanism import GaussianSums, pack
from ..privacy.shared_noise import SharedNoise
from ..protocols import dekrr
from ..protocols.exchange import sum_and_digest
from ..protocols.preparation import public_scaling
from ..protocols.site import Site
from ..rows import ArrayRows
from ..selection import Plain
from ..settings import DeKRRSettings, DifferentialPrivacy
from ..statistics import OwnSums, pack_symmetric, unpack_symmetric
from ..system import penalty
from ..types import Array
from .overhearing import Record

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
    delta : float
    confidence : float, default=0.99

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


def everything_sent(
    privacy: DifferentialPrivacy, neighbor: Site, *, n_features: int, sigma: float
) -> Callable[[tuple[Array, Array]], Array]:
    """Return a function that maps rows (X, y) of a site to all that its neighbour sees in a private run of two sites.

    That is the sums, the coefficients of the first rounds, and what follows from them: the first coefficients are
    (H + U)^-1 d. The neighbour has both sites' sums, so that it knows H + U, and hence d.

    Parameters
    ----------
    privacy : DifferentialPrivacy
    neighbor : Site
        Its name is "other", and its neighbours are ("target",).
    n_features : int
        An even number.
    sigma : float
    """
    settings = DeKRRSettings(
        privacy=privacy, scale=None, tol=0.0, max_rounds=2, solver="jacobi", self_penalty=0.0, alpha=1e-3, min_rows=1
    )
    selector = Plain(n_features, sigma=sigma)

    def release(rows: tuple[Array, Array]) -> Array:
        target = Site("target", ("other",), ArrayRows(*rows), seed=neighbor.seed)
        record = Record()
        network = LocalNetwork({"target": ["other"], "other": ["target"]}, observers=[record])
        outcomes = network.run({site.name: dekrr.train(site, selector, settings) for site in (target, neighbor)})
        sums = {
            sender: unpack_symmetric(record.between(sender, receiver, Sums)[0].gram, n_features)
            for sender, receiver in (("target", "other"), ("other", "target"))
        }
        coefficients = [m.values for m in record.between("target", "other", Coefficients)]
        n_rows = outcomes["other"].roster.n_rows
        pull = penalty(settings.consensus, n_rows, 1)
        ridge = settings.alpha / 2 + GaussianSums(privacy, len(rows[1])).ridge(n_features) / n_rows
        hessian = (1 / n_rows + pull) * sums["target"] + pull * sums["other"] + ridge * np.eye(n_features)
        return np.concatenate([pack_symmetric(sums["target"]), *coefficients, hessian @ coefficients[0]])

    return release


Rows = tuple[Array, Array]


def canaries(feature_map: FeatureMap, n_rows: int = 200) -> dict[str, tuple[Rows, Rows]]:
    """Return pairs of neighbouring data sets of one column, with bounds 0 and 1 of the column, and -1 and 1 of y.

    The pairs differ in one row: in an ordinary one as far as the sensitivity allows, or in one that is at the bounds,
    beyond them, or a fill value in the place of a measurement (9.97e36 is that of netCDF).

    Parameters
    ----------
    feature_map : FeatureMap
        One cos/sin pair of one column.
    n_rows : int, default=200
        Other rows.
    """
    X = np.linspace(0, 1, n_rows)[:, None]
    y = np.sin(3 * X[:, 0])
    turn = np.pi / 3 / abs(float(feature_map.frequencies[0, 0]))
    fill = 9.969209968386869e36
    rows = {
        "ordinary": ((0.1, 1.0), (0.1 + turn, -1.0)),
        "at the bounds": ((0.0, -1.0), (1.0, 1.0)),
        "beyond the bounds": ((-7.3, -50.0), (12.8, 50.0)),
        "fill values": ((fill, fill), (0.1, -1.0)),
        "fill values of x": ((fill, 1.0), (-fill, -1.0)),
    }
    return {
        name: tuple((np.vstack([X, [[value]]]), np.append(y, response)) for value, response in pair)  # type: ignore[misc]
        for name, pair in rows.items()
    }


def released(privacy: DifferentialPrivacy, feature_map: FeatureMap, n_rows: int) -> Callable[[Rows], Array]:
    """Return a function that maps rows (X, y) to what a site releases of them, by public bounds 0, 1 and -1, 1.

    It is the code of a run: public scaling, clipping, sums and noise.
    """
    mechanism = GaussianSums(privacy, n_rows)
    n_columns = feature_map.n_columns
    scaling = public_scaling(((0.0,) * n_columns + (-1.0,), (1.0,) * (n_columns + 1)), n_columns)

    def release(rows: Rows) -> Array:
        exact, _ = sum_and_digest(ArrayRows(*rows).scaled(scaling), feature_map, {})
        noisy = mechanism.perturb(exact)
        return pack(noisy.gram, noisy.moment)

    return release


def released_to_colluders(
    privacy: DifferentialPrivacy, feature_map: FeatureMap, n_rows: int, n_partners: int
) -> Callable[[Rows], Array]:
    """Return a function that maps rows (X, y) of a site to the most that colluding sites see of them by shared noise.

    That is the sum over the fewest honest sites that share masks. The other honest sites have no rows here: what rows
    they have moves the sum by as much, whatever the site's rows are.

    Parameters
    ----------
    privacy : DifferentialPrivacy
        With `colluders`.
    feature_map : FeatureMap
    n_rows : int
    n_partners : int
        The least number of sites that a site shares masks with.
    """
    n_columns, size = feature_map.n_columns, feature_map.n_features
    noise = SharedNoise(privacy, n_rows, n_partners, n_partners + 1, (size,))
    scaling = public_scaling(((0.0,) * n_columns + (-1.0,), (1.0,) * (n_columns + 1)), n_columns)
    nothing = OwnSums(np.zeros((size, size)), np.zeros(size), 0.0)

    def release(rows: Rows) -> Array:
        exact, _ = sum_and_digest(ArrayRows(*rows).scaled(scaling), feature_map, {})
        return np.asarray(sum((noise.perturb(nothing) for _ in range(noise.n_honest - 1)), noise.perturb(exact)))

    return release
