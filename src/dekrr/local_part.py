"""The local part: what a site's own rows say beyond the parts that it shares. It is fitted at the site and never sent.

Random features of the Laplacian kernel in the agreed column scales, of several bandwidths, drawn from the run's seed
and the site's name. A ridge regression of the residuals gives their coefficients. Folds of the site's rows choose the
ridge and the weight of the part, both from the sums of each fold. Where the folds find nothing, there is no local part.
"""

from collections.abc import Sequence

import numpy as np

from .features import FeatureMap
from .kernels import Laplacian
from .ridge import fold_errors, solve
from .statistics import OwnSums, weighted_features, weighted_responses
from .types import Array, Block

_BANDWIDTHS = (0.5, 1.0, 2.0)
_RIDGES = (1.0, 3.0, 10.0, 30.0)  # of Z'Z, where a row's features have length 1
_FOLDS = 3
_ROWS_PER_FEATURE = 3
_MOST_FEATURES = 1500
_FEWEST_ROWS = 20
_LEAST_GAIN = 0.002  # of the squared residual, below which the part is left out


def local_size(wanted: int | str, n_rows: int) -> int:
    """Return the number of local features: as wanted or, for "auto", by the site's rows."""
    return min(_MOST_FEATURES, n_rows // _ROWS_PER_FEATURE) if isinstance(wanted, str) else wanted


def draw_local(n_features: int, sigma: float, scales: Sequence[float], rng: np.random.Generator) -> FeatureMap:
    """Draw the features; those of one bandwidth follow each other.

    Parameters
    ----------
    n_features : int
    sigma : float
        The bandwidth of a Gaussian kernel that is about as wide.
    scales : sequence of float, shape (n_columns,)
    rng : Generator
    """
    n_columns = len(scales)
    parts = np.array_split(np.arange(n_features), len(_BANDWIDTHS))
    drawn = [
        Laplacian(sigma * float(np.sqrt(n_columns)) * factor).draw_frequencies(n_columns, part.size, rng)
        for factor, part in zip(_BANDWIDTHS, parts, strict=True)
    ]
    frequencies = np.hstack(drawn) * np.asarray(scales)[:, None]
    return FeatureMap.unweighted(frequencies, rng.uniform(0, 2 * np.pi, n_features))


def fit_local(block: Block, feature_map: FeatureMap, rng: np.random.Generator, share: float = 1.0) -> Array | None:
    """Return the coefficients of the local part, shape (n_features, ...) as `block.y` has it; None if it does not help.

    Parameters
    ----------
    block : Block
        The site's rows, with the residuals of the other parts as responses.
    feature_map : FeatureMap
    rng : Generator
        Of the folds.
    share : float, default=1.0
        The weight that the folds find is multiplied by it: a correction for the site's own rows is none for others'.
    """
    if share <= 0 or block.n_rows < max(_FEWEST_ROWS, 2 * _FOLDS):
        return None
    if block.weight is not None:  # a common factor of all weights changes nothing
        block = block._replace(weight=block.weight / max(float(block.weight.mean()), np.finfo(float).tiny))
    fold_of = rng.permutation(block.n_rows) % _FOLDS
    folds = [_sums(block.take(fold_of == fold), feature_map) for fold in range(_FOLDS)]
    energy = sum(fold.response_energy for fold in folds)
    errors = fold_errors(folds, _RIDGES)
    weights = np.clip(errors.products / np.maximum(errors.squares, np.finfo(float).tiny), 0.0, 1.0)
    gains = 2 * weights * errors.products - weights**2 * errors.squares
    best = int(np.argmax(gains))
    if not gains[best] > _LEAST_GAIN * energy:
        return None
    gram = sum((fold.gram for fold in folds), np.zeros_like(folds[0].gram))
    moment = sum((fold.moment for fold in folds), np.zeros_like(folds[0].moment))
    return np.asarray(share * weights[best] * solve(gram, moment, _RIDGES[best]))


def _sums(block: Block, feature_map: FeatureMap) -> OwnSums:
    features, y = weighted_features(feature_map, block), weighted_responses(block)
    return OwnSums(features.T @ features, features.T @ y, float(np.vdot(y, y)))
