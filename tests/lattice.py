"""Recovery of rows from sums by a neighbour that may choose its frequencies: the reason for proofs of features.

Sums of products of cosines and sines of frequencies f and g are values of phi(w) = sum_n exp(i w'x_n) at f + g and
f - g. The attacker puts one part of its frequencies on a fine lattice A and the other part on a coarse lattice B. Then
|A| + |B| frequencies determine phi on a lattice of |A| |B| points. These points are all differences of a lattice G,
which has more points than there are rows.

The matrix T[g, h] = phi(h - g) = V^H V with V[n, g] = exp(i g'x_n) has as rank the number of rows. For a shift by s,
T_s[g, h] = phi(h - g + s) = V^H diag(exp(i s'x_n)) V. With T = E diag(l) E^H, the matrices l^-1/2 E^H T_s E l^-1/2 have
the same eigenvectors for all s, one per row, and the eigenvalues exp(i s'x_n). One shift along each column therefore
determines the rows, and no starting values are needed. This is the matrix pencil, or ESPRIT, of spectral estimation:
Roy and Kailath, IEEE Transactions on Acoustics, Speech, and Signal Processing 37(7), 1989.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import msgspec
import numpy as np

from dekrr.errors import SettingsError
from dekrr.features import FeatureMap, paired
from dekrr.lab.attacks.campaign import TOLERANCES, RowsFromSums
from dekrr.lab.attacks.overhearing import forged, overhear
from dekrr.lab.attacks.scenes import GUARDED, Scene
from dekrr.lab.attacks.sums import recovered
from dekrr.messages import Moments, Sums
from dekrr.privacy.admission import ONE_IN
from dekrr.protocols import dekrr
from dekrr.settings import DeKRRSettings
from dekrr.statistics import unpack_symmetric
from dekrr.types import Array

_Place = tuple[tuple[int, ...], int]  # a point of the lattice, and the column of its shift, or -1
_WITHIN = 1 - 1e-9
_SHIFT = 6.0  # below 2 pi, so that the values of a column in [0, 1] have different phases


@dataclass(frozen=True)
class Lattice:
    """Frequencies on a fine and a coarse lattice over some columns, and shifts of the fine lattice along the others.

    Parameters
    ----------
    columns : tuple of int
        The columns of the lattices.
    fine, coarse : int
        The number of points of A and of B along each of these columns; `fine` is even. G has fine * coarse / 2.
    step : float
        The distance of two points, at most 6.
    """

    n_columns: int
    columns: tuple[int, ...]
    fine: int
    coarse: int
    step: float

    @classmethod
    def within(cls, n_columns: int, columns: Sequence[int], fine: int, coarse: int, limit: float) -> "Lattice":
        """Return the lattice with the largest step for which no frequency is longer than `limit`."""
        longest = np.sqrt(len(columns)) * max(fine * (coarse - 1) / 2, fine / 2)
        shifted = np.sqrt(max(limit**2 - _SHIFT**2, 0.0)) / (np.sqrt(len(columns)) * fine / 2)
        return cls(
            n_columns, tuple(columns), fine, coarse, float(min(_SHIFT, _WITHIN * limit / longest, _WITHIN * shifted))
        )

    @property
    def side(self) -> int:
        """The number of points of G along each column of the lattice."""
        return self.fine * self.coarse // 2

    @property
    def _fine_points(self) -> list[tuple[int, ...]]:
        return list(product(range(1 - self.fine // 2, self.fine // 2 + 1), repeat=len(self.columns)))

    @property
    def _coarse_points(self) -> list[tuple[int, ...]]:
        """Return one point of each pair of opposite points of B; phi of the other is the complex conjugate."""
        levels = [self.fine * (2 * i + 1 - self.coarse) // 2 for i in range(self.coarse)]
        return [point for point in product(levels, repeat=len(self.columns)) if point >= tuple(-p for p in point)]

    @property
    def _shifts(self) -> list[int]:
        return [-1, *(c for c in range(self.n_columns) if c not in self.columns)]

    def _frequencies(self, places: Sequence[_Place]) -> Array:
        frequencies = np.zeros((self.n_columns, len(places)))
        for i, (point, shift) in enumerate(places):
            frequencies[list(self.columns), i] = self.step * np.array(point)
            if shift >= 0:
                frequencies[shift, i] = _SHIFT
        return frequencies

    def places(self, capacities: Sequence[int]) -> list[list[_Place]]:
        """Return the places of each map's frequencies: B, and as many copies of A as its number of features allows."""
        coarse = [(point, -1) for point in self._coarse_points]
        left = self._shifts
        asked = []
        for capacity in capacities:
            n_copies = (capacity // 2 - len(coarse)) // len(self._fine_points)
            taken, left = left[: max(n_copies, 0)], left[max(n_copies, 0) :]
            asked.append(coarse + [(point, shift) for shift in taken for point in self._fine_points])
        if left:
            raise SettingsError(f"maps of {list(capacities)} features are too small for this lattice")
        return asked

    def maps(self, capacities: Sequence[int]) -> list[FeatureMap]:
        """Return maps with the cosines and sines of `places`; map i has at most `capacities[i]` features."""
        pairs = [paired(self._frequencies(places)) for places in self.places(capacities)]
        return [FeatureMap(m.frequencies, m.phases, np.ones(m.n_features)) for m in pairs]

    def moments(self, capacities: Sequence[int], grams: Sequence[Array]) -> dict[_Place, complex]:
        """Return phi from Z'Z of each map."""
        phi: dict[_Place, complex] = {}
        n_coarse = len(self._coarse_points)
        for places, gram in zip(self.places(capacities), grams, strict=True):
            size = len(places)
            parts = gram[:size, :size], gram[size:, size:], gram[size:, :size], gram[:size, size:]
            cos_cos, sin_sin, sin_cos, cos_sin = (part[n_coarse:, :n_coarse] for part in parts)
            plus = cos_cos - sin_sin + 1j * (sin_cos + cos_sin)
            minus = cos_cos + sin_sin + 1j * (sin_cos - cos_sin)
            for i, (point, shift) in enumerate(places[n_coarse:]):
                for j, (other, _) in enumerate(places[:n_coarse]):
                    phi[tuple(a + b for a, b in zip(point, other, strict=True)), shift] = plus[i, j]
                    phi[tuple(a - b for a, b in zip(point, other, strict=True)), shift] = minus[i, j]
        return phi

    def rows(self, phi: dict[_Place, complex], n_rows: int, relative: float = 1e-11, seed: int = 0) -> Array:
        """Return the recovered rows, shape (n_found, n_columns), in arbitrary order.

        Parameters
        ----------
        phi : dict
            The result of `moments`.
        relative : float
            Eigenvalues of T below this times the largest are taken as noise.
        """
        table = self._table(phi)
        values, vectors = np.linalg.eigh(self._toeplitz(table[-1], None))
        kept = np.flatnonzero(values > relative * values[-1])[-n_rows:]
        whitening = vectors[:, kept] / np.sqrt(values[kept])
        pencils = []
        for column in range(self.n_columns):
            axis = self.columns.index(column) if column in self.columns else None
            shifted = self._toeplitz(table[-1 if axis is not None else column], axis)
            pencils.append(whitening.conj().T @ shifted @ whitening)
        mix = np.random.default_rng(seed).normal(size=len(pencils))
        _, eigenvectors = np.linalg.eig(sum(weight * pencil for weight, pencil in zip(mix, pencils, strict=True)))
        inverse = np.linalg.inv(eigenvectors)
        turns = np.array([np.einsum("ij,jk,ki->i", inverse, pencil, eigenvectors, optimize=True) for pencil in pencils])
        steps = np.array([self.step if column in self.columns else _SHIFT for column in range(self.n_columns)])
        angles = np.angle(turns)
        lowest = -(2 * np.pi - steps[:, None]) / 2  # a value outside the unit box goes to the side of its nearer end
        return np.asarray((np.where(angles < lowest, angles + 2 * np.pi, angles) / steps[:, None]).T)

    def _table(self, phi: dict[_Place, complex]) -> dict[int, np.ndarray]:
        """Return phi on the lattice from -(side - 1) to side, by shift."""
        shape = (2 * self.side,) * len(self.columns)
        tables = {shift: np.zeros(shape, dtype=complex) for shift in self._shifts}
        for (point, shift), value in phi.items():
            tables[shift][tuple(p + self.side - 1 for p in point)] = value
        return tables

    def _toeplitz(self, table: np.ndarray, axis: int | None) -> np.ndarray:
        """Return phi(h - g), or phi(h - g + step along an axis), for all g, h of G."""
        grid = np.array(list(product(range(self.side), repeat=len(self.columns))))
        difference = grid[None] - grid[:, None] + self.side - 1
        if axis is not None:
            difference[:, :, axis] += 1
        return np.asarray(table[tuple(np.moveaxis(difference, 2, 0))])


def attack_by_lattice(
    problem: Scene,
    target: str | None = None,
    *,
    fine: int,
    coarse: int,
    n_lattice_columns: int = 3,
    settings: DeKRRSettings | None = None,
) -> RowsFromSums:
    """Recover rows by frequencies that the attacker chooses.

    The attack respects all guards except two, which must be off: the proof of features and the limit of leverage.

    Parameters
    ----------
    fine, coarse : int
        The size of the lattice.
    n_lattice_columns : int
        The number of columns of the lattice: those in which the attacker's own rows vary most.
    settings : Settings, optional
        By default those of a deployment, without these two guards.
    """
    victim, attacker = problem.pair(target)
    n_columns = victim.X.shape[1]
    columns = np.argsort(-attacker.X.std(axis=0))[:n_lattice_columns].tolist()
    limit = problem.selector().longest_frequency(n_columns, ONE_IN)
    lattice = Lattice.within(n_columns, columns, fine, coarse, limit)
    max_features = problem.longest_shortlist(attacker)
    capacities = [max_features, 2 * max_features - problem.n_features]
    maps = lattice.maps(capacities)
    settings = settings or msgspec.structs.replace(GUARDED, verify_features=False, max_leverage=1)
    begun = time.process_time()
    selector, settings = problem.selector(), msgspec.structs.replace(settings, max_rounds=1, tol=0.0)

    def procedure(site):
        honest = dekrr.train(site, selector, settings)
        return forged(honest, site, selector, maps.__getitem__) if site.name == attacker.name else honest

    record, _ = overhear(problem.sites, procedure, (victim.name, attacker.name))
    (moments,), (sums,) = (record.between(victim.name, attacker.name, kind) for kind in (Moments, Sums))
    packed = moments.gram, sums.gram
    grams = [unpack_symmetric(gram, m.n_features) for gram, m in zip(packed, maps, strict=True)]
    phi = lattice.moments(capacities, grams)
    found = np.vstack([lattice.rows(phi, victim.n_rows, relative) for relative in (1e-9, 1e-11, 1e-13)])
    shares, chance = (
        {tolerance: recovered(found, truth, tolerance, attacker.X) for tolerance in TOLERANCES}
        for truth in (victim.X, problem.spare[victim.name][0])
    )
    return RowsFromSums(shares, chance, 0, np.nan, time.process_time() - begun)
