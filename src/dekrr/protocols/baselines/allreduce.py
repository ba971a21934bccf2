"""AllReduce: shared features, exact consensus.

All sites sum Z_j'Z_j and Z_j'y_j over a spanning tree and solve the ridge regression of the pooled rows,
(1/N sum_j Z_j'Z_j + alpha I) theta = 1/N sum_j Z_j'y_j. This is where DKLA converges to.
"""

import numpy as np
from scipy.linalg import cho_solve

from ...features import FeatureMap
from ...selection import Chooser
from ...settings import AllReduceSettings
from ...solvers import cholesky
from ...statistics import pack_symmetric, unpack_symmetric
from ...types import Array
from ..masking import Masking, Masks, unit_of, unit_of_gram
from ..run import Outcome
from ..site import Procedure, Site
from ..spanning_tree import tree_sum
from .shared import Prepared, prepare


def train(
    site: Site, chooser: Chooser, settings: AllReduceSettings, *, shared: FeatureMap | None = None
) -> Procedure[Outcome]:
    """Train one model, the same at all sites, from sums over all rows; all sites may have `shared` features already."""
    prepared = yield from prepare(site, chooser, settings, shared)
    own, roster = prepared.sums, prepared.roster
    size = len(own.moment)
    values = np.concatenate([pack_symmetric(own.gram), own.moment.ravel(), [own.response_energy]])
    if prepared.agreement is not None:
        masks = yield from Masking(prepared.agreement, prepared.rows, prepared.scaling).agreed()
        total = yield from tree_sum(site, roster, values, masks, _largest(prepared, own.moment.size // size, masks))
    else:
        total = yield from tree_sum(site, roster, values)
    gram, moment, response_energy = np.split(total, [-own.moment.size - 1, -1])
    gram = unpack_symmetric(gram, size) / roster.n_counted
    moment = moment.reshape(own.moment.shape) / roster.n_counted
    coefficients = cho_solve((cholesky(gram + settings.alpha * np.eye(size)), False), moment)
    outcome = Outcome(roster, prepared.scaling, prepared.feature_map, coefficients)
    objective = float(response_energy[0] / roster.n_counted - np.vdot(coefficients, moment))
    outcome.objective_shares = [objective / roster.n_sites]
    outcome.neighbor_maps = dict.fromkeys(site.neighbors, prepared.feature_map)
    outcome.neighbor_coefficients = dict.fromkeys(site.neighbors, coefficients)
    return outcome


def _largest(prepared: Prepared, n_outputs: int, masks: Masks) -> Array:
    """Return public bounds on what a site sums: Z'Z, Z'y and y'y."""
    rows, responses = 2.0**masks.rows, 2.0**masks.responses
    of_moment = np.repeat(unit_of(prepared.feature_map), n_outputs)
    gram = unit_of_gram(prepared.feature_map)
    return np.concatenate(
        [rows * np.abs(gram), rows * responses * np.abs(of_moment), [rows * responses**2 * n_outputs]]
    )
