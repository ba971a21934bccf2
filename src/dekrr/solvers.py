"""Iterative solvers for H theta = d. A site needs its neighbours' latest coefficients and nothing else.

A `Solver` is an object that is made before a run and has no data of a site. The data of a site are in the state, which
`start` makes and `update` replaces. `SOLVERS` has the solvers that can be given by name. Any other object with the two
methods can take their place.

Both solvers here step along the residual r_j of a site's block row. B is the block diagonal of H. The blocks off the
diagonal come from the terms |a - b|^2 of the objective. With |a + b|^2 in their place, only the sign of these blocks
changes. So 2B - H is positive definite like H, and the eigenvalues of B^-1 H lie strictly between 0 and 2.

`Jacobi` is the paper's update (18), theta_j += (H_jj + U_j)^-1 r_j with the self penalty
U_j = self_penalty c~_j Z_jj'Z_jj. A step changes the objective by -step'(2(B + U) - H) step. The objective therefore
falls for every self penalty of 0 or more, even where the condition of the paper's Proposition 1 does not hold.

`Chebyshev` is the semi-iteration of Golub and Varga (Numerische Mathematik 3, 1961) on block Jacobi, for eigenvalues
in [a, 2 - a]. An eigenvalue in (0, 2) but outside that interval is damped in every round, too. The iteration therefore
converges for any 0 < a < 1. Where all sites agree on a function, the quotient theta'H theta / theta'B theta is
1 / (1 + 2 consensus), up to alpha. The smallest eigenvalue is at most that; on real data it is 0 to 11 % below. The
solver takes a = 1 / (1 + 2.1 consensus).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri

from .errors import SettingsError
from .statistics import BlockRow, CrossSums, OwnSums, Weights, pack_symmetric, unpack_symmetric
from .types import Array

__all__ = ["Chebyshev", "ChebyshevState", "Jacobi", "JacobiState", "SiteSystem", "Solver", "State"]


@dataclass(frozen=True)
class SiteSystem:
    """A site's data for a solver: its block row, and the sums and weights that make up the block row."""

    row: BlockRow  # H_jj, P_jp and d_j
    own: OwnSums  # Z_jj'Z_jj and Z_jj'y_j
    received: Mapping[str, CrossSums]  # B_jp and C_jp
    weights: Weights
    consensus: float  # c. The penalties in `weights` are computed from it.


class State(Protocol):
    """The state of an iteration at one site: all that the next update depends on."""

    @property
    def coefficients(self) -> Array:
        """theta_j, shape (n_features,) or (n_features, n_outputs)."""


AnyState = TypeVar("AnyState", bound=State)


class Solver(Protocol[AnyState]):
    """The rule by which a site's coefficients change in a round, given the residual of its block row.

    Any object with these two methods can be given in place of a solver's name. All sites share the object, so it must
    not store data of a site. Data that one update leaves to the next belong into the state.

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
    >>> settings |= dict(shared=None, local=None, column_scales=None)
    >>> ours = DeKRRRegressor(solver=Momentum(), **settings).fit(X, y, sites=sites)
    >>> fast = DeKRRRegressor(solver="chebyshev", **settings).fit(X, y, sites=sites)
    >>> bool(np.allclose(ours.predict(X), fast.predict(X), atol=0.01)), ours.n_rounds_ > fast.n_rounds_
    (True, True)
    """

    def start(self, system: SiteSystem, coefficients: Array) -> AnyState:
        """Return the state before the first round.

        Parameters
        ----------
        coefficients : ndarray of shape (n_features,) or (n_features, n_outputs)
            The starting point of the iteration.
        """

    def update(self, state: AnyState, residual: Array) -> AnyState:
        """Return the state after one round.

        Parameters
        ----------
        state : State
            The value that `start` or the last `update` returned. It must not be modified.
        residual : ndarray of the shape of the coefficients
            d_j - H_jj theta_j + sum_p P_jp theta_p at `state.coefficients`.
        """


def cholesky(matrix: Array) -> Array:
    """Return the upper Cholesky factor of a positive definite matrix; raise `SettingsError` for any other matrix.

    The entries below the diagonal are those of the matrix and have no meaning.
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
            "this much; raise alpha"
        )
    return np.asarray(factor)


def inverse(matrix: Array) -> Array:
    """Return the inverse of a positive definite matrix.

    A round that multiplies by the inverse is faster than a round that solves with a Cholesky factor. The rounding
    errors do not add up: each round computes its residual anew, and so corrects the errors of the round before.
    """
    upper, _ = dpotri(cholesky(matrix), overwrite_c=True)
    return unpack_symmetric(pack_symmetric(upper), len(upper))


class JacobiState(NamedTuple):
    """The state of `Jacobi`."""

    coefficients: Array  # shape (n_features,) or (n_features, n_outputs)
    inverse: Array  # shape (n_features, n_features): (H_jj + U_j)^-1


@dataclass(frozen=True)
class Jacobi(Solver[JacobiState]):
    """The paper's update, with its self penalty.

    Parameters
    ----------
    self_penalty : float, default=5.0
        In units of c~_j.
    """

    self_penalty: float = 5.0

    def __post_init__(self) -> None:
        if not self.self_penalty >= 0:
            raise SettingsError(f"self_penalty must be a number of at least 0; got {self.self_penalty!r}")

    def start(self, system: SiteSystem, coefficients: Array) -> JacobiState:
        """Return the state before the first round."""
        gram = system.weights.own_penalty * system.own.gram
        return JacobiState(coefficients, inverse(system.row.hessian + self.self_penalty * gram))

    def update(self, state: JacobiState, residual: Array) -> JacobiState:
        """Return the state after theta_j += (H_jj + U_j)^-1 residual."""
        return state._replace(coefficients=state.coefficients + state.inverse @ residual)


class ChebyshevState(NamedTuple):
    """The state of `Chebyshev`, for one system or for a batch of systems of one site."""

    # coefficients, previous: shape (n_features,) or (..., n_features, n_outputs): the coefficients after this round and
    # after the round before
    coefficients: Array
    previous: Array
    relaxation: float  # the relaxation factor of the last round; 0 before the first round
    inverse: Array  # shape (..., n_features, n_features): H_jj^-1
    radius: float  # 1 - a for eigenvalues in [a, 2 - a]

    @classmethod
    def at(cls, coefficients: Array, inverse: Array, consensus: float) -> "ChebyshevState":
        """Return the state before the first round. A consensus of 0 makes the iteration plain block Jacobi."""
        return cls(coefficients, coefficients, 0.0, inverse, 1 - lower_end(consensus))

    def relaxed(self) -> "ChebyshevState":
        """Return the state with the relaxation factor of the next round."""
        return self._replace(relaxation=next_relaxation(self.relaxation, self.radius**2))

    def rounds_to(self, accuracy: float) -> int:
        """Return the number of rounds until the error is below `accuracy`, in the norm of Chebyshev's error bound."""
        if self.radius == 0:
            return 1
        return int(np.ceil(np.arccosh(1 / accuracy) / np.arccosh(1 / self.radius)))


@dataclass(frozen=True)
class Chebyshev(Solver[ChebyshevState]):
    """Chebyshev's semi-iteration on block Jacobi, for eigenvalues of B^-1 H in [a, 2 - a]; see `lower_end`."""

    def start(self, system: SiteSystem, coefficients: Array) -> ChebyshevState:
        """Return the state before the first round."""
        consensus = system.consensus if system.received else 0.0
        return ChebyshevState.at(coefficients, inverse(system.row.hessian), consensus)

    def update(self, state: ChebyshevState, residual: Array) -> ChebyshevState:
        """Return the state after one round: relaxation (theta + H_jj^-1 residual - previous) + previous."""
        relaxed = state.relaxed()
        step = state.inverse @ residual
        moved = relaxed.relaxation * (state.coefficients + step - state.previous) + state.previous
        return relaxed._replace(coefficients=moved, previous=state.coefficients)


def next_relaxation(relaxation: float, radius_squared: float) -> float:
    """Return the relaxation factor of the next round; `relaxation` is that of the last round, 0 before the first."""
    share = {0.0: 0.0, 1.0: 0.5}.get(relaxation, relaxation / 4)
    return 1 / (1 - share * radius_squared)


def lower_end(consensus: float) -> float:
    """Return a = 1 / (1 + 2.1 consensus), the lower end of the interval of eigenvalues that `Chebyshev` assumes."""
    return 1 / (1 + 2.1 * consensus)


SOLVERS: dict[str, type[Any]] = {"chebyshev": Chebyshev, "jacobi": Jacobi}


def make_solver(solver: str | Solver[Any], self_penalty: float = 5.0) -> Solver[Any]:
    """Return the solver that has the name `solver`, or `solver` itself where it is an object."""
    if not isinstance(solver, str):
        return solver
    if solver not in SOLVERS:
        raise SettingsError(f"unknown solver {solver!r}; choose one of {', '.join(SOLVERS)}, or give an object")
    kind = SOLVERS[solver]
    made: Solver[Any] = kind(self_penalty) if kind is Jacobi else kind()
    return made
