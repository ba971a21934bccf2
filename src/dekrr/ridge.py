"""Ridge regression from sums over rows, with the ridge that predicts best.

The sums are Z'Z, Z'y and y'y. The ridge is chosen without rows by generalised cross-validation (Golub, Heath and Wahba,
Technometrics 21, 1979), or with folds by the error on the sums of the fold that was left out, which is exact.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from .statistics import OwnSums
from .types import Array


class Ridge(NamedTuple):
    """A ridge regression.

    Parameters
    ----------
    coefficients : ndarray of shape (n_features,) or (n_features, n_outputs)
    ridge : float
        What was added to the diagonal of Z'Z / n_rows.
    error : float
        The predicted squared error per row, summed over outputs.
    """

    coefficients: Array
    ridge: float
    error: float


def path_of(sums: OwnSums, n_rows: float, ridges: Sequence[float], n_unweighted: float | None = None) -> list[Ridge]:
    """Return the regression of every ridge, with its generalised cross-validation error.

    The error is the mean squared residual divided by (1 - t / n)^2, where n is the number of rows and t
    is the trace of the hat matrix.

    Parameters
    ----------
    sums : OwnSums
    n_rows : float
    ridges : sequence of float
        In units of Z'Z / n_rows.
    n_unweighted : float, optional
        The number of rows for the denominator, where `n_rows` is the sum of their weights.

    Examples
    --------
    >>> Z, y = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]), np.array([0.0, 1.0, 2.0, 3.1])
    >>> fit = min(path_of(OwnSums(Z.T @ Z, Z.T @ y, float(y @ y)), 4, [1e-6, 1.0]), key=lambda fit: fit.error)
    >>> fit.ridge, fit.coefficients.round(2)
    (1e-06, array([-0.02,  1.03]))
    """
    values, vectors = np.linalg.eigh(sums.gram / n_rows)
    values = np.maximum(values, 0.0)
    projected = (vectors.T @ sums.moment / n_rows).reshape(len(values), -1)
    found = []
    for ridge in ridges:
        solved = projected / (values + ridge)[:, None]
        residual = sums.response_energy / n_rows - 2 * np.vdot(solved, projected)
        residual += np.vdot(solved, values[:, None] * solved)
        free = 1 - np.sum(values / (values + ridge)) / (n_unweighted or n_rows)
        error = max(float(residual), 0.0) / max(free, 1e-3) ** 2
        found.append(Ridge((vectors @ solved).reshape(sums.moment.shape), float(ridge), error))
    return found


class FoldErrors(NamedTuple):
    """What is known of held-out predictions f, over all folds, for each ridge.

    Parameters
    ----------
    products : ndarray of shape (n_ridges,)
        f'y.
    squares : ndarray of shape (n_ridges,)
        f'f.
    """

    products: Array
    squares: Array


def fold_errors(folds: Sequence[OwnSums], ridges: Sequence[float]) -> FoldErrors:
    """Return the products of held-out predictions, from the sums of each fold alone.

    Regressions are solved in single precision, as their errors alone matter, unless a ridge is too small for that.

    Parameters
    ----------
    folds : sequence of OwnSums
        The sums over the rows of each fold.
    ridges : sequence of float
        In units of Z'Z.
    """
    gram = sum((fold.gram for fold in folds), np.zeros_like(folds[0].gram))
    moment = sum((fold.moment for fold in folds), np.zeros_like(folds[0].moment))
    products, squares = np.zeros(len(ridges)), np.zeros(len(ridges))
    is_rough = min(ridges) > 32 * np.finfo(np.float32).eps * np.trace(gram)
    precision = np.float32 if is_rough else np.float64
    for fold in folds:
        of_others = (gram - fold.gram).astype(precision), (moment - fold.moment).astype(precision)
        held, held_moment = fold.gram.astype(precision), fold.moment.astype(precision)
        for i, ridge in enumerate(ridges):
            theta = solve(*of_others, ridge)
            products[i] += np.vdot(theta, held_moment)
            squares[i] += np.vdot(theta, held @ theta)
    return FoldErrors(products, squares)


def solve(gram: np.ndarray, moment: np.ndarray, ridge: float) -> np.ndarray:
    """Return (Z'Z + ridge I)^-1 Z'y, in the precision of the sums."""
    shifted = gram.copy()
    shifted.flat[:: len(gram) + 1] += ridge
    return np.asarray(cho_solve(cho_factor(shifted, overwrite_a=True, check_finite=False), moment, check_finite=False))
