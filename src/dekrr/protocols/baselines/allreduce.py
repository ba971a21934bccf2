"""AllReduce: shared features, exact consensus.

All sites sum Z_j'Z_j and Z_j'y_j over a spanning tree and solve the ridge regression of the pooled rows,
(1/N sum_j Z_j'Z_j + alpha I) theta = 1/N sum_j Z_j'y_j. This is where DKLA converges to.
"""

from functools import partial

import numpy as np
from scipy.linalg import cho_solve

from ...features import FeatureMap
from ...selection import Chooser
from ...settings import AllReduceSettings
from ...solvers import cholesky
from ...statistics import pack_symmetric, unpack_symmetric
from ..masking import largest_sums
from ..run import Outcome
from ..site import Procedure, Site
from .shared import prepare


def train(
    site: Site, chooser: Chooser, settings: AllReduceSettings, *, shared: FeatureMap | None = None
) -> Procedure[Outcome]:
    """Train one model, the same at all sites, from sums over all rows; all sites may have `shared` features already."""
    prepared = yield from prepare(site, chooser, settings, shared)
    own, roster = prepared.sums, prepared.roster
    size = len(own.moment)
    values = np.concatenate([pack_symmetric(own.gram), own.moment.ravel(), [own.response_energy]])
    largest = partial(largest_sums, prepared.feature_map, own.moment.size // size)
    total = yield from prepared.tree.sum(values, largest)
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
