"""Column scales that all sites agree on: how much the response depends on each column.

A small shared model of Gaussian features is fitted in equal scales. (The derivative of a rough feature is so large that
a single one would decide.) Its average gradient outer product has a closed form (`dekrr.gradients`). The diagonal is
one sum over the spanning tree, of as many numbers as there are columns. The root of a column's mean squared derivative
is its scale. A second model is fitted in these scales, and its derivatives are the scales: where many columns do not
matter, the first model is a poor one. A third model tries the squares of the scales. Where its error on held-out rows
is clearly lower, the squares of its scales are taken.

Each of these models holds a fifth of the rows out. The ridge with the least held-out error in the mean over the models
is the least ridge of the shared part: features are scaled so that the same ridge suits few of them and many.
"""

from collections.abc import Sequence

import numpy as np

from ..errors import SettingsError
from ..gradients import largest_squared_gradients, squared_gradients
from ..types import Array
from .outcome import Part
from .run import Run
from .shared_part import RIDGES, fit_shared
from .site import Procedure
from .spanning_tree import tree_sum
from .stages import Start

_LEAST = 0.01  # of the largest scale
_POWERS = (0.0, 0.5, 1.0)  # of the scales that candidates are drawn in
_MOST_ROWS = 500  # that a site votes by
_MOST_WITHOUT = 0.5  # of the columns, that may not matter where candidates are drawn in equal scales
_LEAST_FALL = 0.05  # of the held-out error, for which squares are taken


def agree_on_scales(
    start: Start, run: Run, wanted: str | Sequence[float] | None, n_features: int, sigma: float, spreads: Array
) -> Procedure[tuple[Array | None, float | None]]:
    """Return a scale for each column, the largest 1 (None where all count alike), and the least ridge for what follows.

    Parameters
    ----------
    start : Start
    run : Run
    wanted : "auto", sequence of float, or None
        What the run asks for; see `dekrr.settings.DeKRRSettings`.
    n_features : int
        Of the model whose gradients are taken.
    sigma : float
        Its bandwidth.
    spreads : ndarray of shape (n_columns,)
        The standard deviations of the columns.
    """
    if wanted is None:
        return None, None
    if isinstance(wanted, str):
        return (yield from learn_scales(start, run, n_features, sigma, spreads))
    scales = np.asarray(wanted, dtype=float)
    if scales.shape != (start.rows.n_columns,):
        raise SettingsError(f"column_scales has {scales.size} numbers for {start.rows.n_columns} columns")
    return np.asarray(scales / scales.max()), None


def learn_scales(
    start: Start, run: Run, n_features: int, sigma: float, spreads: Array
) -> Procedure[tuple[Array, float]]:
    """Return the scales that three small models in turn find, and the ridge that was best for them."""

    def fitted(sets: tuple[tuple[float, ...], ...], purpose: str, fold: int) -> Procedure[Part]:
        return fit_shared(start, run, n_features, sigma, sets, purpose, rough=False, max_rows=_MOST_ROWS, fold=fold)

    first = yield from fitted((), "column scales", 0)
    scales = yield from scales_of(start, first)
    second = yield from fitted(candidate_scales(scales, spreads), "column scales again", 1)
    scales = yield from scales_of(start, second)
    third = yield from fitted(candidate_scales(scales**2, spreads), "sharper column scales", 1)
    ridge = best_ridge([first.errors, second.errors, third.errors])
    if third.errors.min() > (1 - _LEAST_FALL) * second.errors.min():
        return scales, ridge
    scales = yield from scales_of(start, third)
    return scales**2, ridge


def best_ridge(errors: Sequence[Array]) -> float:
    """Return the ridge with the least error in the mean over models, each relative to the model's least."""
    relative = [one / max(float(one.min()), np.finfo(float).tiny) for one in errors]
    return float(RIDGES[int(np.argmin(np.mean(relative, axis=0)))])


def scales_of(start: Start, model: Part) -> Procedure[Array]:
    """Return the roots of the mean squared derivatives of a model over all rows, divided by the largest."""
    roster = yield from start.roll.roster()
    own = squared_gradients(start.rows.sample, model.feature_map, model.coefficients)
    masks = (yield from start.masking.agreed()) if start.masking is not None else None
    largest: Array | float = 1.0
    if masks is not None:
        bound = largest_squared_gradients(model.feature_map, model.coefficients)
        largest = 2.0**masks.rows * np.maximum(bound, np.finfo(float).tiny)
    total = yield from tree_sum(start.site, roster, own, masks, largest)
    roots = np.sqrt(np.maximum(total, 0.0))
    if not roots.max(initial=0.0) > 0:
        return np.ones_like(roots)
    return np.asarray(np.maximum(roots / roots.max(), _LEAST))


def candidate_scales(scales: Array | None, spreads: Array) -> tuple[tuple[float, ...], ...]:
    """Return the column scales that candidates take turns in: none, half and all of what was learnt.

    Where most columns do not matter, no candidates are drawn in equal scales. The scales are brought to the same mean
    square over rows, so that a bandwidth means the same in all of them.

    Parameters
    ----------
    scales : ndarray of shape (n_columns,), or None
    spreads : ndarray of shape (n_columns,)
        The standard deviations of the columns.

    Examples
    --------
    >>> candidate_scales(None, np.ones(2))
    ()
    >>> [tuple(round(s, 3) for s in one) for one in candidate_scales(np.array([1.0, 0.25]), np.ones(2))]
    [(1.0, 1.0), (1.265, 0.632), (1.372, 0.343)]
    >>> len(candidate_scales(np.array([1.0, 0.01]), np.ones(2)))
    2
    """
    if scales is None:
        return ()
    weights = spreads**2 if spreads.any() else np.ones_like(spreads)
    powers = _POWERS[1:] if np.mean(scales <= _LEAST) >= _MOST_WITHOUT else _POWERS
    sets = [scales**power for power in powers]
    return tuple(tuple((one / np.sqrt(np.average(one**2, weights=weights))).tolist()) for one in sets)
