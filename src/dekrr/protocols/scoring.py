"""Scores of a grid of alphas and consensuses, from the sums of all folds of one bandwidth.

Every (alpha, consensus) is a function of the sums. The systems of all folds and alphas are solved side by side, their
coefficients in one message a round, along a path of consensuses. A site then scores its own prediction and its
neighbours' models on the rows that it held out.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from ..errors import MessageError, SettingsError
from ..features import FeatureMap
from ..messages import Coefficients, expect
from ..solvers import Chebyshev, ChebyshevState, inverse
from ..statistics import weighted_responses
from ..system import BlockRow, assemble
from ..types import Array, Block
from .masking import MaskedRounds, Masks, OpenRounds, products_of, unit_of
from .site import Procedure, Site
from .stages import SetUp
from .tuning import Tuning

_ACCURACY = 1e-3  # of the solutions that are scored, in the norm that Chebyshev's bound is about
_HOPELESS = 1e100  # coefficients and squared errors of what cannot be solved; sums of them are still finite
_DIVERGED = 1e12  # coefficients that the next consensus does not start from


class HeldOut:
    """Rows that were held out, on which coefficients of a neighbourhood are scored.

    Parameters
    ----------
    block : Block
    ready : SetUp
        The maps, and the order of the neighbours.
    tuning : Tuning
    """

    def __init__(self, block: Block, ready: SetUp, tuning: Tuning) -> None:
        self._X = block.X
        self._y = weighted_responses(block).reshape(block.n_rows, 1, *(block.y.shape[1:] or (1,)))
        self._root_weights = np.ones(1) if block.weight is None else np.sqrt(block.weight)
        self._maps = [ready.own_map, *ready.maps.values()]
        self._tuning = tuning

    def error(self, coefficients: Sequence[Array]) -> Array:
        """Return the squared error of each of n candidates and each own weight, shape (n, n_weights).

        Parameters
        ----------
        coefficients : sequence of ndarray of shape (n, D_p, n_outputs)
            The site's own, then its neighbours'.
        """
        predictions = np.array([self._predict(*each) for each in zip(self._maps, coefficients, strict=True)])
        own = self._error_seen_from(0, predictions)
        neighbors = range(1, len(self._maps))
        if self._tuning.objective == "own" or not neighbors:
            return own
        union = np.mean([self._error_seen_from(p, predictions) for p in neighbors], axis=0)
        return np.asarray(union if self._tuning.objective == "union" else (own + union) / 2)

    def _predict(self, feature_map: FeatureMap, coefficients: Array) -> Array:
        """Return predictions times the square roots of the rows' weights, shape (n_rows, n, n_outputs)."""
        n, n_features, n_outputs = coefficients.shape
        side_by_side = coefficients.transpose(1, 0, 2).reshape(n_features, n * n_outputs)
        predictions = feature_map.apply(self._X, side_by_side).reshape(len(self._X), n, n_outputs)
        return np.asarray(predictions * self._root_weights[:, None, None])

    def _error_seen_from(self, place: int, predictions: Array) -> Array:
        """Return the errors of the prediction of the site at `place`, as far as it can be known here.

        Place 0 is this site. A neighbour's prediction is taken from the models of all neighbours but this
        site's own, which has seen these rows' like: most sites of a network do not have it.
        """
        others = [p for p in range(len(predictions)) if p != place and (p or not place)]
        own = self._y - predictions[place]
        around = self._y - predictions[others].mean(axis=0) if others else own
        squares = [np.einsum("nkq,nkq->k", a, b) for a, b in ((own, own), (own, around), (around, around))]
        w = np.array(self._tuning.own_weights)
        return np.asarray(np.array(squares).T @ np.array([w**2, 2 * w * (1 - w), (1 - w) ** 2]))


def score_grid(
    site: Site, ready: Sequence[SetUp], held_out: Sequence[HeldOut], tuning: Tuning, masks: Masks | None = None
) -> Procedure[list[Array]]:
    """Return this site's squared errors, one array over alphas and own weights per consensus, along a path of those."""
    share = 1 - 1 / tuning.folds
    outputs = ready[0].own.moment.shape[1:] or (1,)
    theta = np.zeros((len(ready), len(tuning.alphas), ready[0].own_map.n_features, *outputs))
    sizes = {p: known.n_features for p, known in ready[0].maps.items()}
    for p, size in sizes.items():
        if any(one.maps[p].n_features != size for one in ready):
            raise MessageError(f"site {p!r} sent maps of different sizes for different folds", p)
    scores = []
    products = _products_of_folds(ready) if masks is not None else {}
    units = np.array([unit_of(one.own_map) for one in ready])[:, None, :, None]
    speaker: OpenRounds | MaskedRounds = OpenRounds(site)
    for consensus in tuning.consensuses:
        if masks is not None:
            factor = consensus / (share * ready[0].roster.n_counted)
            speaker = MaskedRounds(masks, products, units, factor, is_cut=True)
        systems = []
        for one in ready:
            weights = one.weights(alpha=0.0, consensus=consensus, share=share)
            systems.append(assemble(one.own, one.received, one.sent, weights))
        stack = _Stack(systems, np.array(tuning.alphas) / ready[0].roster.n_sites)
        theta, of_neighbors = yield from _solve(speaker, stack, sizes, theta, consensus)
        with np.errstate(over="ignore", invalid="ignore"):
            errors = [
                held_out[k].error([theta[k], *(of_neighbors[p][k] for p in stack.neighbors)]) for k in range(len(ready))
            ]
        total = np.where(stack.solvable[..., None], errors, _HOPELESS).sum(axis=0).ravel()
        scores.append(np.fmin(total, _HOPELESS))
        theta[np.abs(theta).max(axis=(2, 3)) > _DIVERGED] = 0.0
    return scores


def _products_of_folds(ready: Sequence[SetUp]) -> dict[str, Array]:
    """Return C_pj / |N_j| of all folds for each neighbour p, shape (folds, 1, D_p, D_j), for `MaskedRounds`."""
    first = ready[0]
    return {
        p: np.array([products_of(one.sent[p].cross, one.maps[p], len(one.maps)) for one in ready])[:, None]
        for p in first.maps
    }


class _Stack:
    """One site's block rows of all folds and alphas at one consensus.

    Coefficients and residuals are of shape (folds, alphas, D, n_outputs).

    Attributes
    ----------
    inverses : ndarray of shape (folds, alphas, D, D)
        H_jj^-1; 0 where there is none.
    solvable : ndarray of bool, shape (folds, alphas)
        Whether H_jj is positive definite, which it may not be from sums of precision="mixed".
    """

    def __init__(self, systems: Sequence[BlockRow], ridges: Array) -> None:
        self.neighbors: tuple[str, ...] = systems[0].neighbors
        self._hessians = np.array([row.hessian for row in systems])[:, None]
        self._couplings = np.array([row.couplings for row in systems]).transpose(0, 2, 1)[:, None]
        folds, _, size, _ = self._hessians.shape
        self._right_sides = np.array([row.right_side.reshape(size, -1) for row in systems])[:, None]
        self._ridges = ridges[:, None, None]
        self.inverses = np.zeros((folds, len(ridges), size, size))
        self.solvable = np.zeros((folds, len(ridges)), dtype=bool)
        for fold, alpha in np.ndindex(*self.solvable.shape):
            with suppress(SettingsError):
                self.inverses[fold, alpha] = inverse(systems[fold].hessian + ridges[alpha] * np.eye(size))
                self.solvable[fold, alpha] = True

    def residual(self, theta: Array, of_neighbors: Mapping[str, Array]) -> Array:
        """Return d - H theta for all folds and alphas."""
        residual = self._right_sides - _products(theta, self._hessians) - self._ridges * theta
        if self.neighbors:
            around = np.concatenate([of_neighbors[p] for p in self.neighbors], axis=2)
            residual += _products(around, self._couplings)
        return np.asarray(residual)


def _products(values: Array, matrices: Array) -> Array:
    """Return matrix' values, shape (folds, alphas, D, n_outputs), for all alphas of a fold at once.

    Parameters
    ----------
    values : ndarray of shape (folds, alphas, size, n_outputs)
    matrices : ndarray of shape (folds, 1, size, D)
    """
    return np.asarray((values.transpose(0, 3, 1, 2) @ matrices).transpose(0, 2, 3, 1))


def rounds_of(consensus: float) -> int:
    """Return how many rounds a site with neighbours takes at a consensus, from where the last one ended."""
    return ChebyshevState.at(np.empty(0), np.empty(0), consensus).rounds_to(_ACCURACY)


def n_products(tuning: Tuning) -> int:
    """Return how many products with the sums of one fold a site sends a neighbour under masks, for one bandwidth."""
    return len(tuning.alphas) * sum(rounds_of(consensus) + 1 for consensus in tuning.consensuses)


def _solve(
    speaker: OpenRounds | MaskedRounds, stack: _Stack, sizes: Mapping[str, int], theta: Array, consensus: float
) -> Procedure[tuple[Array, dict[str, Array]]]:
    """Run as many rounds of Chebyshev as its bound asks for, from where the last consensus ended."""
    solver = Chebyshev()
    state = ChebyshevState.at(theta, stack.inverses, consensus if sizes else 0.0)
    rounds = rounds_of(consensus if sizes else 0.0)
    folds, alphas, _, n_outputs = theta.shape
    shapes = {p: (folds * alphas, size * n_outputs) for p, size in sizes.items()}
    of_neighbors: dict[str, Array] = {}
    for k in range(rounds + 1):
        theta = state.coefficients
        flat = Coefficients(np.ascontiguousarray(theta.reshape(folds * alphas, -1)), (0.0, 0.0))
        mixed, pull = speaker.read((yield speaker.outbox(flat, theta)))
        inbox = expect(mixed, Coefficients, values=shapes)
        of_neighbors = {p: message.values.reshape(folds, alphas, -1, n_outputs) for p, message in inbox.items()}
        if k == rounds:
            break
        with np.errstate(over="ignore", invalid="ignore"):
            state = solver.update(state, stack.residual(theta, of_neighbors) + pull)
        state = state._replace(coefficients=np.clip(np.nan_to_num(state.coefficients), -_HOPELESS, _HOPELESS))
    return theta, of_neighbors
