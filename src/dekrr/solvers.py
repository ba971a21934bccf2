"""Iterations for H theta = d that need nothing but the neighbours' last coefficients.

A `Solver` is an object that is made before a run and knows nothing of a site: all that it knows of one is in the state
that `start` makes and `update` replaces. `SOLVERS` has those that go by a name. Any other object with the two methods
is used in the same places.

Both solvers here move along the residual r_j of a site's block row. Write B for the block diagonal of H. Turning
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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from scipy.linalg import eigvalsh
from scipy.linalg.lapack import dpotrf, dpotri

from .errors import SettingsError
from .statistics import CrossSums, OwnSums, pack_symmetric, unpack_symmetric
from .system import BlockRow, Weights, assemble, pull
from .types import Array

SelfPenalty = float | str


@dataclass(frozen=True)
class SiteSystem:
    """What a solver is told of a site: its block row, and what that was assembled from.

    Parameters
    ----------
    row : BlockRow
        H_jj, P_jp and d_j.
    own : OwnSums
        Z_jj'Z_jj and Z_jj'y_j.
    received : mapping of neighbour p to CrossSums
        B_jp and C_jp.
    weights : Weights
    consensus : float
        c, from which the penalties in `weights` are.
    """

    row: BlockRow
    own: OwnSums
    received: Mapping[str, CrossSums]
    weights: Weights
    consensus: float

    @classmethod
    def assembled(
        cls,
        own: OwnSums,
        received: Mapping[str, CrossSums],
        sent: Mapping[str, CrossSums],
        weights: Weights,
        consensus: float,
    ) -> "SiteSystem":
        """Return the system of sums that a site has made, received and sent; see `dekrr.system.assemble`."""
        return cls(assemble(own, received, sent, weights), own, received, weights, consensus)


class State(Protocol):
    """Where an iteration stands at one site: all that the next update depends on."""

    @property
    def coefficients(self) -> Array:
        """theta_j, shape (n_features,) or (n_features, n_outputs)."""


AnyState = TypeVar("AnyState", bound=State)


class Solver(Protocol[AnyState]):
    """How a site's coefficients change in a round, given the residual of its block row.

    Any object with these two methods will do wherever the name of a solver does. It is shared by all sites, so that it
    must not keep anything of a site in itself: what one update leaves to the next is in the state.

    Examples
    --------
    Gradient descent with momentum takes no inverse, but many more rounds:

    >>> from typing import NamedTuple
    >>> import numpy as np
    >>> from dekrr import DeKRRRegressor
    >>> from dekrr.data import make_sites
    >>> class Moving(NamedTuple):
    ...     coefficients: np.ndarray
    ...     velocity: np.ndarray
    ...     rate: float
    >>> class Momentum:
    ...     def start(self, system, coefficients):
    ...         rate = 1 / np.linalg.norm(system.row.matrix, 1)
    ...         return Moving(coefficients, 0 * coefficients, rate)
    ...     def update(self, state, residual):
    ...         velocity = 0.95 * state.velocity + state.rate * residual
    ...         return Moving(state.coefficients + velocity, velocity, state.rate)
    >>> X, y, sites = make_sites(n_sites=4, random_state=0)
    >>> settings = dict(n_features=10, sigma=0.5, alpha=1e-2, consensus=1.0, tol=1e-4, random_state=0)
    >>> ours = DeKRRRegressor(solver=Momentum(), **settings).fit(X, y, sites=sites)
    >>> fast = DeKRRRegressor(solver="chebyshev", **settings).fit(X, y, sites=sites)
    >>> bool(np.allclose(ours.predict(X), fast.predict(X), atol=0.01)), ours.n_rounds_ > fast.n_rounds_
    (True, True)
    """

    def start(self, system: SiteSystem, coefficients: Array) -> AnyState:
        """Return the state before the first round.

        Parameters
        ----------
        system : SiteSystem
        coefficients : ndarray of shape (n_features,) or (n_features, n_outputs)
            Where the iteration starts.
        """

    def update(self, state: AnyState, residual: Array) -> AnyState:
        """Return the state after one round.

        Parameters
        ----------
        state : State
            As `start` or the last `update` returned it; it is not changed.
        residual : ndarray of the shape of the coefficients
            d_j - H_jj theta_j + sum_p P_jp theta_p at `state.coefficients`.
        """


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


class JacobiState(NamedTuple):
    """Where `Jacobi` stands.

    Parameters
    ----------
    coefficients : ndarray of shape (n_features,) or (n_features, n_outputs)
    inverse : ndarray of shape (n_features, n_features)
        (H_jj + U_j)^-1.
    """

    coefficients: Array
    inverse: Array


@dataclass(frozen=True)
class Jacobi:
    """The paper's update, with its self penalty.

    Parameters
    ----------
    self_penalty : float or "bound", default=5.0
        In units of c~_j; "bound" is the smallest one that the paper's Proposition 1 allows.
    """

    self_penalty: SelfPenalty = 5.0

    def __post_init__(self) -> None:
        given = self.self_penalty
        if not (given == "bound" if isinstance(given, str) else given >= 0):
            raise SettingsError(f'self_penalty must be 0 or more, or "bound"; got {given!r}')

    def start(self, system: SiteSystem, coefficients: Array) -> JacobiState:
        """Return the state before the first round."""
        if self.self_penalty == "bound":
            self_penalty = proposition_1(system.own, system.received, system.weights)
        else:
            self_penalty = float(self.self_penalty)
        gram = system.weights.own_penalty * system.own.gram
        return JacobiState(coefficients, inverse(system.row.hessian + self_penalty * gram))

    def update(self, state: JacobiState, residual: Array) -> JacobiState:
        """Return the state after theta_j += (H_jj + U_j)^-1 residual."""
        return state._replace(coefficients=state.coefficients + state.inverse @ residual)


class ChebyshevState(NamedTuple):
    """Where `Chebyshev` stands, at one site or in a batch of systems of one site.

    Parameters
    ----------
    coefficients, previous : ndarray of shape (n_features,) or (..., n_features, n_outputs)
        Of this round and of the one before.
    relaxation : float
        Of the last round; 0 before the first.
    inverse : ndarray of shape (..., n_features, n_features)
        H_jj^-1.
    radius : float
        1 - a for eigenvalues in [a, 2 - a].
    """

    coefficients: Array
    previous: Array
    relaxation: float
    inverse: Array
    radius: float

    @classmethod
    def at(cls, coefficients: Array, inverse: Array, consensus: float) -> "ChebyshevState":
        """Return the state before the first round; a consensus of 0, or no neighbours, makes it plain block Jacobi."""
        return cls(coefficients, coefficients, 0.0, inverse, 1 - lower_end(consensus))

    def rounds_to(self, accuracy: float) -> int:
        """Return after how many rounds the error is below `accuracy`, in the norm that Chebyshev's bound is about."""
        if self.radius == 0:
            return 1
        return int(np.ceil(np.arccosh(1 / accuracy) / np.arccosh(1 / self.radius)))


@dataclass(frozen=True)
class Chebyshev:
    """Chebyshev's semi-iteration on block Jacobi, for eigenvalues of B^-1 H in [a, 2 - a]; see `lower_end`."""

    def start(self, system: SiteSystem, coefficients: Array) -> ChebyshevState:
        """Return the state before the first round."""
        consensus = system.consensus if system.received else 0.0
        return ChebyshevState.at(coefficients, inverse(system.row.hessian), consensus)

    def update(self, state: ChebyshevState, residual: Array) -> ChebyshevState:
        """Return the state after one round: relaxation (theta + H_jj^-1 residual - previous) + previous."""
        relaxation = _next_relaxation(state.relaxation, state.radius**2)
        step = state.inverse @ residual
        moved = relaxation * (state.coefficients + step - state.previous) + state.previous
        return state._replace(coefficients=moved, previous=state.coefficients, relaxation=relaxation)


def _next_relaxation(relaxation: float, radius_squared: float) -> float:
    """Return the relaxation of the round after one with `relaxation`; 0 stands for no round yet."""
    if relaxation == 0:
        return 1.0
    if relaxation == 1:
        return 1 / (1 - radius_squared / 2)
    return 1 / (1 - radius_squared * relaxation / 4)


def lower_end(consensus: float) -> float:
    """Return 1 / (1 + 2.1 consensus), the lower end that Chebyshev takes."""
    return 1 / (1 + 2.1 * consensus)


def proposition_1(own: OwnSums, received: Mapping[str, CrossSums], weights: Weights) -> float:
    """Return the smallest self penalty that the paper's Proposition 1 allows, in units of c~_j.

    |N_j| + lambda_max(sum_p c~_p B_jp) / (c~_j lambda_min(Z_jj'Z_jj)).
    """
    if not received or weights.own_penalty == 0:
        return 0.0
    smallest = eigvalsh(own.gram, subset_by_index=[0, 0])[0]
    if smallest <= 1e-14 * np.trace(own.gram):
        raise SettingsError(
            'self_penalty="bound" needs linearly independent features on every site\'s rows: '
            "use fewer features, or a number, as in self_penalty=5.0"
        )
    last = len(own.gram) - 1
    largest = eigvalsh(unpack_symmetric(pull(received, weights), last + 1), subset_by_index=[last, last])[0]
    return float(len(received) + largest / (weights.own_penalty * smallest))


SOLVERS: dict[str, type[Any]] = {"chebyshev": Chebyshev, "jacobi": Jacobi}


def make_solver(solver: str | Solver[Any], self_penalty: SelfPenalty = 5.0) -> Solver[Any]:
    """Return the solver of that name, or the one that is given as an object.

    Parameters
    ----------
    solver : {"chebyshev", "jacobi"} or Solver
    self_penalty : float or "bound", default=5.0
        For "jacobi" alone.

    Examples
    --------
    >>> make_solver("jacobi", self_penalty="bound"), make_solver(Chebyshev())
    (Jacobi(self_penalty='bound'), Chebyshev())
    """
    if not isinstance(solver, str):
        return solver
    if solver not in SOLVERS:
        raise SettingsError(f"unknown solver {solver!r}; choose one of {', '.join(SOLVERS)}, or give an object")
    kind = SOLVERS[solver]
    made: Solver[Any] = kind(self_penalty) if kind is Jacobi else kind()
    return made
