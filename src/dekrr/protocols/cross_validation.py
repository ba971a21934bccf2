"""Choosing bandwidth, alpha and consensus by cross-validation, without a centre.

Every site divides its own rows into folds. For each bandwidth and fold, features are chosen and sums exchanged
as in training, from the rows outside the fold. `score_grid` then scores every (alpha, consensus) and the weight of a
site's own model in its prediction on the rows that were held out. What a site gives away to agree on a choice is one
number per candidate, summed over the spanning tree, so that all sites choose the same.

Every (alpha, consensus) of one bandwidth is a function of the sums. The systems of all folds and alphas are solved side
by side, their coefficients in one message a round, along a path of consensuses. A site then scores its own prediction
on the rows that it held out.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec
import numpy as np

from ..errors import DataError, MessageError, SettingsError
from ..features import FeatureMap
from ..messages import Coefficients, expect
from ..selection import Pool
from ..selection.choosers import weights_for
from ..settings import DeKRRSettings
from ..solvers import Chebyshev, ChebyshevState, inverse
from ..statistics import BlockRow, assemble, weighted_responses
from ..tables.rows import CELLS, ArrayRows, is_usual, rows_per_feature_outside, sampled
from ..types import Array, Block
from .exchange import ExactSums
from .feature_choice import asks_neighbors, choose, exchange_maps, limit_shortlist, rows_around
from .masking import MaskedRounds, Masks, products_of, unit_of
from .roll_call import Roster
from .run import OpenRounds, Run, SetUp, Start, Tuned, Tuning
from .site import Procedure, Site

_ACCURACY = 1e-3  # of the solutions that are scored, in the norm that Chebyshev's bound is about
_UNSOLVED = 1e100  # coefficients and squared errors of what cannot be solved; sums of them are still finite
_DIVERGED = 1e12  # coefficients that the next consensus does not start from


class Scored:
    """Rows that were held out, on which coefficients of a neighbourhood are scored, in the order of `ready.maps`."""

    def __init__(self, block: Block, ready: SetUp, tuning: Tuning) -> None:
        self._X = block.X
        self._y = weighted_responses(block).reshape(block.n_rows, 1, *(block.y.shape[1:] or (1,)))
        self._root_weights = np.ones(1) if block.weight is None else np.sqrt(block.weight)
        self._maps = [ready.own_map, *ready.maps.values()]
        self._tuning = tuning

    def error(self, coefficients: Sequence[Array]) -> Array:
        """Return the squared error of each of n candidates and each own weight, shape (n, n_weights).

        Coefficients are the site's own, then its neighbours', of shape (n, D_p, n_outputs).
        """
        predictions = np.array([self._predict(*each) for each in zip(self._maps, coefficients, strict=True)])
        own = self._y - predictions[0]
        around = self._y - predictions[1:].mean(axis=0) if len(predictions) > 1 else own
        squares = [np.einsum("nkq,nkq->k", a, b) for a, b in ((own, own), (own, around), (around, around))]
        w = np.array(self._tuning.own_weights)
        return np.asarray(np.array(squares).T @ np.array([w**2, 2 * w * (1 - w), (1 - w) ** 2]))

    def _predict(self, feature_map: FeatureMap, coefficients: Array) -> Array:
        """Return predictions times the square roots of the rows' weights, shape (n_rows, n, n_outputs)."""
        n, n_features, n_outputs = coefficients.shape
        side_by_side = coefficients.transpose(1, 0, 2).reshape(n_features, n * n_outputs)
        predictions = feature_map.apply(self._X, side_by_side).reshape(len(self._X), n, n_outputs)
        return np.asarray(predictions * self._root_weights[:, None, None])


def score_grid(
    site: Site, ready: Sequence[SetUp], held_out: Sequence[Scored], tuning: Tuning, masks: Masks | None = None
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
        total = np.where(stack.solvable[..., None], errors, _UNSOLVED).sum(axis=0).ravel()
        scores.append(np.fmin(total, _UNSOLVED))
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
    """

    def __init__(self, systems: Sequence[BlockRow], ridges: Array) -> None:
        self.neighbors: tuple[str, ...] = systems[0].neighbors
        self._hessians = np.array([row.hessian for row in systems])[:, None]
        self._couplings = np.array([row.couplings for row in systems]).transpose(0, 2, 1)[:, None]
        folds, _, size, _ = self._hessians.shape
        self._right_sides = np.array([row.right_side.reshape(size, -1) for row in systems])[:, None]
        self._ridges = ridges[:, None, None]
        self.inverses = np.zeros((folds, len(ridges), size, size))  # H_jj^-1; 0 where there is none
        self.solvable = np.zeros((folds, len(ridges)), dtype=bool)  # whether H_jj is positive definite
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
    """Return matrix' values for all alphas of a fold at once, shape (folds, alphas, D, n_outputs).

    Values are of shape (folds, alphas, size, n_outputs), matrices of (folds, 1, size, D).
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
        state = state._replace(coefficients=np.clip(np.nan_to_num(state.coefficients), -_UNSOLVED, _UNSOLVED))
    return theta, of_neighbors


_HOPELESS = 1e4  # squared errors of a row, in units of the largest response; under masks larger ones are cut


def tune(start: Start, run: Run, tuning: Tuning) -> Procedure[Tuned]:
    """Agree with all sites on the candidate of the least held-out error; a sample stands for many rows."""
    site, rows, settings = start.site, start.rows.sample, run.settings
    tree = yield from start.tree()
    roster, masks = tree.roster, tree.masks
    if settings.rows_per_feature:
        tuning = msgspec.structs.replace(tuning, folds=folds_of_enough_rows(roster, tuning.folds, settings.min_rows))
    # What is sent for two folds has nearly the same features, so that its difference tells sums over one fold's rows:
    # the guard is about those, a (folds - 1)th of the rows in a sum.
    per_feature = settings.rows_per_feature * (tuning.folds - 1)
    run = replace(run, exchange=run.exchange if isinstance(run.exchange, ExactSums) else ExactSums())
    if masks is not None:
        masks.tell_solvable(n_products(tuning) * rows.n_outputs, run.chooser.n_features, settings.lone_neighbor)
    fewest_rows = min((n - -(-n // tuning.folds) for n in (sampled(roster.rows[p]) for p in site.neighbors)), default=0)
    fold_of = folds_to_hold_out(site, rows, settings, tuning.folds)
    errors: list[Array] = []
    for sigma in tuning.sigmas:
        run = replace(run, chooser=run.chooser.replace(sigma=sigma))
        shortlists: list[Pool | None] = [None] * tuning.folds
        if asks_neighbors(site, run.chooser):
            around, discreet = rows_around(site, roster), settings.shortlist_rows
            limited = limit_shortlist(run.chooser, fewest_rows, per_feature, around, discreet)
            shortlists = [
                *limited.fold_shortlists(
                    rows.X,
                    rows.y,
                    fold_of,
                    tuning.folds,
                    site.rng(),
                    **weights_for(limited, "fold_shortlists", rows.weight),
                )
            ]
        ready: list[SetUp] = []
        for fold in range(tuning.folds):
            outside = rows.take(fold_of != fold)
            needed = rows_per_feature_outside(settings.rows_per_feature, outside.n_rows, rows.n_rows, tuning.folds)
            guarded = replace(run, settings=msgspec.structs.replace(settings, rows_per_feature=needed))
            ready.append((yield from set_up(replace(start, rows=outside), guarded, shortlists[fold])))
        held_out = [Scored(rows.take(fold_of == k).arrays(), ready[k], tuning) for k in range(tuning.folds)]
        errors += yield from score_grid(site, ready, held_out, tuning, masks)
    own, largest = rows.expansion * np.concatenate(errors), np.inf
    if masks is not None:
        largest = _HOPELESS * 2.0 ** (masks.rows + 2 * masks.responses)
    total = yield from tree.sum(np.fmin(own, largest), largest)
    best = tuning.grid[int(np.argmin(total))]
    return Tuned(*best, grid=tuning.grid, errors=total / roster.n_counted)


def set_up(start: Start, run: Run, shortlist: Pool | None = None) -> Procedure[SetUp]:
    """Choose features from rows, or from a shortlist, and exchange maps and sums, as training does (lines 3 to 6)."""
    own = yield from choose(start, run, shortlist)
    offers = yield from exchange_maps(start.site, own, run)
    start.site.enter("sums over rows")
    return (yield from run.exchange.sums(start, own, offers, run))


def folds_to_hold_out(site: Site, rows: ArrayRows, settings: DeKRRSettings, n_folds: int) -> np.ndarray:
    """Return the fold of each row of a sample, shape (n_rows,); -1 for rows that are never held out.

    Where guards count on the size of folds, a site does not hold out one that is far smaller or larger than the others:
    sums over all rows but a small one differ by a sum over few rows. Without rows that are held out, it has no errors
    to tell for that fold.
    """
    fold_of = site.fold_of(n_folds)
    if not settings.rows_per_feature or not site.neighbors:
        return fold_of
    for fold in range(n_folds):
        is_held = fold_of == fold
        n_held, n_outside = rows.take(is_held).n_effective, rows.take(~is_held).n_effective
        if min(n_held, n_outside) < settings.min_rows or not is_usual(is_held.sum(), rows.n_rows, n_folds):
            fold_of[is_held] = -1
    return fold_of


def folds_of_enough_rows(roster: Roster, folds: int, min_rows: int) -> int:
    """Return how many folds, up to `folds`, have at least `min_rows` rows at every site: what differences sum over.

    That is in the mean: a site does not hold out a fold of fewer (`folds_to_hold_out`). There are no more folds than
    cells, so that no series of runs tells sums over less than a cell.
    """
    n_rows, site = roster.whole.fewest
    folds = min(folds, CELLS) if roster.n_sites > 1 else folds
    if roster.n_sites == 1 or n_rows >= folds * min_rows:
        return folds
    if n_rows < 2 * min_rows:
        raise DataError(
            f"site {site!r} has {n_rows} rows, too few for two folds of min_rows={min_rows}: tuning would send sums "
            "that differ by fewer rows. Give sigma, alpha and consensus as numbers, join the site to another, or "
            "lower min_rows"
        )
    return n_rows // min_rows
