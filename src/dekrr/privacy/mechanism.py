"""Differential privacy for the sums of a site: perturbed once, before anything leaves.

With cos/sin pairs that all sites draw from the run's seed, a row's features z have |z| = 1 whatever the row is. (From
about 1e16 turns on, rounding would undo that. Columns are therefore clipped, to public bounds and in any case to a box
that the frequencies give.) One matrix serves every neighbour: B_pj = C_pj = Z'Z for all p. All that the rest of a run
needs from the rows of site j is then

    G = sum_n z_n z_n'   and   m = sum_n y_n z_n,        |y_n| <= 1,

and everything that leaves the site, in every round, is a function of the perturbed (G, m) and of what others
sent. For two rows (z, y) and (v, t) with k = z'v, replacing one by the other moves (G, m), squared, by

    |zz' - vv'|^2 + |yz - tv|^2 <= (2 - 2 k^2) + (2 + 2 |k|) <= 9/2,

attained at |k| = 1/2, y = -t = +-1. Noise of scale s on G's diagonal and on m, and of s / sqrt(2) on G's
other entries, is therefore the Gaussian mechanism for the L2 sensitivity sqrt(9/2). OpenDP finds s for
(epsilon, delta) and draws the noise, from the operating system's secure source and without the holes that
floating-point noise has.

With k outputs y_n is a vector whose entries are within [-1, 1]. It is divided by sqrt(k), so that |y_n| <= 1, and the
bound is the same: |yz' - tv'|^2 = |y|^2 + |t|^2 - 2 (y't)(z'v). The noise on m is then sqrt(k) times as large in the
units of one output. A row of weight w would move (G, m) w times as far, so that rows with weights are refused.

The perturbed G is made positive semidefinite by dropping its negative eigenvalues, and the ridge grows by
`RIDGE` s sqrt(D): the idea of AdaSSP (Wang, Revisiting differentially private linear regression, UAI 2018)
with a smaller factor, because the neighbours' agreement stabilises the solution too.

**Distributed noise: each site adds its share, and the sum over sites that masks leave visible has all of it.**

`GaussianSums` adds the full noise, of scale s, at every site: what a site sends is safe by itself. Under masks nobody
sees what a site sends. Only sums over several sites show, and these need the noise once.

**The promise.** Take any one row of any one honest site and replace it by any other. What any c sites see together, in
a whole run, has nearly the same law: (epsilon, delta), as above. More than c sites together may see more. With
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
sends its sums once, for one roster, and refuses to go on with another (`Vault`). A dishonest site can
spoil the model. It cannot lower the noise of honest ones: naming fewer partners raises it.

**What does not get less noise.** Coefficients of DeKRR show a site's own sums. With distributed noise there are
therefore no sums of a single site in the system that is solved: every site has an equal share of the total, and all
end with the ridge regression of all rows.

**How much of a model the noise drowns: a rule of thumb that needs no row.**

The noise on the Gram matrix G = Z'Z of D features is symmetric, with entries of scale s / sqrt(2) off the diagonal. Its
norm is about s sqrt(2 D), the edge of Wigner's semicircle. The largest eigenvalue of G is at most its trace, which is
N_j, because a row's features have length 1. So

    share = s sqrt(2 D) / N_j

is the noise as a share of the largest eigenvalue that G could have. With noise that sites share, it is the noise of the
total, of scale s sqrt(J / h), over the rows of all J sites; h is the number of honest sites that share it.

The thresholds are from measurements: two made-up problems of four sites in a ring, N_j from 100 to 20,000, D from 20 to
200, epsilon from 0.5 to 8, seed 0, full noise and noise shared against one colluder (`python
benchmarks/privacy_noise.py`, 216 fits with noise). Own RSE on new rows, with plain features:

    share            fits   error with noise / without (median)   twice as large, or above 0.9
    below 0.005        62                                  1.34                              0
    0.005 to 0.01      22                                  1.63                              4
    0.01 to 0.02       23                                  1.82                              7
    0.02 to 0.05       35                                  2.33                             29
    0.05 to 0.1        21                                  3.16                             19
    0.1 to 0.3         26                                  3.41                             25
    above 0.3          27                                  4.59                             27

**What a site has released in a run, so that it is released once.**

Noise drawn twice for the same rows is two releases, and averages out. A site that resumes from a checkpoint, or
goes through the procedure again because a neighbour is gone, must therefore send what it sent before.
"""

import math
from functools import cache
from importlib.metadata import version
from typing import Any, Self

import msgspec
import numpy as np

from ..errors import DataError, SettingsError
from ..settings import DifferentialPrivacy
from ..statistics import OwnSums, pack_symmetric, unpack_symmetric
from ..types import Array

SENSITIVITY = float(np.sqrt(4.5)) * (1 + 1e-6)  # the margin is for rounding in features and sums
RIDGE = 0.05
_MOST_TURNS = 1e6  # of a wave, so that |z| = 1 holds to 1e-7 in up to a hundred columns


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """The budget that a site has spent, for its model's header and the record of the run."""

    epsilon: float  # epsilon, delta: what the mechanism that ran guarantees
    delta: float
    noise_scale: float  # standard deviation of the noise on a sum
    sensitivity: float  # the L2 sensitivity it was calibrated to
    adjacency: str = "one row replaced, row counts public"
    mechanism: str = ""  # the mechanism, and the library that calibrated and drew it

    @classmethod
    def by(cls, measurement: Any, scale: float, sensitivity: float, kind: str, unless: str = "") -> Self:
        """Return what one of OpenDP's measurements spends, and what is assumed of sites besides."""
        epsilon, delta = map(float, measurement.map(sensitivity))
        adjacency, mechanism = f"one row replaced, row counts public{unless}", f"{kind}, OpenDP {version('opendp')}"
        return cls(
            epsilon=epsilon,
            delta=delta,
            noise_scale=scale,
            sensitivity=sensitivity,
            adjacency=adjacency,
            mechanism=mechanism,
        )


class GaussianSums:
    """The Gaussian mechanism for (G, m) of one site, calibrated before the rows are touched; N_j is public.

    Anything but the default sensitivity of the packed (G, m) is for tests of the audit.
    """

    def __init__(self, privacy: DifferentialPrivacy, n_rows: int, sensitivity: float = SENSITIVITY) -> None:
        self._measurement, scale = calibrated(privacy.epsilon, delta_of(privacy, n_rows), sensitivity)
        self.spent = Spent.by(self._measurement, scale, sensitivity, "Gaussian")

    def perturb(self, sums: OwnSums) -> OwnSums:
        """Return the sums with noise; G is positive semidefinite and y'y, which no site needs, is left out."""
        root = np.sqrt(sums.moment[0].size)  # of the number of outputs
        noisy = np.asarray(self._measurement(pack(sums.gram, sums.moment / root).tolist()))
        gram, moment = unpack(noisy, sums.moment.shape)
        return OwnSums(nearest_positive(gram), moment * root, 0.0)

    def ridge(self, n_features: int) -> float:
        """Return what to add to the ridge of a sum over rows, so that noise in G does not dominate."""
        return RIDGE * self.spent.noise_scale * float(np.sqrt(n_features))


def delta_of(privacy: DifferentialPrivacy, n_rows: int) -> float:
    """Return delta at a site of `n_rows` rows; refuse one that promises nothing."""
    delta = privacy.delta_for(n_rows)
    if delta * n_rows > 1:
        raise SettingsError(
            f"delta={delta:g} promises nothing to a site of {n_rows} rows: publishing one row at random would meet it; "
            f"use a delta below 1/{n_rows}, or delta=None"
        )
    return delta


def pack(gram: Array, moment: Array) -> Array:
    """Return (G, m) as one vector whose Euclidean norm is that of G (Frobenius) and m together."""
    size = len(moment)
    return np.concatenate([pack_symmetric(gram) * _weights(size), moment.ravel()])


def unpack(vector: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Undo `pack`; `shape` is that of m."""
    size, n_moments = shape[0], int(np.prod(shape))
    return unpack_symmetric(vector[:-n_moments] / _weights(size), size), vector[-n_moments:].reshape(shape)


def _weights(size: int) -> Array:
    return pack_symmetric(np.full((size, size), np.sqrt(2)) - np.diag(np.full(size, np.sqrt(2) - 1)))


def nearest_positive(gram: Array) -> Array:
    """Return the positive semidefinite matrix nearest to a symmetric one, by its eigenvalues."""
    values, vectors = np.linalg.eigh(gram)
    positive: Array = (vectors * np.maximum(values, 0)) @ vectors.T
    return positive


def clip_columns(X: Array, frequencies: Array) -> Array:
    """Return rows within the box in which features have length 1, which the sensitivity rests on.

    It depends on the frequencies (n_columns, n_features) alone, and on no row.
    """
    if not np.isfinite(X).all():
        raise DataError("a value of a row is NaN or infinite; drop those rows")
    steepest = float(np.max(np.abs(frequencies).sum(axis=0), initial=np.finfo(float).tiny))
    reach = 2 * np.pi * _MOST_TURNS / steepest
    return np.clip(X, -reach, reach)


def clip_responses(y: Array) -> Array:
    """Return scaled responses within [-1, 1], which the sensitivity rests on."""
    if not np.isfinite(y).all():
        raise DataError("a response is NaN or infinite; drop those rows")
    return np.clip(y, -1.0, 1.0)


def opendp() -> Any:
    """Return the OpenDP library, or say how to install it."""
    try:
        import opendp.prelude as library
    except ImportError:
        raise ImportError("differential privacy needs OpenDP: pip install 'dekrr[dp]'") from None
    library.enable_features("contrib")
    return library


@cache
def calibrated(epsilon: float, delta: float, sensitivity: float) -> tuple[Any, float]:
    """Return OpenDP's Gaussian measurement for vectors with that L2 sensitivity, and its scale."""
    library = opendp()
    space = library.vector_domain(library.atom_domain(T=float, nan=False)), library.l2_distance(T=float)

    def measurement(scale: float) -> Any:
        concentrated = library.m.make_gaussian(*space, scale=scale)
        return library.c.make_fix_delta(library.c.make_zCDP_to_approxDP(concentrated), delta=delta)

    try:
        scale = float(library.binary_search_param(measurement, d_in=sensitivity, d_out=(epsilon, delta), T=float))
    except Exception as error:
        raise SettingsError(f"no Gaussian noise meets epsilon={epsilon:g}, delta={delta:g}: {error}") from None
    return measurement(scale), scale


RIDGE_OF_SHARES = 0.5  # ten times as much: no neighbours' agreement stabilises the solution
_GRID = -30  # the exponent of two of g / s
_MOST_SCALES = 64  # of noise, which no entry has in the life of the universe: for the size of words


class SharedNoise:
    """One site's share of the noise on the sum of (G, m) over all sites; m is of this shape.

    The most rows of a site are public, and give delta where that is left open. A site shares masks with at least
    `n_partners` others.
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
        self.grid = 2.0 ** (math.floor(math.log2(rough)) + _GRID)  # g
        sensitivity = SENSITIVITY + self.grid * math.sqrt(size)
        measurement, self.scale = calibrated(privacy.epsilon, delta, sensitivity)  # of what colluders can see, s
        self.share = self.scale / math.sqrt(self.n_honest)  # of the noise that this site adds
        kind = f"discrete Gaussian shared by {self.n_honest} sites"
        self.spent = Spent.by(
            measurement, self.scale, sensitivity, kind, f", at most {privacy.colluders} sites collude"
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
        return RIDGE_OF_SHARES * of_total * math.sqrt(self._shape[0]) / self._n_sites


def _discrete_gaussian(scale: float) -> Any:
    """Return OpenDP's discrete Gaussian measurement for vectors of whole numbers."""
    library = opendp()
    domain = library.vector_domain(library.atom_domain(T="i64"))
    return library.m.make_gaussian(domain, library.l2_distance(T=float), scale=scale)


DOUBLES = 0.02
"""The share from which on noise about doubles the error."""

DROWNS = 0.1
"""The share from which on every other model was hardly better than the mean of the responses."""

_FEWEST_FEATURES = 10  # that are worth proposing


def noise_share(scale: float, n_features: int, n_rows: float) -> float:
    """Return the norm of noise of scale s in a Gram matrix, as a share of the largest eigenvalue that it could have."""
    return scale * math.sqrt(2 * n_features) / n_rows


def warning_of_noise(
    privacy: DifferentialPrivacy, scale: float, n_features: int, n_rows: int, n_sites: int = 1
) -> str | None:
    """Return a warning with remedies where noise costs much of a model's accuracy; None where it does not.

    The rows in the sums are those of the site with the fewest, or of all `n_sites` that share the noise of this scale.
    """
    share = noise_share(scale, n_features, n_rows)
    if share < DOUBLES:
        return None
    times = share / DOUBLES
    found = (
        f"noise of {100 * DOUBLES:g} % about doubled the error"
        if share < DROWNS
        else f"noise of {100 * DROWNS:g} % left every other model hardly better than the mean of the responses"
    )
    whose = f"the {n_rows} rows of all sites" if n_sites > 1 else f"the {n_rows} rows of the smallest site"
    remedies = [f"about {_rounded(_rows_needed(privacy, times, n_rows) / n_sites)} rows a site"]
    if n_features / times**2 >= _FEWEST_FEATURES:
        remedies.append(f"n_features={_even(n_features / times**2)}")
    if privacy.epsilon * times <= privacy.max_epsilon:
        remedies.append(f"epsilon={privacy.epsilon * times:.2g}")
    if privacy.colluders is None:
        further = ". colluders=1 helps too: sites then share the noise, and one curious site learns no more"
    else:
        further = ". Fewer colluders and more sites help too" if privacy.colluders > 1 else ". More sites help too"
    return (
        f"differential privacy with epsilon={privacy.epsilon:g} and {n_features} features adds noise of norm "
        f"{scale * math.sqrt(2 * n_features):.3g} to sums over {whose}, which is {100 * share:.2g} % of them. In "
        f"trials, {found}. It takes {' or '.join(remedies)} to bring it to {100 * DOUBLES:g} %{further}"
    )


def _rows_needed(privacy: DifferentialPrivacy, times: float, n_rows: int) -> float:
    """Return the rows with which the share is `times` smaller; delta, where it is N^-2, asks for more noise then."""
    needed = times * n_rows
    if privacy.delta is None:
        needed *= math.sqrt(math.log(needed) / math.log(max(n_rows, 2)))
    return needed


def _rounded(number: float) -> int:
    """Return a number rounded up to two digits."""
    unit = int(10 ** max(0, math.floor(math.log10(number)) - 1))
    return math.ceil(number / unit) * unit


def _even(number: float) -> int:
    return max(2, 2 * math.floor(number / 2))
