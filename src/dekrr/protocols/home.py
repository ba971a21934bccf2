"""What a site adds for its own rows: the weight of its own agreed model, its level, and its local part. None is sent.

All of it is chosen by what the other parts would predict for a row that they had not seen. Let the shared part, with
the site's level, leave e of the response and have the leverage h, and let the agreed part fit a of that with the
leverage k, the coefficients of neighbours held fixed: k = z'H_jj^-1 z / N. A change of the response by d changes the
prediction by h d + k (1 - h) d. So without the row the parts would leave (e - a) / ((1 - h) (1 - k)). This counts the
features as given, though a site chooses them by its rows; it is a little too small.

The weights of the local part's candidates need all sites' squared errors (`dekrr.parts.local`): ten sums over the tree.

**Under differential privacy** a site sends nothing for what it adds at home: `fit_private_home` is a function, not a
procedure, and it is called when the site has sent its last message. All that anybody outside the site ever sees is
then a function of the noisy sums (`dekrr.privacy.mechanism`), of row counts and of what others sent. It has the same
law whatever the site adds for itself, so that the promise stands at no cost (joint differential privacy: Kearns, Pai,
Roth, Ullman, Mechanism design in large games, ITCS 2014). The promise is not towards the site's own people: their model
has trees that were fitted to the rows, and must stay at home. `SiteModel.without_local` is a function of the release.

- Leverages are taken as 0. By the promise itself a row hardly changes what the noisy parts predict, also for itself.
- The level is the mean of what the noisy parts leave at the site, shrunk by its own standard error.
- No sums over sites tell weights of candidates. They are shrunk towards trees alone instead, which noise cannot spoil.
- A local part that cannot be fitted is left out, with a warning at the site: others would see that the site fails.

**What the shared part leaves of a response without its row, from the row's leverage among the features of all sites.**

A row's error without it is e / (1 - h), where h is its leverage. h takes the sum Z'Z over all sites' rows, which the
root of the tree alone has. A site has its own rows. They stand for all rows at first, which makes h too small where the
site's rows are unlike all others. The sum of the site's leverages mends this. It is found with random signs: with
responses of +1 and -1 that depend on nothing, the mean over rows of response times prediction is the mean leverage
(Hutchinson, Communications in Statistics 18, 1989). Every site sums Z's for eight vectors of signs s, the sums go up
the tree, and the root's solutions come down.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from ..parts.local import N_CANDIDATES, Home, LocalFits, LocalPart, error_products, weights_of
from ..settings import DeKRRSettings
from ..statistics import rows_per_block
from ..tables.rows import ArrayRows, signs_of
from ..types import Array, Block
from .masking import MOST_SPANS
from .run import Outcome, SharedPart
from .site import FOLDS, Procedure, Site
from .spanning_tree import SparseSums, Tree, coarse

_LEAST_RIDGE = 1e-9  # of Z'Z / N
_LEAST_LEFT_BY_SHARED = 0.2  # of 1 - leverage
_PROBES = 8


class Left(NamedTuple):
    """What the shared part, with the site's level, leaves of responses."""

    rows: ArrayRows  # with what it leaves of each response, e
    leverages: Array  # shape (n_rows,): h, of each row

    def without_row(self) -> ArrayRows:
        """Return what it would leave of each response without the row, e / (1 - h)."""
        return _with_responses(self.rows, (self.rows.y.T / np.maximum(1 - self.leverages, _LEAST_LEFT_BY_SHARED)).T)


def left_by_shared(outcome: Outcome, rows: ArrayRows, *, probed: bool) -> Procedure[Left]:
    """Return what the shared part leaves of each response, and the leverage of each row.

    `rows` are the site's or a sample of them. Where `probed`, alike at all sites, the sum of leverages is found over
    the tree. Without a shared part all is left.
    """
    shared, scaling = outcome.shared, outcome.scaling
    if shared is None:
        return Left(rows, np.zeros(rows.n_rows))
    X, roots = scaling.rows(rows.X), None if rows.weight is None else np.sqrt(rows.weight)
    shift, of_level = (0.0, 0.0) if shared.of_site is None else shared.of_site.leverages(np.zeros(1), shared.ratio)

    def weighted(waves: Array, some: np.ndarray) -> Array:
        return (waves + shift) if roots is None else ((waves + shift).T * roots[some]).T

    n_rows, weights = outcome.roster.n_counted, rows.weights.total * rows.expansion
    ridge = max(shared.ridge, _LEAST_RIDGE) * n_rows
    # The shared part was fitted without the rows that are in no sum: it leaves the same of these in any case.
    inside = _inside(outcome, rows)
    share = rows.take(inside).weights.total / max(rows.weights.total, 1e-300)
    times = rows.expansion * n_rows / max(weights * share, 1e-300)
    shape = int(inside.sum()), shared.feature_map.n_features

    def summed() -> Iterator[Array]:
        return (weighted(shared.feature_map(X[some]), some) for some in _parts(np.flatnonzero(inside), shape[1]))

    leverage = leverage_among(summed(), shape, times, ridge)
    predicted, leverages = np.empty_like(rows.y), np.empty(rows.n_rows)
    for some in _parts(np.arange(rows.n_rows), shape[1]):
        waves = shared.feature_map(X[some])
        predicted[some] = waves @ shared.coefficients
        leverages[some] = leverage(weighted(waves, some))
    leverages = np.where(inside, leverages, 0.0)
    if probed:
        assert rows.hashes is not None  # `training.train` brings rows in order
        signs = signs_of(rows.hashes[inside], _PROBES)  # of the rows themselves: no series of runs draws others
        total = yield from _sum_of_leverages(outcome, shared, summed, ridge, signs)
        leverages = with_sum(leverages, total, n_rows / max(weights, 1e-300))
    leverages = leverages + np.where(inside, of_level, 0.0) * (1.0 if roots is None else np.square(roots))
    return Left(_with_responses(rows, rows.y - scaling.undo(predicted + shared.level)), leverages)


def _parts(places: np.ndarray, n_features: int) -> list[np.ndarray]:
    """Return parts of rows, or of their places, whose features stay in the cache; an empty one if there are none."""
    size = rows_per_block(8 * n_features)
    return [places[start : start + size] for start in range(0, max(len(places), 1), size)]


def _inside(outcome: Outcome, rows: ArrayRows) -> np.ndarray:
    """Return which rows are in sums that leave the site."""
    return np.ones(rows.n_rows, dtype=bool) if outcome.admission is None else outcome.admission(rows.X)


def _with_responses(rows: ArrayRows, y: Array) -> ArrayRows:
    return ArrayRows(rows.X, y, rows.weight, expansion=rows.expansion, seed=rows.seed, hashes=rows.hashes)


def leverage_among(
    blocks: Iterable[Array], shape: tuple[int, int], times: float, ridge: float
) -> Callable[[Array], Array]:
    """Return the function of rows z that gives z'(t S'S + r I)^-1 z of each; S, of that shape, has all blocks' rows.

    Where these are fewer than features, it is (z'z - k'(S S' + (r / t) I)^-1 k) / r, with k = S z: a system as large as
    the number of rows.
    """
    if not 0 < shape[0] < shape[1]:
        gram = sum((block.T @ block for block in blocks), np.zeros(2 * shape[1:])) * times
        gram.flat[:: len(gram) + 1] += ridge
        of_gram = np.asarray(np.linalg.cholesky(gram))
        return lambda rows: _squares(of_gram, rows.T)
    summed = np.concatenate(list(blocks))
    kernel = summed @ summed.T
    kernel.flat[:: len(kernel) + 1] += ridge / times
    factor = np.asarray(np.linalg.cholesky(kernel))

    def among_few(rows: Array) -> Array:
        left = np.einsum("nd,nd->n", rows, rows) - _squares(factor, summed @ rows.T)
        return np.asarray(np.maximum(left, 0.0) / ridge)

    return among_few


def _squares(factor: Array, columns: Array) -> Array:
    """Return c'(L L')^-1 c of each column c."""
    whitened = solve_triangular(factor, columns, lower=True, check_finite=False)
    return np.asarray(np.einsum("in,in->n", whitened, whitened))


def _sum_of_leverages(
    outcome: Outcome, shared: SharedPart, blocks: Callable[[], Iterator[Array]], ridge: float, signs: Array
) -> Procedure[float]:
    """Return an estimate of the sum of the leverages of the rows in `blocks`, those of the site that are in sums.

    The rows' features are made again when the result is there: those of many rows, or many sites, are not kept.
    """
    shape = (shared.feature_map.n_features, _PROBES)

    def solved(total: Array) -> Array:
        assert shared.gram is not None  # of the root
        factor = cho_factor(shared.gram + ridge * np.eye(len(shared.gram)))
        return np.asarray(cho_solve(factor, total.reshape(shape)).ravel())

    parts = _parts(signs, shape[0])
    sums = sum((block.T @ part for block, part in zip(blocks(), parts, strict=True)), np.zeros(shape)).ravel()
    tree = Tree(outcome.roster)
    form = SparseSums(len(sums), tree.among_many(coarse))  # which is off by far less than eight vectors of signs are
    result = (yield from tree.result(sums, solved, len(sums), form=form, told=coarse)).reshape(shape)
    products = (np.einsum("nk,nk->", part, block @ result) for block, part in zip(blocks(), parts, strict=True))
    return float(sum(products) / _PROBES)


def with_sum(leverages: Array, total: float, most: float) -> Array:
    """Return leverages whose odds h / (1 - h) are multiplied by one factor, so that they add up to `total`.

    The odds are those of the other rows, which a common factor makes count for more or fewer. The factor is between 1 /
    `most` and `most`.
    """
    odds = leverages / np.maximum(1 - leverages, 1e-6)
    least, largest = np.log(1 / most), np.log(most)
    for _ in range(40):
        middle = (least + largest) / 2
        factor = np.exp(middle)
        if np.sum(factor * odds / (1 + factor * odds)) > total:
            largest = middle
        else:
            least = middle
    return np.asarray(factor * odds / (1 + factor * odds))


_LEAST_LEFT = 0.1  # of the product of 1 - leverage
_PRIOR_ROWS = 20.0  # that the own weight of settings is worth
TREES_ALONE = np.array([0.0, 0.0, 1.0, 0.0])  # of the candidates: where a private run's weights are shrunk to


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """What would be predicted for the site's rows, or a sample of them, if each had not been seen.

    All are of shape (n_rows, n_outputs), in units of scaled responses.
    """

    left: Left  # by the shared part
    # home, elsewhere: the prediction of the site's model for its own rows, and as if they came from elsewhere
    home: Array
    elsewhere: Array
    # what the site would predict without any other: by its mean, by ridge regression, by its trees
    alone: dict[str, Array]
    local_without: Callable[[int], LocalPart | None]  # returns the local part without a fold


def fit_home(
    site: Site, tree: Tree, outcome: Outcome, settings: DeKRRSettings, prediction: str, *, probed: bool
) -> Procedure[None]:
    """Put into an outcome what the site adds for its own rows, and what is known of rows that are not seen.

    The site has all its rows, or a sample that stands for very many; the outcome has the other parts. See
    `left_by_shared` for `probed`. The errors of candidates are summed over the sites of the tree.
    """
    site.enter("local part")
    rows = site.rows.sample
    left = yield from left_by_shared(outcome, rows, probed=probed)
    block = rows.scaled(outcome.scaling).arrays()
    y = block.y.reshape(rows.n_rows, -1)
    own, neighbors = _unseen(outcome, rows, block, left, prediction)
    level = outcome.shared.level if outcome.shared is not None else np.zeros(block.y.shape[1:])
    fold_of = site.fold_of(FOLDS)

    def beneath(chosen: np.ndarray) -> tuple[float, Array]:
        """Return the weight of the own agreed model by some of the rows, and what is predicted for them with it."""
        of_rows = own[chosen], neighbors[chosen], y[chosen], block.take(chosen).weight
        by = _own_weight(*of_rows, settings.own_weight) if prediction != "own" else 1.0
        return by, by * own[chosen] + (1 - by) * neighbors[chosen]

    def fitted(chosen: np.ndarray) -> LocalFits:
        some, seed = block.take(chosen), int(site.rng("local part").integers(2**31))
        by, unseen = beneath(chosen)
        with_row = outcome.others(some.X, prediction, Home(by, level)) + level
        given = some.X, y[chosen], some.weight, unseen, with_row, fold_of[chosen]
        return LocalFits.fitted(*given, settings.local, seed)

    everyone, inside = np.ones(rows.n_rows, dtype=bool), _inside(outcome, rows)
    own_weight, others = beneath(everyone)
    home, local, alone = others, None, {"mean": _means(y, block.weight, fold_of)}
    local_without: Callable[[int], LocalPart | None] = _nothing
    if settings.local is not None:
        told = fitted(inside)  # the errors that are summed over sites are of fits that no withheld row has a part in
        best = yield from _best_for_all(tree, told.predictions(), y[inside], rows.take(inside))
        found = told if inside.all() else fitted(everyone)
        predictions = found.predictions()
        alone |= {"trees": predictions[2], "ridge": predictions[3]}
        weights = weights_of(error_products(predictions, y, block.weight) / tree.roster.mean_weight, *best)
        home = np.tensordot(weights, predictions, 1)
        local, local_without = found.part(weights), partial(found.part, weights)
    outcome.home = Home(own_weight, level, local)
    middle = outcome.own_weight if prediction != "own" else 1.0
    elsewhere = middle * own + (1 - middle) * neighbors - level
    outcome.out_of_fold = OutOfFold(left, home, elsewhere, alone, local_without)


def fit_private_home(site: Site, outcome: Outcome, settings: DeKRRSettings, prediction: str) -> None:
    """Put into the outcome of a private run what the site adds for its own rows; nothing is sent."""
    if not site.n_rows:
        return
    try:
        site = site.in_order()
        outcome.home = _private_home(site, outcome, settings, prediction)
    except Exception as error:
        site.tell(f"the local part of site {site.name!r} could not be fitted, and its model has none: {error}")


def _private_home(site: Site, outcome: Outcome, settings: DeKRRSettings, prediction: str) -> Home:
    rows = site.rows.sample
    block = rows.scaled(outcome.scaling).arrays()
    y, fold_of = block.y.reshape(rows.n_rows, -1), site.fold_of(FOLDS)
    members = [known.apply(block.X, theta).reshape(y.shape) for known, theta, _ in outcome.agreed_members(prediction)]
    own, neighbors = members[0], np.mean(members[1:] or members, axis=0)
    own_weight = _own_weight(own, neighbors, y, None, settings.own_weight) if len(members) > 1 else 1.0
    found = own_weight * own + (1 - own_weight) * neighbors
    left, others = y - found, np.empty_like(found)
    for fold in range(FOLDS):
        others[fold_of == fold] = found[fold_of == fold] + shrunk_mean(left[fold_of != fold])
    seed = int(site.rng("local part").integers(2**31))
    level = shrunk_mean(left)
    candidates = LocalFits.fitted(block.X, y, None, others, found + level, fold_of, settings.local, seed)
    products = error_products(candidates.predictions(), y, None)
    weights = weights_of(products, TREES_ALONE, products / rows.n_rows)
    return Home(own_weight, level.reshape(block.y.shape[1:]), candidates.part(weights))


def shrunk_mean(left: Array) -> Array:
    """Return the mean over rows of each output (n_rows, n_outputs), shrunk towards 0 by what of it is due to chance.

    It is the positive-part rule of James and Stein for one mean: m max(0, 1 - v / (n m^2)), v the variance of n rows.
    """
    if len(left) < 2:
        return np.zeros(left.shape[1])
    mean, error = left.mean(axis=0), left.var(axis=0, ddof=1) / len(left)
    square = np.maximum(mean**2, np.finfo(float).tiny)
    return np.asarray(mean * np.maximum(0.0, 1 - error / square))


def _nothing(fold: int) -> None:
    return None


def _unseen(outcome: Outcome, rows: ArrayRows, block: Block, left: Left, prediction: str) -> tuple[Array, Array]:
    """Return what the other parts would predict without each row: with the site's own agreed model, with neighbours'.

    Both are of shape (n_rows, n_outputs), in units of scaled responses.
    """
    shape = (rows.n_rows, -1)
    unit = outcome.unit(block.y)
    y = block.y.reshape(shape)
    errors, without = (
        y if outcome.shared is None else (one.y / unit).reshape(shape)  # what the shared part leaves
        for one in (left.rows, left.without_row())
    )
    own = outcome.feature_map.apply(block.X, outcome.coefficients).reshape(shape)
    features = outcome.feature_map(block.X)
    assert outcome.hessian is not None
    leverages = np.einsum("nd,dn->n", features, np.linalg.solve(outcome.hessian, features.T)) / outcome.roster.n_counted
    if block.weight is not None:
        leverages = leverages * block.weight
    if outcome.admission is not None and rows.n_rows:
        leverages = np.where(outcome.admission(rows.X), leverages, 0.0)
    kept = np.maximum((1 - left.leverages) * (1 - leverages), _LEAST_LEFT)[:, None]
    with_own = y - (errors - own) / kept
    if prediction == "own" or not outcome.neighbor_maps:
        return with_own, with_own
    of_neighbors = np.mean(
        [known.apply(block.X, outcome.neighbor_coefficients[p]) for p, known in outcome.neighbor_maps.items()], axis=0
    )
    return with_own, y - without + of_neighbors.reshape(shape)


def _own_weight(own: Array, neighbors: Array, y: Array, weight: Array | None, prior: float) -> float:
    """Return the weight of the site's own agreed model beside its neighbours' with the least squared error."""
    root = 1.0 if weight is None else np.sqrt(weight)[:, None]
    between, wanted = root * (own - neighbors), root * (y - neighbors)
    square = float(np.vdot(between, between))
    strength = _PRIOR_ROWS * square / max(len(y), 1)
    if not square > 0:
        return prior
    return float(np.clip((np.vdot(between, wanted) + strength * prior) / (square + strength), 0.0, 1.0))


def _best_for_all(tree: Tree, predictions: Array, y: Array, rows: ArrayRows) -> Procedure[tuple[Array, Array]]:
    """Return the weights of candidates that are best for all sites, and the products of errors per row."""
    most = (MOST_SPANS + 1) * tree.largest_response
    errors = np.clip(predictions - y, -most, most)
    of_told = error_products(errors, np.zeros_like(y), rows.weight) * rows.expansion
    count = float(rows.n_rows if rows.weight is None else rows.weight.sum()) * rows.expansion
    upper = np.triu_indices(N_CANDIDATES)
    largest = lambda masks: 2.0**masks.rows * most**2 * y.shape[1]  # noqa: E731
    total = yield from tree.sum(np.append(of_told[upper], count), largest)
    return _of_all(total.tobytes())


@lru_cache(maxsize=2)
def _of_all(total: bytes) -> tuple[Array, Array]:
    """Return the weights that are best for all sites, and the products per row: once for all sites of a process."""
    *sums, count = np.frombuffer(total)
    everyone = np.zeros((N_CANDIDATES, N_CANDIDATES))
    everyone[np.triu_indices(N_CANDIDATES)] = np.array(sums) / max(count, 1e-300)
    everyone = everyone + np.triu(everyone, 1).T
    return weights_of(everyone), everyone


def _means(y: Array, weight: Array | None, fold_of: np.ndarray) -> Array:
    """Return for each row the mean of the rows of other folds."""
    weights = np.ones(len(y)) if weight is None else weight
    found = np.zeros_like(y)
    for fold in np.unique(fold_of):
        others = np.where(fold_of == fold, 0.0, weights)
        found[fold_of == fold] = np.average(y, axis=0, weights=others) if others.any() else 0.0
    return found
