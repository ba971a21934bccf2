"""Column scales that all sites agree on: how much the response depends on each column.

A small shared model of Gaussian features is fitted in equal scales. (The derivative of a rough feature is so large that
a single one would decide.) Its average gradient outer product has a closed form (`dekrr.gradients`). The diagonal is
one sum over the spanning tree, of as many numbers as there are columns. The root of a column's mean squared derivative
is its scale. A second model is fitted in these scales, and its derivatives are the scales: where many columns do not
matter, the first model is a poor one. A third model tries the squares of the scales. Where its error on held-out rows
is clearly lower, the squares of its scales are taken.

Half of the features of the shared part are smooth and depend on all columns. A fourth model, of such features alone and
without votes, finds the scales for these. Where its held-out error is clearly higher than the second model's, there are
no such features.

Each of these models holds a fifth of the rows out. The ridge with the least held-out error in the mean over the models
is the least ridge of the shared part: features are scaled so that the same ridge suits few of them and many.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..errors import SettingsError
from ..gradients import largest_squared_gradients, squared_gradients
from ..types import Array
from .outcome import Part
from .run import Run
from .shared_part import RIDGES, Candidates, Scales, fit_shared
from .site import Procedure
from .spanning_tree import tree_sum
from .stages import Start

_LEAST = 0.01  # of the largest scale
_POWERS = (0.0, 0.5, 1.0)  # of the scales that candidates are drawn in
_MOST_ROWS = 500  # that a site votes by
_MOST_WITHOUT = 0.5  # of the columns, that may not matter where candidates are drawn in equal scales
_MOST_RISE = 0.12  # of the held-out error without votes and features of few columns, for which there are more of such
_LEAST_FALL = 0.05  # of the held-out error, for which squares are taken


class Learnt(NamedTuple):
    """What the models that scales are learnt from tell.

    Parameters
    ----------
    scales : ndarray of shape (n_columns,), or None
        A scale for each column, the largest 1; None where all count alike.
    of_whole : ndarray of shape (n_columns,), or None
        The same for features that are smooth and depend on all columns; None where there should be none.
    ridge : float or None
        The least ridge for what follows.
    """

    scales: Array | None = None
    of_whole: Array | None = None
    ridge: float | None = None


def agree_on_scales(
    start: Start, run: Run, wanted: str | Sequence[float] | None, n_features: int, sigma: float, spreads: Array
) -> Procedure[Learnt]:
    """Return a scale for each column, and what else was learnt with them.

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
        return Learnt()
    if isinstance(wanted, str):
        return (yield from learn_scales(start, run, n_features, sigma, spreads))
    scales = np.asarray(wanted, dtype=float)
    if scales.shape != (start.rows.n_columns,):
        raise SettingsError(f"column_scales has {scales.size} numbers for {start.rows.n_columns} columns")
    scales = np.asarray(scales / scales.max())
    return Learnt(scales, scales)


def learn_scales(start: Start, run: Run, n_features: int, sigma: float, spreads: Array) -> Procedure[Learnt]:
    """Return the scales that small models in turn find, and the ridge that was best for them."""

    def fitted(purpose: str, sets: Scales, fold: int) -> Procedure[Part]:
        kind = Candidates(purpose, n_features, sets, rough=False, max_rows=_MOST_ROWS)
        return fit_shared(start, run, sigma, [kind], fold=fold)

    first = yield from fitted("column scales", (), 0)
    scales = yield from scales_of(start, first)
    second = yield from fitted("column scales again", candidate_scales(scales, spreads), 1)
    scales = yield from scales_of(start, second)
    third = yield from fitted("sharper column scales", candidate_scales(scales**2, spreads), 1)
    alone = candidate_scales(scales, spreads)[-1:]
    kind = Candidates("column scales of smooth features", n_features, alone, rough=False, whole=True, voted=False)
    smooth = yield from fit_shared(start, run, sigma, [kind], fold=1)
    of_whole: Array | None = None
    if smooth.errors.min() <= (1 + _MOST_RISE) * second.errors.min():
        of_whole = yield from scales_of(start, smooth)
    if third.errors.min() <= (1 - _LEAST_FALL) * second.errors.min():
        scales = (yield from scales_of(start, third)) ** 2
    return Learnt(scales, of_whole, best_ridge([model.errors for model in (first, second, third, smooth)]))


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


def candidate_scales(scales: Array | None, spreads: Array) -> Scales:
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
