"""A site's own sums from its coefficients: what all neighbours of a site can work out together.

Chebyshev's rounds are known to everybody, so that the steps s_t = H_jj^-1 r_t follow from three coefficients in a row.
With u_t = theta_t + s_t, the block row says

    (1/N) (A + L) u_t + |N_j| c~_j A u_t - m / N  =  sum_p P_jp theta_p - (alpha/J I + sum_p c~_p B_jp) u_t,

where A = Z_jj'Z_jj is over the rows in the site's sums, L over rows that are in its own fit alone, and m = Z_jj'y_j.
The right side is in what the neighbours sent and received. Tuning repeats it for many alphas and consensuses, with the
same A, L and m, and two values of consensus separate L from A. That broke a first fix of ours, which kept withheld rows
in a site's own fit: L was a sum over those rows alone. Withheld rows are in no sum now, and L must be 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..messages import Coefficients, Sums
from ..protocols.scoring import rounds_of
from ..protocols.site import Site
from ..protocols.tuning import Tuning
from ..solvers import ChebyshevState
from ..statistics import unpack_symmetric
from ..system import penalty
from ..types import Array
from .overhearing import Record

_NOISE = 1e-9


@dataclass(frozen=True)
class SolvedSums:
    """What coefficients tell of a site's own sums.

    Parameters
    ----------
    shared : ndarray of shape (D, D)
        A.
    own_only : ndarray of shape (D, D)
        L.
    moment : ndarray of shape (D,)
        m.
    rank : int
        How many directions the equations determine, of 2 D + 1.
    """

    shared: Array
    own_only: Array
    moment: Array
    rank: int


def solve_own_sums(points: Array, pulls: Array, known: Array) -> SolvedSums:
    """Solve (A + L) u + k A u - m = b for A, L and m by least squares; each row of A is a problem of its own.

    Parameters
    ----------
    points : ndarray of shape (n_equations, D)
        u.
    pulls : ndarray of shape (n_equations,)
        k = N |N_j| c~_j.
    known : ndarray of shape (n_equations, D)
        b.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> A, L = (part.T @ part for part in (rng.normal(size=(9, 3)), rng.normal(size=(1, 3))))
    >>> m, u, k = rng.normal(size=3), rng.normal(size=(20, 3)), rng.choice([0.5, 2.0], size=20)
    >>> found = solve_own_sums(u, k, u @ (A + L) + k[:, None] * (u @ A) - m)
    >>> bool(np.allclose(found.shared, A) and np.allclose(found.own_only, L) and np.allclose(found.moment, m))
    True
    """
    size = points.shape[1]
    design = np.hstack([(1 + pulls[:, None]) * points, points, -np.ones((len(points), 1))])
    weights = 1 / np.maximum(np.linalg.norm(np.hstack([design, known]), axis=1, keepdims=True), 1e-300)
    lengths = np.maximum(np.linalg.norm(weights * design, axis=0), 1e-300)
    solution, _, rank, _ = np.linalg.lstsq(weights * design / lengths, weights * known, rcond=_NOISE)
    solution = solution / lengths[:, None]
    shared, own_only = (part + part.T for part in (solution[:size] / 2, solution[size:-1] / 2))
    return SolvedSums(shared, own_only, solution[-1], int(rank))


@dataclass(frozen=True)
class _Heard:
    """What the neighbours of a site know of a tuned run, and the weights of its objective."""

    record: Record
    target: Site
    tuning: Tuning
    n_rows: float
    n_sites: int
    degrees: Mapping[str, int]

    def sums(self, sender: str, receiver: str, number: int) -> Sums:
        found: Sums = self.record.between(sender, receiver, Sums)[number]
        return found

    def thetas(self, name: str) -> list[Array]:
        """Return a site's coefficients of all rounds of the tuning, each of shape (folds, alphas, D)."""
        other = self.target.neighbors[0] if name == self.target.name else self.target.name
        shape = (self.tuning.folds, len(self.tuning.alphas), -1)
        messages = self.record.between(name, other, Coefficients)
        return [message.values.reshape(shape) for message in messages if message.values.ndim == 2]

    def equations(self, rounds: Mapping[str, Array], number: int, consensus: float) -> tuple[Array, Array, Array]:
        """Return u, k and b of one bandwidth and fold at one consensus, over all rounds and alphas.

        Parameters
        ----------
        rounds : mapping of site to ndarray of shape (n_rounds + 1, alphas, D)
        number : int
            Of the bandwidth and the fold.
        consensus : float
        """
        target = self.target
        points = _points(rounds[target.name], consensus)
        size, n_neighbors = points.shape[-1], len(target.neighbors)
        own_penalty = penalty(consensus, self.n_rows, n_neighbors)
        known = -np.array(self.tuning.alphas)[:, None] / self.n_sites * points
        for p in target.neighbors:
            received, sent = self.sums(p, target.name, number), self.sums(target.name, p, number)
            theirs = penalty(consensus, self.n_rows, self.degrees[p])
            known = known - theirs * points @ unpack_symmetric(received.gram, size)
            coupling = theirs * np.asarray(received.cross) + own_penalty * np.asarray(sent.cross).T
            known = known + rounds[p][:-1] @ coupling.T
        pulls = np.full(points.shape[:2], self.n_rows * n_neighbors * own_penalty)
        return points.reshape(-1, size), pulls.ravel(), self.n_rows * known.reshape(-1, size)


def from_tuning(
    record: Record, target: Site, tuning: Tuning, n_rows: int, n_sites: int, degrees: Mapping[str, int]
) -> list[SolvedSums]:
    """Return what all neighbours of a site work out from a tuned run, for each bandwidth and fold.

    Parameters
    ----------
    record : Record
        All messages between the target and its neighbours.
    target : Site
        Only its name and its neighbours are used.
    tuning : Tuning
        Of the run, with the folds that it had.
    n_rows, n_sites : int
        N and J.
    degrees : mapping of neighbour to int
        The number of its neighbours.
    """
    heard = _Heard(record, target, tuning, n_rows * (1 - 1 / tuning.folds), n_sites, degrees)
    thetas = {name: heard.thetas(name) for name in (target.name, *target.neighbors)}
    found, at = [], 0
    for place in range(len(tuning.sigmas)):
        parts: list[list[tuple[Array, Array, Array]]] = [[] for _ in range(tuning.folds)]
        for consensus in tuning.consensuses:
            window = slice(at, at + rounds_of(consensus) + 1)
            at = window.stop
            for fold in range(tuning.folds):
                rounds = {name: np.array([theta[fold] for theta in values[window]]) for name, values in thetas.items()}
                parts[fold].append(heard.equations(rounds, place * tuning.folds + fold, consensus))
        found += [solve_own_sums(*map(np.concatenate, zip(*each, strict=True))) for each in parts]
    return found


def _points(theta: Array, consensus: float) -> Array:
    """Return u_t = theta_t + H^-1 r_t for all rounds but the last, from the relaxation that everybody knows."""
    state = ChebyshevState.at(theta[0], np.zeros(0), consensus)
    points, before = [], theta[0]
    for now, then in pairwise(theta):
        state = state.relaxed()
        points.append((then - before) / state.relaxation + before)
        before = now
    return np.array(points)
