"""What rows count, and what outputs count beside each other, over all sites.

N of the objective is the sum of all rows' weights. Where rows have weights, each site tells its neighbours the sum of
its own, and the sum over all sites is found over the spanning tree. So a row of weight 2 counts as two rows do, and a
common factor of all weights changes nothing.

Several outputs share features and settings, so their errors are added up. Each output is brought to the same variance
over all sites first: otherwise one with a few large values would hardly count.
"""

from dataclasses import replace

import numpy as np

from ..errors import MessageError
from ..messages import Total, expect
from ..rows import Rows
from ..scaling import AnyScaling, Scaling
from .masking import Masks
from .roll_call import RollCall
from .site import Procedure, Site
from .spanning_tree import tree_sum


def weigh_rows(site: Site, roll: RollCall) -> Procedure[None]:
    """Find the sum of the weights of the neighbours' rows, and of all rows; the roll has them from then on."""
    roster = yield from roll.roster()
    own = np.array([site.rows.weights.total])
    inbox = expect((yield site.to_all(Total(own))), Total, values=dict.fromkeys(site.neighbors, (1,)))
    weights = {site.name: float(own[0])} | {p: float(message.values[0]) for p, message in inbox.items()}
    for name, weight in weights.items():
        if not weight > 0:
            raise MessageError(f"site {name!r} sent {weight:g} as its sum of weights, which is not positive", name)
    total = float((yield from tree_sum(site, roster, own))[0])
    roll.found(replace(roster, weights=weights, total_weight=total))


def equal_outputs(
    rows: Rows, scaling: AnyScaling, site: Site, roll: RollCall, masks: Masks | None = None
) -> Procedure[AnyScaling]:
    """Return the scaling with a span for each output by which all outputs have the same variance over all sites.

    The largest variance stays. Centres stay too, so that a model of several outputs is that of each output alone.

    Parameters
    ----------
    rows : Rows
        In the units of `scaling`. A sample stands for its rows, where they are many.
    scaling : Scaling or Unscaled
    site : Site
    roll : RollCall
    masks : Masks, optional
        For the sums over the tree.
    """
    n_outputs = rows.n_outputs
    if n_outputs == 1 or not isinstance(scaling, Scaling):
        return scaling
    roster = yield from roll.roster()
    _, y, weight = rows.sample.arrays()
    weight = rows.sample.expansion * (np.ones(len(y)) if weight is None else weight)
    moments = np.concatenate([[weight.sum()], weight @ y, weight @ y**2])
    total = yield from tree_sum(site, roster, moments, masks, largest=2 * roster.n_counted)
    mean, square = total[1 : n_outputs + 1] / total[0], total[n_outputs + 1 :] / total[0]
    variances = np.maximum(square - mean**2, 0.0)
    shares = np.sqrt(variances / max(variances.max(), np.finfo(float).tiny))
    return scaling.with_spans(np.where(shares > 0, shares, 1.0))
