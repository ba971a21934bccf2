"""Column scales that all sites agree on: how much the response depends on each column.

A small shared model of Gaussian features is fitted in equal scales. (The derivative of a rough feature is so large that
a single one would decide.) Its average gradient outer product has a closed form
(`dekrr.gradients`); the diagonal is one sum over the spanning tree, of as many numbers as there are columns. The root
of a column's mean squared derivative is its scale.
"""

from collections.abc import Sequence

import numpy as np

from ..errors import SettingsError
from ..gradients import largest_squared_gradients, squared_gradients
from ..types import Array
from .outcome import Part
from .run import Run
from .shared_part import fit_shared
from .site import Procedure
from .spanning_tree import tree_sum
from .stages import Start

_LEAST = 0.01  # of the largest scale
_POWERS = (0.0, 0.5, 1.0)  # of the scales that candidates are drawn in


def agree_on_scales(
    start: Start, run: Run, wanted: str | Sequence[float] | None, n_features: int, sigma: float
) -> Procedure[tuple[Array | None, float]]:
    """Return a scale for each column, the largest 1 (None where all count alike), and a caution for further ridges.

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
    """
    if wanted is None:
        return None, 1.0
    if isinstance(wanted, str):
        model = yield from fit_shared(start, run, n_features, sigma, purpose="column scales", rough=False)
        return (yield from scales_of(start, model)), model.caution
    scales = np.asarray(wanted, dtype=float)
    if scales.shape != (start.rows.n_columns,):
        raise SettingsError(f"column_scales has {scales.size} numbers for {start.rows.n_columns} columns")
    return np.asarray(scales / scales.max()), 1.0


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

    They are brought to the same mean square over rows, so that a bandwidth means the same in all of them.

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
    """
    if scales is None:
        return ()
    weights = spreads**2 if spreads.any() else np.ones_like(spreads)
    sets = [scales**power for power in _POWERS]
    return tuple(tuple((one / np.sqrt(np.average(one**2, weights=weights))).tolist()) for one in sets)
