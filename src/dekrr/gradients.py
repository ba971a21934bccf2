"""How much a model of cosines depends on each column: its squared derivatives, summed over rows, in closed form.

The derivative of theta'z(x) with respect to column k is -sum_i theta_i a_i w_ki sin(w_i'x + b_i). The sum over rows of
the products of two derivatives is the average gradient outer product G = W diag(theta a) (S'S) diag(theta a) W', where
S has the sines. Its diagonal says which columns matter (Radhakrishnan, Beaglehole, Pandit and Belkin, Mechanism for
feature learning in neural networks and backpropagation-free machine learning models, Science 383, 2024).
"""

import numpy as np

from .features import FeatureMap
from .statistics import RowBlocks, rows_per_block
from .types import Array


def squared_gradients(rows: RowBlocks, feature_map: FeatureMap, coefficients: Array) -> Array:
    """Return the diagonal of G: for each column, the sum over rows and outputs of the squared derivative.

    A row of weight w counts w times.

    Parameters
    ----------
    rows : RowBlocks
    feature_map : FeatureMap
    coefficients : ndarray of shape (n_features,) or (n_features, n_outputs)

    Returns
    -------
    ndarray of shape (n_columns,)

    Examples
    --------
    >>> from dekrr.rows import ArrayRows
    >>> rows = ArrayRows(np.array([[0.0, 5.0], [np.pi / 2, 7.0]]), np.zeros(2))
    >>> cosine = FeatureMap(np.array([[1.0], [0.0]]), np.zeros(1), np.ones(1))
    >>> squared_gradients(rows, cosine, np.array([3.0])).round(6)  # the derivatives of 3 cos(x) are 0 and -3
    array([9., 0.])
    """
    sines = FeatureMap(feature_map.frequencies, feature_map.phases - np.pi / 2, feature_map.amplitudes)
    by_output = coefficients.reshape(feature_map.n_features, -1)
    slopes = [np.ascontiguousarray((feature_map.frequencies * one).T) for one in by_output.T]
    total = np.zeros(feature_map.n_columns)
    for block in rows.blocks(rows_per_block(8 * feature_map.n_features)):
        features = sines(block.X)
        for slope in slopes:
            gradients = features @ slope
            weights = np.ones(block.n_rows) if block.weight is None else block.weight
            total += weights @ gradients**2
    return rows.expansion * total


def largest_squared_gradients(feature_map: FeatureMap, coefficients: Array) -> Array:
    """Return a bound on the squared derivatives at any row, from the model alone, shape (n_columns,)."""
    sizes = np.abs(feature_map.frequencies * feature_map.amplitudes) @ np.abs(
        coefficients.reshape(feature_map.n_features, -1)
    )
    return np.asarray((sizes**2).sum(axis=1))
