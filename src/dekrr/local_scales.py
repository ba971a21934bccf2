"""Column scales that a site learns for its local part, from its own rows; they are sent to nobody.

The residuals of some small groups of near rows are taken for draws of a Gaussian process with the kernel
exp(-sum_k a_k |x_k - x'_k|), a size of their own and noise. The scales a and the share of noise have the largest
likelihood, times a prior that keeps the scales near those that all sites agree on. The gradient has a closed form.
Groups of near rows show how a response changes over short distances. Rows drawn at random would be too far apart for
that, unless they were nearly all. The scales are taken where the leave-one-out error of further groups is lower.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpotri

from .types import Array

_GROUPS = 20
_ROWS = 100  # of a group
_MOST_NUMBERS = 20_000_000  # of distances, above which there are fewer groups
_JUDGES = 5  # further groups
_STEPS = 12
_FARTHEST = 6.0  # of the logarithm of a scale from its start
_NOISE = (0.1, 1e-3, 1e2)  # the first, the least and the largest variance of noise, in units of the kernel's
_PRIOR = 1.0  # one over the variance of the logarithms of scales


class OwnKernel(NamedTuple):
    """The kernel exp(-sum_k a_k |x_k - x'_k|) of a site.

    Parameters
    ----------
    scales : ndarray of shape (n_columns,)
        The numbers a_k.
    noise : float
        The variance of noise, in units of the kernel's.
    """

    scales: Array
    noise: float


def learn_kernel(X: Array, y: Array, scales: Array, rng: np.random.Generator) -> OwnKernel | None:
    """Return the site's own kernel; None where it predicts no better than that in the agreed scales.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_columns)
    y : ndarray of shape (n_rows,) or (n_rows, n_outputs)
        The residuals of the other parts.
    scales : ndarray of shape (n_columns,)
        The agreed ones, from which to start; one over a column's bandwidth.
    rng : Generator
        Of the rows that groups are made around.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.random((500, 2))
    >>> found = learn_kernel(X, np.sin(40 * X[:, 1]), np.ones(2), rng)
    >>> bool(found.scales[1] > 5 * found.scales[0])
    True
    """
    from scipy.optimize import minimize  # imported here, as a site that stands needs it in a run alone

    n_rows = min(_ROWS, len(y) // 2)
    n_groups = max(1, min(_GROUPS, _MOST_NUMBERS // (X.shape[1] * n_rows**2)))
    groups = [_group(X, y, scales, middle, n_rows) for middle in rng.integers(0, len(y), n_groups + _JUDGES)]
    groups = [(distances, values) for distances, values in groups if np.any(values)]
    learnt_from, judges = groups[:-_JUDGES], groups[-_JUDGES:]
    if not learnt_from:
        return None
    limits = [(-_FARTHEST, _FARTHEST)] * len(scales) + [(np.log(_NOISE[1]), np.log(_NOISE[2]))]
    start = np.append(np.zeros(len(scales)), np.log(_NOISE[0]))
    found = minimize(
        _loss, start, args=(learnt_from,), jac=True, method="L-BFGS-B", bounds=limits, options={"maxiter": _STEPS}
    ).x
    before = min(_left_out(np.append(start[:-1], np.log(noise)), judges) for noise in (0.01, 0.1, 1.0, 10.0))
    if _left_out(found, judges) >= before:
        return None
    return OwnKernel(scales * np.exp(found[:-1]), float(np.exp(found[-1])))


def _group(X: Array, y: Array, scales: Array, middle: int, n_rows: int) -> tuple[np.ndarray, Array]:
    """Return the distances of the rows nearest to one, of each column, shape (n_columns, n_rows^2), and their y."""
    near = np.argpartition(np.abs(X - X[middle]) @ scales, n_rows - 1)[:n_rows]
    columns = (X[near] * scales).T.astype(np.float32)
    return np.abs(columns[:, :, None] - columns[:, None, :]).reshape(len(scales), -1), y[near].reshape(n_rows, -1)


def _factor(parameters: Array, distances: np.ndarray, n_rows: int) -> tuple[np.ndarray, Array]:
    """Return the kernel matrix, and the Cholesky factor of it with noise."""
    kernel = np.exp(-(np.exp(parameters[:-1]).astype(np.float32) @ distances)).reshape(n_rows, n_rows)
    noisy = kernel.astype(float)
    noisy.flat[:: n_rows + 1] += np.exp(parameters[-1])
    return kernel, cho_factor(noisy, lower=True, overwrite_a=True, check_finite=False)[0]


def _inverse(factor: Array) -> Array:
    lower = np.tril(dpotri(factor, lower=1)[0])
    return np.asarray(lower + np.tril(lower, -1).T)


def _loss(parameters: Array, groups: Sequence[tuple[np.ndarray, Array]]) -> tuple[float, Array]:
    """Return minus the logarithm of likelihood and prior, divided by the number of rows, and its gradient.

    The parameters are the logarithms of each scale, in units of the agreed one, and of the variance of noise.
    """
    scales, total = parameters[:-1], sum(len(y) for _, y in groups)
    value, gradient = 0.5 * _PRIOR * float(scales @ scales), np.append(_PRIOR * scales, 0.0)
    for distances, y in groups:
        n_rows, n_outputs = y.shape
        kernel, factor = _factor(parameters, distances, n_rows)
        solved = cho_solve((factor, True), y, check_finite=False)
        size = float(np.vdot(y, solved)) / (n_rows * n_outputs)  # of the kernel, the likeliest
        value += n_outputs * (0.5 * n_rows * np.log(size) + float(np.log(np.diag(factor)).sum()))
        slopes = solved @ solved.T / size - n_outputs * _inverse(factor)
        gradient[:-1] += 0.5 * np.exp(scales) * (distances @ (slopes * kernel).astype(np.float32).ravel())
        gradient[-1] -= 0.5 * np.exp(parameters[-1]) * np.trace(slopes)
    return value / total, gradient / total


def _left_out(parameters: Array, groups: Sequence[tuple[np.ndarray, Array]]) -> float:
    """Return the sum of squared leave-one-out errors."""
    total = 0.0
    for distances, y in groups:
        inverse = _inverse(_factor(parameters, distances, len(y))[1])
        total += float(np.sum((inverse @ y / np.diag(inverse)[:, None]) ** 2))
    return total
