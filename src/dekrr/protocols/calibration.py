"""What sites keep for intervals (`dekrr.intervals`): a second training without some rows, and scores on these rows.

Any training will do. It is run a second time on four fifths of every site's rows, with the settings that the first run
found. The site compares what this second model predicts with the rows that it held out. The counts of scores of all
sites are summed over the spanning tree. A site with so few rows that it must not send sums over four fifths of them
holds none out, and has no intervals.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..intervals import N_BINS, Calibration, Scale, histogram, scores_of
from ..rows import ArrayRows
from ..types import Array
from .masking import Masking
from .outcome import Outcome
from .roll_call import RollCall
from .site import Procedure, Site
from .spanning_tree import tree_sum

PARTS = 5  # one of them is held out
_FEWEST = 4  # held-out rows
Predict = Callable[[Outcome, Array], Array]
"""The whole prediction of an outcome for rows in its units, in its units."""


def calibrate(
    site: Site,
    outcome: Outcome,
    again: Callable[[Site], Procedure[Outcome]],
    predict: Predict,
    *,
    min_rows: int,
    masked: bool = False,
    lone_neighbor: str = "warn",
) -> Procedure[Calibration | None]:
    """Return what the site keeps for intervals; None where it has too few rows.

    Parameters
    ----------
    site : Site
        With all its rows; a sample stands for them where they are many.
    outcome : Outcome
        Of the training with all rows.
    again : callable
        Makes the training of a site with other rows, with the settings that were found.
    predict : callable
    min_rows : int
    masked : bool, default=False
        Whether the counts are summed under masks.
    lone_neighbor : {"warn", "refuse"}
        As in `dekrr.protocols.masking.Masking`.
    """
    rows = site.rows.sample
    part_of = site.rng("calibration").permutation(rows.n_rows) % PARTS
    held_out = part_of == 0
    kept = rows.take(~held_out)
    enough = held_out.sum() >= _FEWEST and (not site.neighbors or kept.n_effective >= min_rows)
    if not enough:
        held_out[:] = False
    kept = rows.take(~held_out)
    other = yield from again(replace(site, rows=ArrayRows(*kept.arrays(), seed=rows.seed)))

    def residuals(part: ArrayRows) -> tuple[Array, Array]:
        predicted = other.scaling.undo(predict(other, other.scaling.rows(part.X)))
        unit = outcome.scaling.undo(np.ones_like(predicted)) - outcome.scaling.undo(np.zeros_like(predicted))
        errors = (part.y - predicted) / unit  # of responses as they are, also where training cuts them off
        return outcome.feature_map(outcome.scaling.rows(part.X)), errors.reshape(part.n_rows, -1)

    n_outputs = int(np.prod(outcome.coefficients.shape[1:], dtype=int))
    counts = np.zeros((N_BINS, n_outputs))
    if enough:
        scale = Scale.fit(*residuals(kept), kept.weight)
        part = rows.take(held_out)
        scores, levels = scores_of(*residuals(part), scale)
        counts = histogram(scores, part.weight)
    masks = None
    if masked:
        roll = RollCall(site)
        roll.found(outcome.roster)
        known = site.rows.scaled(outcome.scaling), outcome.scaling, roll
        masks = yield from Masking(site, *known, lone_neighbor=lone_neighbor, over_tree=True).agreed()
    total = yield from tree_sum(site, outcome.roster, counts.ravel(), masks, largest=2.0 * outcome.roster.n_rows)
    if not enough:
        return None
    return Calibration(scale, levels, counts, np.maximum(total.reshape(counts.shape), 0.0))
