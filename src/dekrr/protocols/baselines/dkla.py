"""DKLA and COKE: shared features, consensus on coefficients by ADMM.

Xu, Wang, Chen and Tian, COKE: communication-censored decentralized kernel learning, Journal of Machine
Learning Research 22, 2021. With all features shared, site j repeats

    theta_j <- (2/N Z_j'Z_j + (2 alpha/J + 2 rho |N_j|) I)^-1
               (2/N Z_j'y_j + rho sum_p (theta_j + theta_p) - gamma_j)
    gamma_j <- gamma_j + rho sum_p (theta_j - theta_p).

The authors of DeKRR double rho every 200 rounds and leave gamma as it is. COKE sends theta only when it has
moved by more than a threshold that falls with the rounds, and all use the values last sent.
"""

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from ...features import FeatureMap
from ...selection import Chooser
from ...settings import DKLASettings, Wire
from ...types import Array
from ..dekrr import Listener, Sender, StoppingRule
from ..run import Outcome
from ..site import Procedure, Site
from .shared import Prepared, prepare


def train(
    site: Site,
    chooser: Chooser,
    settings: DKLASettings,
    *,
    shared: FeatureMap | None = None,
    keep_path: bool = False,
) -> Procedure[Outcome]:
    """Train one site's model together with its neighbours, which may have `shared` features already.

    With `keep_path` the outcome has the coefficients and multipliers of every round.
    """
    prepared = yield from prepare(site, chooser, settings, shared)
    zeros = np.zeros_like(prepared.sums.moment)
    outcome = Outcome(prepared.roster, prepared.scaling, prepared.feature_map, zeros)
    yield from iterate(site, prepared, settings, outcome, keep_path=keep_path)
    return outcome


def iterate(
    site: Site, prepared: Prepared, settings: DKLASettings, outcome: Outcome, *, keep_path: bool
) -> Procedure[None]:
    """Run the rounds of ADMM."""
    problem = _LocalProblem(prepared, settings, len(site.neighbors))
    progress = StoppingRule(prepared.roster.diameter, settings.tol)
    theta = gamma = outcome.coefficients
    wire = Wire(censor_start=settings.censor_start, censor_decay=settings.censor_decay)
    sender, listener = Sender(wire, theta), Listener(dict.fromkeys(site.neighbors, theta))
    rho = settings.rho
    _record(outcome, problem, theta, gamma, keep_path)
    for rounds in range(1, settings.max_rounds + 1):
        if rounds % settings.rho_period == 0:
            rho *= 2
        before = theta
        pull = sum((sender.known + other for other in listener.known.values()), 0 * theta)
        theta = problem.solve(rho, rho * pull - gamma)
        inbox = yield site.to_all(sender.message(theta, rounds, progress.share))
        shares = listener.hear(inbox)
        gamma = gamma + rho * sum((sender.known - other for other in listener.known.values()), 0 * theta)
        _record(outcome, problem, theta, gamma, keep_path)
        distances = [np.linalg.norm(theta - other) for other in (before, *listener.known.values())]
        progress.after_exchange((float(max(distances)), float(np.linalg.norm(theta))), shares)
        outcome.rounds = rounds
        if progress.settled:
            break
    outcome.coefficients = theta
    outcome.neighbor_maps = dict.fromkeys(listener.known, prepared.feature_map)
    outcome.neighbor_coefficients = listener.known
    outcome.settled = progress.settled
    outcome.relative_residual = progress.relative


class _LocalProblem:
    """A site's own term of the objective and the linear system of its update."""

    def __init__(self, prepared: Prepared, settings: DKLASettings, n_neighbors: int) -> None:
        self._sums = prepared.sums
        self._n_rows = prepared.roster.n_counted
        self._ridge = settings.alpha / prepared.roster.n_sites
        self._n_neighbors = n_neighbors
        self._rho = np.nan

    def solve(self, rho: float, pull: Array) -> Array:
        if rho != self._rho:
            diagonal = 2 * self._ridge + 2 * rho * self._n_neighbors
            self._factor = cho_factor(2 / self._n_rows * self._sums.gram + diagonal * np.eye(len(pull)))
            self._rho = rho
        return cho_solve(self._factor, 2 / self._n_rows * self._sums.moment + pull, check_finite=False)

    def objective(self, theta: Array) -> float:
        """Return 1/N |Z theta - y|^2 + alpha/J |theta|^2."""
        fit = np.vdot(theta, self._sums.gram @ theta - 2 * self._sums.moment) + self._sums.response_energy
        return float(fit / self._n_rows + np.vdot(self._ridge * theta, theta))


def _record(outcome: Outcome, problem: _LocalProblem, theta: Array, gamma: Array, keep_path: bool) -> None:
    outcome.objective_shares.append(problem.objective(theta))
    if keep_path:
        outcome.path.append(theta)
        outcome.dual_path.append(gamma)
