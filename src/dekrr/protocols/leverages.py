"""What the shared part leaves of a response without its row, from the row's leverage among the features of all sites.

A row's error without it is e / (1 - h), where h is its leverage. h takes the sum Z'Z over all sites' rows, which the
root of the tree alone has. A site has its own rows. They stand for all rows at first, which makes h too small where the
site's rows are unlike all others. The sum of the site's leverages mends this. It is found with random signs: with
responses of +1 and -1 that depend on nothing, the mean over rows of response times prediction is the mean leverage
(Hutchinson, Communications in Statistics 18, 1989). Every site sums Z's for eight vectors of signs s, the sums go up
the tree, and the root's solutions come down.
"""

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from ..rows import ArrayRows
from ..statistics import weighted_features
from ..types import Array
from .outcome import Outcome, Part
from .site import Procedure, Site
from .spanning_tree import tree_result

_LEAST_RIDGE = 1e-9  # of Z'Z / N
_LEAST_LEFT = 0.2  # of 1 - leverage
_PROBES = 8


def left_by_shared(
    site: Site, outcome: Outcome, rows: ArrayRows, *, probed: bool
) -> Procedure[tuple[ArrayRows, ArrayRows]]:
    """Return rows with what the shared part leaves of each response, e, and what it would without the row, e / (1 - h).

    Parameters
    ----------
    site : Site
    outcome : Outcome
        With the shared part; without one, it leaves all.
    rows : ArrayRows
        The site's, or a sample of them.
    probed : bool
        Whether the sum of the site's leverages is found over the tree. All sites must have the same.
    """
    shared, scaling = outcome.shared, outcome.scaling
    if shared is None:
        return rows, rows
    block = rows.arrays()._replace(X=scaling.rows(rows.X))
    predicted = scaling.undo(shared.feature_map(block.X) @ shared.coefficients)
    features = weighted_features(shared.feature_map, block)
    n_rows, weights = outcome.roster.n_counted, rows.weights.total * rows.expansion
    ridge = max(shared.ridge, _LEAST_RIDGE) * n_rows
    gram = features.T @ features * (rows.expansion * n_rows / max(weights, 1e-300))
    leverages = _leverages(features, gram, ridge)
    if probed:
        total = yield from _sum_of_leverages(site, outcome, shared, features, ridge)
        leverages = with_sum(leverages, total, n_rows / max(weights, 1e-300))
    errors = rows.y - predicted
    without = (errors.T / np.maximum(1 - leverages, _LEAST_LEFT)).T

    def left(y: Array) -> ArrayRows:
        return ArrayRows(rows.X, y, rows.weight, expansion=rows.expansion, seed=rows.seed)

    return left(errors), left(without)


def _leverages(features: Array, gram: Array, ridge: float) -> Array:
    gram.flat[:: len(gram) + 1] += ridge
    root = np.linalg.cholesky(gram)
    whitened = solve_triangular(root, features.T, lower=True, check_finite=False)
    return np.asarray(np.einsum("in,in->n", whitened, whitened))


def _sum_of_leverages(site: Site, outcome: Outcome, shared: Part, features: Array, ridge: float) -> Procedure[float]:
    """Return an estimate of the sum of the leverages of the site's rows."""
    signs = site.rng("leverages").choice(np.array([-1.0, 1.0]), (len(features), _PROBES))
    shape = (features.shape[1], _PROBES)

    def solved(total: Array) -> Array:
        assert shared.gram is not None  # of the root
        factor = cho_factor(shared.gram + ridge * np.eye(len(shared.gram)))
        return np.asarray(cho_solve(factor, total.reshape(shape)).ravel())

    sums = (features.T @ signs).ravel()
    result = yield from tree_result(site, outcome.roster, sums, solved, len(sums))
    return float(np.einsum("nk,nk->", signs, features @ result.reshape(shape)) / _PROBES)


def with_sum(leverages: Array, total: float, most: float) -> Array:
    """Return leverages whose odds h / (1 - h) are multiplied by one factor, so that they add up to `total`.

    The odds are those of the other rows, which a common factor makes count for more or fewer.

    Parameters
    ----------
    leverages : ndarray of shape (n_rows,)
    total : float
    most : float
        The largest factor, and 1 divided by the smallest.

    Examples
    --------
    >>> with_sum(np.array([0.1, 0.5]), 0.95, 10.0).round(3)
    array([0.226, 0.724])
    """
    odds = leverages / np.maximum(1 - leverages, 1e-6)
    least, largest = np.log(1 / most), np.log(most)
    for _ in range(40):
        middle = (least + largest) / 2
        factor = np.exp(middle)
        if np.sum(factor * odds / (1 + factor * odds)) > total:
            largest = middle
        else:
            least = middle
    return np.asarray(factor * odds / (1 + factor * odds))
