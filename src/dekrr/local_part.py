"""The local part: what a site's own rows say beyond the parts that it shares. It is fitted at the site and never sent.

Random features of the Laplacian kernel in the agreed column scales, of several bandwidths, drawn from the run's seed
and the site's name. Half of them are functions of a row and of what the other parts predict for it: where a site's
responses are unlike those of all sites, what the other parts leave depends on what they predict most of all. A ridge
regression of the residuals gives the coefficients. Folds of the site's rows choose the ridge and the weight of the
part, both from the sums of each fold. Where the folds find nothing, there is no local part.

A site with many rows has more features than sums of their products are affordable for. Conjugate gradients then solve
the regression from the features themselves, in single precision, and one fold of the rows finds the weight. Such a site
learns column scales of its own for these features (`local_scales`).
"""

from collections.abc import Sequence

import numpy as np

from .features import FeatureMap
from .kernels import Laplacian
from .local_scales import learn_kernel
from .ridge import fold_errors, solve
from .statistics import OwnSums, weighted_features, weighted_responses
from .types import Array, Block

_BANDWIDTHS = (0.5, 1.0, 2.0)
_RIDGES = (0.3, 1.0, 3.0, 10.0, 30.0)  # of Z'Z, where a row's features have length 1
_FOLDS = 3
_ROWS_PER_FEATURE = 3
_MOST_SUMMED = 1500  # features whose products are summed
_MOST_FEATURES = 5000
_NARROWER = 0.5  # of the bandwidths, where features are more than that
_FLATTER = 0.3  # of the column scales, in features that depend on predictions, too
_FIRST_STEEPNESS = 0.1  # of predictions, from which a site learns its own
_STEPS = 50  # of conjugate gradients
_RIDGE = 1.0
_LEAST_RIDGE = 0.1  # where the noise was learnt, as features do not have the kernel exactly
_SHARES = (0.45, 0.9)  # of the weight, where others' rows matter: if a third of it follows from predictions, or none
_BINS = 16  # of predictions
_ROWS_PER_BIN = 60
_FEWEST_ROWS = 20
_LEAST_GAIN = 0.002  # of the squared residual, below which the part is left out


def local_size(wanted: int | str, n_rows: int) -> int:
    """Return the number of local features: as wanted or, for "auto", by the site's rows."""
    return min(_MOST_FEATURES, n_rows // _ROWS_PER_FEATURE) if isinstance(wanted, str) else wanted


def with_predictions(block: Block, predicted: Array) -> Block:
    """Return rows as the local part reads them: after their columns, what the other parts predict.

    Parameters
    ----------
    block : Block
    predicted : ndarray of shape (n_rows,) or (n_rows, n_outputs)

    Examples
    --------
    >>> with_predictions(Block(np.ones((2, 1)), np.zeros(2)), np.array([3.0, 4.0])).X
    array([[1., 3.],
           [1., 4.]])
    """
    return block._replace(X=np.column_stack((block.X, predicted)))


def draw_local(
    n_features: int, sigma: float, scales: Sequence[float], steepness: Sequence[float], rng: np.random.Generator
) -> FeatureMap:
    """Draw the features of rows with predictions; the first half do not depend on the predictions.

    Parameters
    ----------
    n_features : int
    sigma : float
        The bandwidth of a Gaussian kernel that is about as wide.
    scales : sequence of float, shape (n_columns,)
    steepness : sequence of float, shape (n_outputs,)
        The scales of predictions, in units of a bandwidth of 1.
    rng : Generator
    """
    n_columns, reads = len(scales), np.arange(n_features) >= n_features / 2
    widths = np.resize(_BANDWIDTHS, n_features) * (_NARROWER if n_features > _MOST_SUMMED else 1.0)
    frequencies = Laplacian(1.0).draw_frequencies(n_columns + len(steepness), n_features, rng) / widths
    unit = sigma * np.sqrt(n_columns)
    frequencies[:n_columns] *= np.outer(np.asarray(scales) / unit, np.where(reads, _FLATTER, 1.0))
    frequencies[n_columns:] *= np.outer(steepness, reads)
    return FeatureMap.unweighted(frequencies, rng.uniform(0, 2 * np.pi, n_features))


def draw_for(
    block: Block, n_features: int, sigma: float, scales: Sequence[float], rng: np.random.Generator
) -> tuple[FeatureMap, float]:
    """Return features for a site's rows, and a ridge: in scales of its own where rows are many and these are better.

    Parameters
    ----------
    block : Block
        The site's rows as `with_predictions` has them, with the residuals of the other parts as responses.
    n_features, sigma, scales, rng
        As `draw_local` has them.
    """
    n_columns = len(scales)
    spreads = block.X[:, n_columns:].std(axis=0) * (block.X.shape[1] - n_columns)
    steepness = np.divide(1.0, spreads, out=np.zeros_like(spreads), where=spreads > 0)
    if n_features > _MOST_SUMMED:
        of_rows = np.asarray(scales) / (sigma * np.sqrt(n_columns))
        agreed = np.append(of_rows, _FIRST_STEEPNESS * steepness) / _NARROWER
        own = learn_kernel(block.X, block.y, agreed, rng)
        if own is not None:
            frequencies = Laplacian(1.0).draw_frequencies(len(agreed), n_features, rng) * own.scales[:, None]
            phases = rng.uniform(0, 2 * np.pi, n_features)
            return FeatureMap.unweighted(frequencies, phases), max(own.noise, _LEAST_RIDGE)
    return draw_local(n_features, sigma, scales, steepness, rng), _RIDGE


def fit_local(block: Block, feature_map: FeatureMap, rng: np.random.Generator, ridge: float = _RIDGE) -> Array | None:
    """Return the coefficients of the local part, shape (n_features, ...) as `block.y` has it; None if it does not help.

    Parameters
    ----------
    block : Block
        The site's rows as `with_predictions` has them, with the residuals of the other parts as responses.
    feature_map : FeatureMap
    rng : Generator
        Of the folds.
    ridge : float, default=1.0
        Where features are too many for folds to choose one.
    """
    if block.n_rows < max(_FEWEST_ROWS, 2 * _FOLDS):
        return None
    if block.weight is not None:  # a common factor of all weights changes nothing
        block = block._replace(weight=block.weight / max(float(block.weight.mean()), np.finfo(float).tiny))
    fold_of = rng.permutation(block.n_rows) % _FOLDS
    if feature_map.n_features <= _MOST_SUMMED:
        return _by_sums(block, feature_map, fold_of)
    return _by_steps(block, feature_map, fold_of, ridge)


def share_for_all(block: Block, feature_map: FeatureMap, coefficients: Array, rng: np.random.Generator) -> float:
    """Return by what to multiply the part where others' rows matter as much as the site's own.

    The other parts are right in the mean over all sites, for each value that they predict. What a site's correction is
    as a function of predictions alone is therefore wrong for others' rows. The rest may be what few features of the
    other parts cannot hold, and true of others' rows as well. So the share is the smaller, the more of the correction's
    squares the means in bins of equal prediction have.

    Parameters
    ----------
    block : Block
        The site's rows as `with_predictions` has them. Where they are many, some of them will do.
    feature_map : FeatureMap
    coefficients : ndarray of shape (n_features,) or (n_features, n_outputs)
    rng : Generator
        Of the rows.
    """
    n_rows = min(block.n_rows, _BINS * _ROWS_PER_BIN)
    block = block.take(rng.permutation(block.n_rows)[:n_rows])
    corrections = feature_map.apply(block.X, coefficients).reshape(n_rows, -1)
    predicted = block.X[:, -corrections.shape[1] :]
    n_bins = max(1, min(_BINS, n_rows // _FEWEST_ROWS))
    bins = np.argsort(np.argsort(predicted, axis=0), axis=0) * n_bins // n_rows
    of_means = 0.0
    for one, bin_of in zip(corrections.T, bins.T, strict=True):
        of_means += float(np.sum(np.bincount(bin_of, one) ** 2 / np.bincount(bin_of)))
    part = of_means / max(float(np.vdot(corrections, corrections)), np.finfo(float).tiny)
    return float(_SHARES[0] + max(0.0, 1 - 3 * part) * (_SHARES[1] - _SHARES[0]))


def _by_sums(block: Block, feature_map: FeatureMap, fold_of: np.ndarray) -> Array | None:
    """Return the weighted coefficients from the sums of each fold, with the best of several ridges."""
    folds = [_sums(block.take(fold_of == fold), feature_map) for fold in range(_FOLDS)]
    errors = fold_errors(folds, _RIDGES)
    weights, gains = _weights_and_gains(errors.products, errors.squares)
    best = int(np.argmax(gains))
    if not gains[best] > _LEAST_GAIN * sum(fold.response_energy for fold in folds):
        return None
    gram = sum((fold.gram for fold in folds), np.zeros_like(folds[0].gram))
    moment = sum((fold.moment for fold in folds), np.zeros_like(folds[0].moment))
    return np.asarray(weights[best] * solve(gram, moment, _RIDGES[best]))


def _by_steps(block: Block, feature_map: FeatureMap, fold_of: np.ndarray, ridge: float) -> Array | None:
    """Return the weighted coefficients after some steps of conjugate gradients; one fold is held out for the weight."""
    order = np.argsort(fold_of, kind="stable")  # the held-out rows first, so that the others are a view
    block, n_held = block.take(order), int(np.sum(fold_of == 0))
    room: np.ndarray = np.empty((block.n_rows, feature_map.n_features), dtype=np.float32)
    features = weighted_features(feature_map, block, out=room)
    y: np.ndarray = np.asarray(weighted_responses(block), dtype=np.float32)
    held = features[:n_held] @ descend(features[n_held:], y[n_held:], ridge, _STEPS)
    product, square = float(np.vdot(held, y[:n_held])), float(np.vdot(held, held))
    weight, gain = _weights_and_gains(np.array(product), np.array(square))
    if not gain > _LEAST_GAIN * float(np.vdot(y[:n_held], y[:n_held])):
        return None
    return np.asarray(weight * descend(features, y, ridge, _STEPS), dtype=np.float64)


def _weights_and_gains(products: Array, squares: Array) -> tuple[Array, Array]:
    """Return the weight of predictions f with the least held-out error, and what it lowers, from f'y and f'f."""
    weights = np.clip(products / np.maximum(squares, np.finfo(float).tiny), 0.0, 1.0)
    return weights, 2 * weights * products - weights**2 * squares


def descend(features: np.ndarray, y: np.ndarray, ridge: float, n_steps: int) -> np.ndarray:
    """Return theta after some steps of conjugate gradients from 0 on (Z'Z + ridge I) theta = Z'y.

    Each output has its own steps. Nothing but products of Z with vectors is computed.

    Parameters
    ----------
    features : ndarray of shape (n_rows, n_features)
        Z, of any precision.
    y : ndarray of shape (n_rows,) or (n_rows, n_outputs)
    ridge : float
    n_steps : int

    Examples
    --------
    >>> Z = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    >>> descend(Z, np.array([1.0, 2.0, 2.0]), 1e-9, 2).round(6)
    array([1., 1.])
    """
    residual = features.T @ y
    theta, direction, size = np.zeros_like(residual), residual, np.sum(residual**2, axis=0)
    tiny = np.finfo(residual.dtype).tiny
    for _ in range(n_steps):
        image = features.T @ (features @ direction) + residual.dtype.type(ridge) * direction
        step = size / np.maximum(np.sum(direction * image, axis=0), tiny)
        theta, residual = theta + step * direction, residual - step * image
        before, size = size, np.sum(residual**2, axis=0)
        direction = residual + size / np.maximum(before, tiny) * direction
    return np.asarray(theta)


def _sums(block: Block, feature_map: FeatureMap) -> OwnSums:
    features, y = weighted_features(feature_map, block), weighted_responses(block)
    return OwnSums(features.T @ features, features.T @ y, float(np.vdot(y, y)))
