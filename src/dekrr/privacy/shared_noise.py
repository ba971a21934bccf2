"""Distributed noise: each site adds its share, and the sum over sites that masks leave visible has all of it.

`dekrr.privacy.mechanism` adds the full noise, of scale s, at every site: what a site sends is safe by itself. Under
masks nobody sees what a site sends. Only sums over several sites show, and these need the noise once.

**The promise.** Take any one row of any one honest site and replace it by any other. What any c sites see together, in
a whole run, has nearly the same law: (epsilon, delta), as in `mechanism`. More than c sites together may see more. With
``colluders=None`` there is no such limit, and every site adds the full noise.

**What c sites see.** All sites sum (G, m) over the spanning tree under masks, and the total comes down. A site j shares
masks with its *partners*: its neighbours and their neighbours. Let the c sites have all that they know: their words,
keys, noise and rows. Consider the graph of the honest sites, with an edge between partners. By the argument of
`dekrr.privacy.masks`, in each connected component of this graph the masked words depend on the honest sites' numbers
only through their sum over the component. So the c sites see one sum for each component, and functions of these.

**The noise in a component.** The component of an honest site j holds j and all its honest partners. If every site has
at least n partners, that is h = n + 1 - c sites or more. Every site adds independent noise of variance s^2 / h. So the
sum over any component has noise of variance s^2 at least, independent of all rows. A row moves that sum by the L2
sensitivity of (G, m) at most. So the release of every component's sum is the Gaussian mechanism with scale s or more
for the only component that the row is in. Sites flood the least number of partners, so that all know h. Where h would
be 0 or less, a site refuses.

**Noise on a grid.** A site rounds its exact (G, m) to multiples of g = 2^-30 s, rounded to a power of two, and adds
discrete Gaussian noise (Canonne, Kamath, Steinke, NeurIPS 2020) in whole multiples of g, which OpenDP draws exactly.
Words modulo 2^64 hold multiples of g exactly. So what is revealed is the rounded exact sum plus noise that is
independent of rows; no bit of it is without noise. Rounding moves a site's vector of d entries by g sqrt(d) / 2 at
most, so that the sensitivity grows by g sqrt(d), which the calibration includes. A sum of independent discrete
Gaussians of scale t = s / (g sqrt(h)) >= 2^25 is one of scale t sqrt(h), up to a factor of exp(+-10 h exp(-pi^2 t^2))
in every probability (Kairouz, Liu, Steinke, ICML 2021), which is 1 in double precision.

**What is assumed.** Honest sites draw their noise and follow the protocol. A site that is *lost* would have its sum
shown by the difference of two totals, with its share of the noise alone. So the promise is for one membership: a site
sends its sums once, for one roster, and refuses to go on with another (`dekrr.privacy.vault`). A dishonest site can
spoil the model. It cannot lower the noise of honest ones: naming fewer partners raises it.

**What does not get less noise.** Coefficients of DeKRR show a site's own sums. With distributed noise there are
therefore no sums of a single site in the system that is solved: every site has an equal share of the total, and all
end with the ridge regression of all rows.
"""

import math
from typing import Any

import numpy as np

from ..errors import SettingsError
from ..settings import DifferentialPrivacy
from ..statistics import OwnSums
from ..types import Array
from .mechanism import SENSITIVITY, Spent, calibrated, delta_of, nearest_positive, opendp_version, pack, unpack
from .mechanism import opendp as imported

RIDGE = 0.5  # ten times that of `mechanism`: no neighbours' agreement stabilises the solution
_GRID = -30  # the exponent of two of g / s
_MOST_SCALES = 64  # of noise, which no entry has in the life of the universe: for the size of words


class SharedNoise:
    """One site's share of the noise on the sum of (G, m) over all sites.

    Parameters
    ----------
    privacy : DifferentialPrivacy
    most_rows : int
        Of a site; public. It gives delta, where that is left open.
    n_partners : int
        The least number of sites that a site shares masks with.
    n_sites : int
    shape : tuple of int
        Of m.

    Attributes
    ----------
    scale : float
        Of the noise on a sum that colluders can see (s).
    share : float
        Of the noise that this site adds.
    grid : float
        g.
    """

    def __init__(
        self, privacy: DifferentialPrivacy, most_rows: int, n_partners: int, n_sites: int, shape: tuple[int, ...]
    ) -> None:
        assert privacy.colluders is not None
        self.n_honest = n_partners + 1 - privacy.colluders
        if self.n_honest < 1:
            raise SettingsError(
                f"a site shares masks with {n_partners} others, so {privacy.colluders} colluding sites could see its "
                f"sums alone: add edges, use colluders={max(n_partners, 1)} at most, or colluders=None, with the full "
                "noise at every site"
            )
        self._shape, self._n_sites = shape, n_sites
        size = shape[0] * (shape[0] + 1) // 2 + math.prod(shape)
        delta = delta_of(privacy, most_rows)
        _, rough = calibrated(privacy.epsilon, delta, SENSITIVITY)
        self.grid = 2.0 ** (math.floor(math.log2(rough)) + _GRID)
        sensitivity = SENSITIVITY + self.grid * math.sqrt(size)
        measurement, self.scale = calibrated(privacy.epsilon, delta, sensitivity)
        self.share = self.scale / math.sqrt(self.n_honest)
        epsilon, delta = measurement.map(sensitivity)
        self.spent = Spent(
            epsilon=float(epsilon),
            delta=float(delta),
            noise_scale=self.scale,
            sensitivity=sensitivity,
            adjacency=f"one row replaced, row counts public, at most {privacy.colluders} sites collude",
            mechanism=f"discrete Gaussian shared by {self.n_honest} sites, OpenDP {opendp_version()}",
        )

    def largest(self, n_rows: float) -> float:
        """Return a public bound on the entries that a site sends, a power of two."""
        return float(2.0 ** math.ceil(math.log2(n_rows + _MOST_SCALES * self.share + 1)))

    def perturb(self, sums: OwnSums) -> Array:
        """Return (G, m) as one vector of multiples of the grid, with this site's share of the noise."""
        packed = pack(sums.gram, sums.moment / self._root)
        steps = np.rint(packed / self.grid).astype(np.int64)
        return np.asarray(_discrete_gaussian(self.share / self.grid)(steps.tolist()), dtype=np.float64) * self.grid

    def share_of(self, total: Array) -> OwnSums:
        """Return one site's equal share of the total: G, made positive semidefinite, and m."""
        gram, moment = unpack(total / self._n_sites, self._shape)
        return OwnSums(nearest_positive(gram), moment * self._root, 0.0)

    @property
    def _root(self) -> float:
        return math.sqrt(math.prod(self._shape[1:]))

    @property
    def ridge(self) -> float:
        """What to add to the ridge of a site's share of the sums, so that noise in G does not dominate."""
        of_total = self.share * math.sqrt(self._n_sites)
        return RIDGE * of_total * math.sqrt(self._shape[0]) / self._n_sites


def _discrete_gaussian(scale: float) -> Any:
    """Return OpenDP's discrete Gaussian measurement for vectors of whole numbers."""
    opendp = imported()
    domain = opendp.vector_domain(opendp.atom_domain(T="i64"))
    return opendp.m.make_gaussian(domain, opendp.l2_distance(T=float), scale=scale)
