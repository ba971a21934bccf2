"""What a neighbour's coefficients may do in a round; what goes further is cut off, and its sender is named.

B is the block diagonal of H, and c the consensus. Each of the n neighbours p of a site j brings c / n times |f_j -
f_p|^2 over j's rows into the objective; let it share j's own error with the others. Of these two terms alone, and so of
all together, x'Hx / x'Bx is at least l = 1 - sqrt(c / (1 + c)), and, as `dekrr.solvers` has it, at most 2 - l. From 0
the error is that of the solution, whose square in the norm of B is at most Y / l: x'Hx = d'x is at most Y, the mean
squared response. A shared part only lowers it, and agreed bounds of responses bound it. The solvers multiply the error
by polynomials with known bounds q_k. So in round k an honest site has moved by at most (q_k + q_(k-1)) sqrt(Y / l) in
the norm of its H_pp. What that does to j's own update, |H_jj^(-1/2) P_jp move|, is at most sqrt(c / (1 + c)) times as
much: P is a block of B - H. Nothing in this is an estimate, so that honest sites are never cut, however their rows
differ.

A site that hears a liar moves by more than that, though it is honest. But what it hears is cut, and an update is a
known function of what was heard. So its moves have a bound, too, whatever liars say, and who exceeds it is named. Both
bounds fall as fast as the iteration converges: noise that stays is named, and comes to nothing.

A wrong solution that a neighbour approaches as an honest site would is not seen here. Nor is what a later run starts
from (`warm`), what int8 and silent rounds leave out, or noise of differential privacy.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from ..scaling import AnyScaling, Scaling
from ..settings import DeKRRSettings
from ..solvers import Chebyshev, Jacobi, cholesky, lower_end, next_relaxation
from ..statistics import BlockRow
from ..types import Array

_SETTLED = 1e-4  # of the largest response: what moves by less harms nobody, and rounding moves by less
_OF_SINGLE = 2.0**-22  # of coefficients, that rounding to 4 bytes moves them by


class Most(NamedTuple):
    """How far a neighbour may move what this site's update depends on, in units of the largest response."""

    honest: float  # where all sites are honest
    answering: float  # where an honest site answers to liars


def most_moves(solver: Any, consensus: float, n_inputs: int) -> Iterator[Most]:
    """Yield the bounds of round 1, 2, ..., where an honest site hears at most so many neighbours, cut as here."""
    influence = math.sqrt(consensus / (1 + consensus))
    if isinstance(solver, Jacobi):
        own, other = 1 + consensus, consensus * solver.self_penalty
        share, square = own / (own + other), consensus / (own + other)
        least = (1 + share - math.sqrt((1 - share) ** 2 + 4 * square)) / 2
        slowness = math.log(1 - least)
        keeps = other / (own + other)  # of a site's own last step
    else:
        least, radius = 1 - influence, 1 - lower_end(consensus)
        slowness = math.acosh(max(1.0, influence / radius)) - math.acosh(1 / radius)
        keeps = 0.0
    relaxation, left, before, answer, heard = 0.0, [0.0, 0.0], 1.0, 0.0, [0.0, 1.0]
    for k in range(1, 1 << 62):
        error = min(1.0, 2 * math.exp(k * slowness))
        honest = max(influence * (error + before) / math.sqrt(least), influence * _SETTLED)
        before = error
        if isinstance(solver, Jacobi):
            answer = keeps * answer + heard[1]
        else:
            relaxation = next_relaxation(relaxation, radius**2)
            left = [left[1], (relaxation - 1) * (left[0] + sum(heard))]
            answer = sum(left) + heard[1]
        yield Most(honest, max(honest, influence * answer))
        heard = [heard[1], n_inputs * honest]


class Doubts:
    """What a site makes of its neighbours' coefficients: `heard` gives what it takes of them, and whom it names."""

    def __init__(self, row: BlockRow, largest: float, most: Iterator[Most], known: Mapping[str, Array], eps: float):
        self._factor = cholesky(row.hessian)
        ends = np.cumsum([len(known[p]) for p in row.neighbors])[:-1]
        couplings = np.split(self._solved(row.couplings), ends, axis=1)
        self._couplings = dict(zip(row.neighbors, couplings, strict=True))
        self._largest, self._most, self._eps = largest, most, eps
        self._taken = dict(known)
        self._said = dict(known)
        self._pulls: tuple[Array | float, Array | float] = (0.0, 0.0)

    def heard(self, said: dict[str, Array], pull: Array | float) -> tuple[list[str], Array | float, bool]:
        """Replace what neighbours said by what is taken of it.

        Returns
        -------
        The neighbours that no honest one could be, what is taken of the masked sum of their products, and whether one
        of them, nobody knows which, must have sent a part of it that no honest site could.
        """
        most = next(self._most)
        honest, answering = (self._largest * bound for bound in most)
        liars = []
        for p, values in said.items():
            rounding = self._eps * float(np.linalg.norm(self._couplings[p])) * float(np.abs(values).max(initial=0.0))
            if not self._size(p, values - self._said[p]) <= answering + rounding:
                liars.append(p)
            self._said[p] = values
            size = self._size(p, values - self._taken[p])
            if not size <= honest + rounding:
                values = self._taken[p] + (values - self._taken[p]) * (honest / size)
            self._taken[p] = said[p] = values
        before, taken = self._pulls
        n = len(said)
        rounding = self._eps * float(np.linalg.norm(self._solved(np.asarray(pull)))) * n
        is_false = not self._effect(pull - before) <= n * answering + rounding
        size = self._effect(pull - taken)
        accepted = pull if size <= n * honest + rounding else taken + (pull - taken) * (n * honest / size)
        self._pulls = pull, accepted
        return liars, accepted, is_false

    def _solved(self, block: Array) -> Array:
        return np.asarray(solve_triangular(self._factor, block, trans="T", check_finite=False)) if block.ndim else block

    def _size(self, p: str, move: Array) -> float:
        return float(np.linalg.norm(self._couplings[p] @ move))

    def _effect(self, move: Array | float) -> float:
        return float(np.linalg.norm(self._solved(np.asarray(move))))


def doubts_of(
    row: BlockRow, solver: Any, settings: DeKRRSettings, scaling: AnyScaling, n_sites: int, known: Mapping[str, Array]
) -> Doubts | None:
    """Return a site's doubts in a run that starts from 0; None where nothing is known of what an honest site may do."""
    largest, wire = largest_response(scaling, row.right_side.shape[1:]), settings.wire
    is_known = settings.privacy is None and settings.consensus > 0 and type(solver) in (Chebyshev, Jacobi)
    if largest is None or not is_known or not row.neighbors or wire.censor_start or wire.precision == "int8":
        return None
    most = most_moves(solver, settings.consensus, (n_sites - 1) * (2 if settings.masks else 1))
    return Doubts(row, largest, most, known, _OF_SINGLE if wire.precision == "single" else 0.0)


def largest_response(scaling: AnyScaling, outputs: tuple[int, ...]) -> float | None:
    """Return what no agreed response is larger than, of all outputs together; None where nothing is agreed on it."""
    if not isinstance(scaling, Scaling):
        return None
    if scaling.limits is None:
        return 1.0 if not outputs else None
    n = outputs[0] if outputs else 1
    centre, half = (scaling.lower + scaling.upper)[-n:] / 2, scaling.spans[-n:] / 2
    ends = np.abs([scaling.limits[0][-n:] - centre, scaling.limits[1][-n:] - centre]) / half
    return float(np.sqrt(np.sum(ends.max(axis=0) ** 2)))
