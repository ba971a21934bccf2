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
"""

from functools import cache
from typing import Any

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
    """The budget that a site has spent, for its model's header and the record of the run.

    Parameters
    ----------
    epsilon, delta : float
        What the mechanism that ran guarantees.
    noise_scale : float
        Standard deviation of the noise on a sum.
    sensitivity : float
        The L2 sensitivity it was calibrated to.
    adjacency : str
    mechanism : str
        The mechanism, and the library that calibrated and drew it.
    """

    epsilon: float
    delta: float
    noise_scale: float
    sensitivity: float
    adjacency: str = "one row replaced, row counts public"
    mechanism: str = ""


class GaussianSums:
    """The Gaussian mechanism for (G, m) of one site, calibrated before the rows are touched.

    Parameters
    ----------
    privacy : DifferentialPrivacy
    n_rows : int
        N_j, which is public.
    sensitivity : float
        Of the packed (G, m); anything but the default is for tests of the audit.
    """

    def __init__(self, privacy: DifferentialPrivacy, n_rows: int, sensitivity: float = SENSITIVITY) -> None:
        self._measurement, scale = calibrated(privacy.epsilon, delta_of(privacy, n_rows), sensitivity)
        epsilon, delta = self._measurement.map(sensitivity)
        self.spent = Spent(
            epsilon=float(epsilon),
            delta=float(delta),
            noise_scale=scale,
            sensitivity=sensitivity,
            mechanism=f"Gaussian, OpenDP {opendp_version()}",
        )

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

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_columns)
    frequencies : ndarray of shape (n_columns, n_features)
        The box depends on them alone, and on no row.
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


def opendp_version() -> str:
    """Return the version of OpenDP."""
    from importlib.metadata import version

    return version("opendp")


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
