"""Iterations for H theta = d that need nothing but the neighbours' last coefficients.

Both solvers move along the residual r_j of a site's block row. Write B for the block diagonal of H. Turning
every |a - b|^2 of the objective into |a + b|^2 changes the sign of the off-diagonal blocks only, so 2B - H is
positive definite like H, and the eigenvalues of B^-1 H lie strictly between 0 and 2.

`Jacobi` is the paper's update (18), theta_j += (H_jj + U_j)^-1 r_j with the self penalty
U_j = self_penalty c~_j Z_jj'Z_jj. A step changes the objective by -step'(2(B + U) - H) step: it falls for every
self penalty from 0 on, whether or not it meets the condition of the paper's Proposition 1.

`Chebyshev` is the semi-iteration of Golub and Varga (Numerische Mathematik 3, 1961) on block Jacobi for
eigenvalues in [a, 2 - a]. An eigenvalue outside that interval but inside (0, 2) is still damped in every
round, so it converges for any 0 < a < 1. Where all sites agree on a function the quotient theta'H theta /
theta'B theta is 1 / (1 + 2 consensus), up to alpha. The smallest eigenvalue is at most that, on real data 0 to 11 %
below; a is 1 / (1 + 2.1 consensus).
"""

from typing import Protocol

import msgspec
import numpy as np
from scipy.linalg import eigvalsh
from scipy.linalg.lapack import dpotrf, dpotri

from .errors import SettingsError
from .statistics import CrossSums, OwnSums, pack_symmetric, unpack_symmetric
from .system import BlockRow, Weights, pull
from .types import Array

SelfPenalty = float | str


class State(msgspec.Struct, frozen=True):
    """Where an iteration stands at one site.

    `previous` and `weight` are Chebyshev's last coefficients and relaxation; Jacobi's `weight` is its self
    penalty, `previous` its last residual and `step` its last step.
    """

    coefficients: Array
    previous: Array
    step: Array
    weight: float


class Solver(Protocol):
    """What the round loop asks of a solver."""

    def start(self, coefficients: Array) -> State:
        """Return the state before the first round."""

    def update(self, state: State, residual: Array) -> State:
        """Return the state after one round, given the residual at `state.coefficients`."""


def cholesky(matrix: Array) -> Array:
    """Return the upper Cholesky factor of a positive definite matrix, or say what is wrong with it.

    Below the diagonal it has whatever the matrix had.
    """
    if not np.isfinite(matrix).all():
        raise SettingsError(
            "a site's system has numbers that are too large, from its own sums or from a neighbour's: scale rows and "
            "responses at all sites"
        )
    factor, failed_at = dpotrf(matrix, clean=False)
    if failed_at:
        raise SettingsError(
            "a site's system is not positive definite: alpha is too small for features that depend on each other "
            'this much, or for the errors of precision="mixed"; raise alpha'
        )
    return np.asarray(factor)


def inverse(matrix: Array) -> Array:
    """Return the inverse of a positive definite matrix.

    A round that multiplies by it is faster than one that solves with a factor, and each corrects the last one's
    rounding, as residuals are computed anew.
    """
    upper, _ = dpotri(cholesky(matrix), overwrite_c=True)
    return unpack_symmetric(pack_symmetric(upper), len(upper))


class Jacobi:
    """The paper's update, with its self penalty.

    Parameters
    ----------
    row : BlockRow
    gram : ndarray of shape (D_j, D_j)
        c~_j Z_jj'Z_jj: the self penalty of weight 1.
    self_penalty : float
    adaptive : bool, default=False
        Double the self penalty whenever this site's term of the objective's fall, step'(r_before + r_after),
        is negative. The terms of all sites sum to the fall, so that where the objective rises at least one
        site reacts, from local knowledge alone.
    """

    def __init__(self, row: BlockRow, gram: Array, self_penalty: float, *, adaptive: bool = False) -> None:
        self._row = row
        self._gram = gram
        self._adaptive = adaptive
        self._self_penalty = self_penalty
        self._inverse = self._invert(self_penalty)

    def _invert(self, self_penalty: float) -> Array:
        return inverse(self._row.hessian + self_penalty * self._gram)

    def start(self, coefficients: Array) -> State:
        """Return the state before the first round."""
        zeros = np.zeros_like(coefficients)
        return State(coefficients, previous=zeros, step=zeros, weight=self._self_penalty)

    def update(self, state: State, residual: Array) -> State:
        """Return the state after theta_j += (H_jj + U_j)^-1 residual."""
        weight = state.weight
        if self._adaptive and state.step @ (state.previous + residual) < 0:
            weight = max(1.0, 2 * weight) if weight >= 0 else 0.0
            self._inverse = self._invert(weight)
        step = self._inverse @ residual
        return State(state.coefficients + step, previous=residual, step=step, weight=weight)


class Chebyshev:
    """Chebyshev's semi-iteration on block Jacobi, for eigenvalues of B^-1 H in [lower_end, 2 - lower_end].

    Parameters
    ----------
    row : BlockRow
    lower_end : float
        In (0, 1]; 1 makes it plain block Jacobi.
    """

    def __init__(self, row: BlockRow, lower_end: float) -> None:
        self._inverse = inverse(row.hessian)
        self._radius_squared = (1 - lower_end) ** 2

    def start(self, coefficients: Array) -> State:
        """Return the state before the first round."""
        return State(coefficients, previous=coefficients, step=np.zeros_like(coefficients), weight=0.0)

    def update(self, state: State, residual: Array) -> State:
        """Return the state after one round: weight (theta + B^-1 residual - previous) + previous."""
        weight = next_weight(state.weight, self._radius_squared)
        step = self._inverse.dot(residual)
        moved = weight * (state.coefficients + step - state.previous) + state.previous
        return State(moved, previous=state.coefficients, step=step, weight=weight)


def next_weight(weight: float, radius_squared: float) -> float:
    """Return the relaxation of the round after one with `weight`; 0 stands for no round yet."""
    if weight == 0:
        return 1.0
    if weight == 1:
        return 1 / (1 - radius_squared / 2)
    return 1 / (1 - radius_squared * weight / 4)


def lower_end(consensus: float) -> float:
    """Return 1 / (1 + 2.1 consensus), the lower end that Chebyshev takes."""
    return 1 / (1 + 2.1 * consensus)


def proposition_1(own: OwnSums, received: dict[str, CrossSums], weights: Weights) -> float:
    """Return the smallest self penalty that the paper's Proposition 1 allows, in units of c~_j.

    |N_j| + lambda_max(sum_p c~_p B_jp) / (c~_j lambda_min(Z_jj'Z_jj)).
    """
    if not received or weights.own_penalty == 0:
        return 0.0
    smallest = eigvalsh(own.gram, subset_by_index=[0, 0])[0]
    if smallest <= 1e-14 * np.trace(own.gram):
        raise SettingsError(
            'self_penalty="bound" needs linearly independent features on every site\'s rows: '
            'use fewer features, or self_penalty=5.0 or "adaptive"'
        )
    last = len(own.gram) - 1
    largest = eigvalsh(unpack_symmetric(pull(received, weights), last + 1), subset_by_index=[last, last])[0]
    return float(len(received) + largest / (weights.own_penalty * smallest))


def make_solver(
    name: str,
    self_penalty: SelfPenalty,
    consensus: float,
    row: BlockRow,
    own: OwnSums,
    received: dict[str, CrossSums],
    weights: Weights,
) -> Solver:
    """Return the solver called `name` for one site's block row."""
    if name == "chebyshev":
        return Chebyshev(row, lower_end(consensus if received else 0.0))
    if name != "jacobi":
        raise SettingsError(f'unknown solver {name!r}; choose "jacobi" or "chebyshev"')
    gram = weights.own_penalty * own.gram
    if self_penalty == "bound":
        return Jacobi(row, gram, proposition_1(own, received, weights))
    if self_penalty == "adaptive":
        return Jacobi(row, gram, 0.0, adaptive=True)
    if isinstance(self_penalty, str) or self_penalty < 0:
        raise SettingsError(f'self_penalty must be 0 or more, "bound" or "adaptive"; got {self_penalty!r}')
    return Jacobi(row, gram, float(self_penalty))
