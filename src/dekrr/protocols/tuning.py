"""Choosing bandwidth, alpha and consensus by cross-validation, without a centre.

Every site divides its own rows into folds. For each bandwidth and fold, features are chosen and sums exchanged
as in training, from the rows outside the fold; then every (alpha, consensus) is a function of those sums, and
all of them are solved side by side, their coefficients in one message a round. A site scores on the rows it
held out its own prediction, with its own model's weight in it as one more thing to choose, and its neighbours'
models, which it holds. What it gives away to agree on a choice is one number per candidate, summed over the
spanning tree, so that all choose the same.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..errors import DataError, MessageError, SettingsError
from ..features import FeatureMap
from ..messages import Coefficients, expect
from ..rows import ArrayRows
from ..rows.survey import sampled
from ..selection import Chooser, Pool
from ..settings import DeKRRSettings
from ..solvers import Chebyshev, ChebyshevState, inverse
from ..statistics import weighted_responses
from ..system import BlockRow, assemble
from ..types import Array, Block
from .consensus import Roster, tree_sum
from .site import Procedure, Site

if TYPE_CHECKING:
    from .dekrr import SetUp

OWN_WEIGHTS = (1 / 3, 1 / 2, 2 / 3, 1.0)
_ACCURACY = 1e-3  # of the solutions that are scored, in the norm that Chebyshev's bound is about
_HOPELESS = 1e100  # coefficients and squared errors of what cannot be solved; sums of them are still finite
_DIVERGED = 1e12  # coefficients that the next consensus does not start from


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """What to choose from, and how.

    Parameters
    ----------
    sigmas, alphas, consensuses : tuple of float
        The grid; a tuple of one is not tuned.
    folds : int
    objective : {"own", "union", "mean"}
        Score on held-out rows a site's own prediction, its neighbours' models, or the mean of both.
    prediction : {"own", "neighborhood"}
        How a site will predict; for "neighborhood" the weight of its own model is chosen too.
    """

    sigmas: tuple[float, ...]
    alphas: tuple[float, ...]
    consensuses: tuple[float, ...]
    folds: int = 5
    objective: str = "mean"
    prediction: str = "neighborhood"

    @property
    def own_weights(self) -> tuple[float, ...]:
        """The weights of the own model to choose from."""
        return OWN_WEIGHTS if self.prediction == "neighborhood" else (1.0,)

    @property
    def grid(self) -> list[tuple[float, float, float, float]]:
        """All candidates (sigma, alpha, consensus, own weight), in the order of their scores."""
        return [
            (s, a, c, w) for s in self.sigmas for c in self.consensuses for a in self.alphas for w in self.own_weights
        ]

    @property
    def n_maps(self) -> int:
        """How many maps a site asks its neighbours sums for at most, training included: shortlists and choices."""
        return 2 * (len(self.sigmas) * self.folds + 1)


@dataclass(frozen=True)
class Tuned:
    """What all sites chose.

    Parameters
    ----------
    sigma, alpha, consensus : float
    own_weight : float
        Of a site's own model in its prediction.
    grid : list of (sigma, alpha, consensus, own_weight)
    errors : ndarray of shape (n_candidates,)
        Mean squared held-out error of each candidate over all sites, in scaled units of the response.
    """

    sigma: float
    alpha: float
    consensus: float
    own_weight: float
    grid: list[tuple[float, float, float, float]]
    errors: Array


def tune(
    site: Site,
    rows: ArrayRows,
    selector: Chooser,
    settings: DeKRRSettings,
    tuning: Tuning,
    roster: Roster,
) -> Procedure[Tuned]:
    """Agree with all sites on the candidate of the least held-out error.

    Parameters
    ----------
    site : Site
    rows : ArrayRows
        Scaled rows: all of the site's, or a sample that stands for them.
    selector : Chooser
    settings : DeKRRSettings
    tuning : Tuning
    roster : Roster
    """
    from .dekrr import asks_neighbors, limit_shortlist, set_up

    if settings.rows_per_feature:
        tuning = msgspec.structs.replace(tuning, folds=folds_of_enough_rows(roster, tuning.folds, settings.min_rows))
    # What is sent for two folds has nearly the same features, so that its difference tells sums over one fold's rows:
    # the guard is about those, a (folds - 1)th of the rows in a sum.
    settings = msgspec.structs.replace(
        settings, exchange="sums", rows_per_feature=settings.rows_per_feature * (tuning.folds - 1)
    )
    fewest = min((n - -(-n // tuning.folds) for n in (sampled(roster.rows[p]) for p in site.neighbors)), default=0)
    fold_of = site.rng("folds").permutation(rows.n_rows) % tuning.folds
    errors: list[Array] = []
    for sigma in tuning.sigmas:
        with_sigma = selector.replace(sigma=sigma)
        shortlists: list[Pool | None] = [None] * tuning.folds
        if asks_neighbors(with_sigma, site):
            limited = limit_shortlist(with_sigma, fewest, settings.rows_per_feature)
            shortlists = [*limited.fold_shortlists(rows.X, rows.y, fold_of, tuning.folds, site.rng())]
        ready: list[SetUp] = []
        for fold in range(tuning.folds):
            kept = rows.take(fold_of != fold)
            ready.append((yield from set_up(site, kept, with_sigma, roster, settings, shortlists[fold])))
        held_out = [HeldOut(rows.take(fold_of == k).arrays(), ready[k], tuning) for k in range(tuning.folds)]
        errors += yield from _score_grid(site, ready, held_out, tuning, roster)
    total = yield from tree_sum(site, roster, rows.expansion * np.concatenate(errors))
    best = tuning.grid[int(np.argmin(total))]
    return Tuned(*best, grid=tuning.grid, errors=total / roster.n_rows)


def folds_of_enough_rows(roster: Roster, folds: int, min_rows: int) -> int:
    """Return the most folds, up to `folds`, of at least `min_rows` rows at every site: what differences sum over."""
    fewest, site = roster.whole.fewest
    if roster.n_sites == 1 or fewest >= folds * min_rows:
        return folds
    if fewest < 2 * min_rows:
        raise DataError(
            f"site {site!r} has {fewest} rows, too few for two folds of min_rows={min_rows}: tuning would send sums "
            "that differ by fewer rows. Give sigma, alpha and consensus as numbers, join the site to another, or "
            "lower min_rows"
        )
    return fewest // min_rows


class HeldOut:
    """Rows that were held out, on which coefficients of a neighbourhood are scored.

    Parameters
    ----------
    block : Block
    ready : SetUp
        The maps, and the order of the neighbours.
    tuning : Tuning
    """

    def __init__(self, block: Block, ready: "SetUp", tuning: Tuning) -> None:
        self._X = block.X
        self._y = weighted_responses(block).reshape(block.n_rows, 1, *(block.y.shape[1:] or (1,)))
        self._roots = np.ones(1) if block.weight is None else np.sqrt(block.weight)
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
        """Return predictions times the roots of the rows' weights, shape (n_rows, n, n_outputs)."""
        n, n_features, n_outputs = coefficients.shape
        side_by_side = coefficients.transpose(1, 0, 2).reshape(n_features, n * n_outputs)
        predictions = feature_map.apply(self._X, side_by_side).reshape(len(self._X), n, n_outputs)
        return np.asarray(predictions * self._roots[:, None, None])

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


def _score_grid(
    site: Site, ready: "Sequence[SetUp]", held_out: Sequence[HeldOut], tuning: Tuning, roster: Roster
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
    for consensus in tuning.consensuses:
        systems = []
        for one in ready:
            weights = one.weights(roster, alpha=0.0, consensus=consensus, share=share)
            systems.append(assemble(one.own, one.received, one.sent, weights))
        stack = _Stack(systems, np.array(tuning.alphas) / roster.n_sites)
        theta, of_neighbors = yield from _solve(site, stack, sizes, theta, consensus)
        with np.errstate(over="ignore", invalid="ignore"):
            errors = [
                held_out[k].error([theta[k], *(of_neighbors[p][k] for p in stack.neighbors)]) for k in range(len(ready))
            ]
        total = np.where(stack.solvable[..., None], errors, _HOPELESS).sum(axis=0).ravel()
        scores.append(np.fmin(total, _HOPELESS))
        theta[np.abs(theta).max(axis=(2, 3)) > _DIVERGED] = 0.0
    return scores


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


def _solve(
    site: Site, stack: _Stack, sizes: Mapping[str, int], theta: Array, consensus: float
) -> Procedure[tuple[Array, dict[str, Array]]]:
    """Run as many rounds of Chebyshev as its bound asks for, from where the last consensus ended."""
    solver = Chebyshev()
    state = ChebyshevState.at(theta, stack.inverses, consensus if site.neighbors else 0.0)
    rounds = state.rounds_to(_ACCURACY)
    folds, alphas, _, n_outputs = theta.shape
    shapes = {p: (folds * alphas, size * n_outputs) for p, size in sizes.items()}
    of_neighbors: dict[str, Array] = {}
    for k in range(rounds + 1):
        theta = state.coefficients
        flat = Coefficients(np.ascontiguousarray(theta.reshape(folds * alphas, -1)), (0.0, 0.0))
        inbox = expect((yield site.to_all(flat)), Coefficients, values=shapes)
        of_neighbors = {p: message.values.reshape(folds, alphas, -1, n_outputs) for p, message in inbox.items()}
        if k == rounds:
            break
        with np.errstate(over="ignore", invalid="ignore"):
            state = solver.update(state, stack.residual(theta, of_neighbors))
        state = state._replace(coefficients=np.clip(np.nan_to_num(state.coefficients), -_HOPELESS, _HOPELESS))
    return theta, of_neighbors
