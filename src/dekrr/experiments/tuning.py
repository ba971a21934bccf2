"""The choice of the consensus weight by cross-validation, at the cost of a few fits.

The sums of a fold are the same for every weight c, and the block system is H(c) theta = d with H(c) affine in c. So
each fold chooses features and computes sums once, and solves a dense system for every c. This is a shortcut for
experiments, because it sees all sites at once. The figures of a run are always from fits of the estimators.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from .. import topology
from ..data.splits import Split
from ..estimators.network import seed_of, sites_of
from ..features import FeatureMap
from ..protocols.outcome import neighborhood_weights
from ..rows import ArrayRows
from ..selection import Chooser
from ..statistics import accumulate
from ..system import Weights, assemble, penalty
from ..types import Array

N_FOLDS = 5


def solve_network(
    rows: Sequence[ArrayRows],
    maps: Sequence[FeatureMap],
    neighbors: Sequence[Sequence[int]],
    alpha: float,
    weights: Sequence[float],
) -> list[list[Array]]:
    """Return, for each consensus weight, the coefficients of all sites at the minimum of the paper's objective (11).

    Parameters
    ----------
    rows, maps, neighbors
        The rows, feature map and neighbours of each site.
    alpha : float
    weights : sequence of float
        Values of c.
    """
    n_rows = sum(len(site.y) for site in rows)
    n_sites = len(rows)
    names = list(map(str, range(n_sites)))
    own, sent = {}, {}
    for j, name in enumerate(names):
        others = {names[p]: maps[p] for p in neighbors[j]}
        own[name], sent[name] = accumulate(rows[j], maps[j], others)
    ends = np.cumsum([feature_map.n_features for feature_map in maps])
    parts = [slice(end - m.n_features, end) for end, m in zip(ends, maps, strict=True)]
    solutions = []
    for c in weights:
        penalties = {name: penalty(c, n_rows, len(neighbors[j])) for j, name in enumerate(names)}
        matrix, right = np.zeros((ends[-1], ends[-1])), np.empty(ends[-1])
        for j, name in enumerate(names):
            received = {names[p]: sent[names[p]][name] for p in neighbors[j]}
            row = assemble(own[name], received, sent[name], Weights(n_rows, n_sites, alpha, penalties[name], penalties))
            matrix[parts[j], parts[j]] = row.hessian
            couplings, start = row.couplings, 0
            for p in neighbors[j]:
                size = maps[p].n_features
                matrix[parts[j], parts[p]] = -couplings[:, start : start + size]
                start += size
            right[parts[j]] = row.right_side
        theta = cho_solve(cho_factor(matrix, overwrite_a=True, check_finite=False), right, check_finite=False)
        solutions.append([theta[part] for part in parts])
    return solutions


def choose_features(
    rows: Sequence[ArrayRows], neighbors: Sequence[Sequence[int]], selectors: Sequence[Chooser], random_state: int
) -> list[FeatureMap]:
    """Return the features that each site of an estimator with this `random_state` chooses from its rows."""
    sites = sites_of(dict(enumerate(rows)), dict(enumerate(neighbors)), seed=seed_of(random_state))
    return [
        selector.select(site.X, site.y, site.rng()) for selector, site in zip(selectors, sites.values(), strict=True)
    ]


def rows_by_site(split: Split) -> list[ArrayRows]:
    """Return the training rows of every site of a split."""
    return [ArrayRows(split.X[split.sites == j], split.y[split.sites == j]) for j in range(split.n_sites)]


def ring_neighbors(split: Split) -> list[list[int]]:
    """Return the neighbours of every site of a split on its ring."""
    graph = topology.build("ring", range(split.n_sites), split.n_neighbors)
    return [list(graph[j]) for j in range(split.n_sites)]


def folds_of(n_rows: int, *, shuffle: bool, seed: int) -> list[np.ndarray]:
    """Return the rows of each of five folds: consecutive rows, as in the authors' code, or shuffled rows."""
    order = np.random.default_rng(seed).permutation(n_rows) if shuffle else np.arange(n_rows)
    return [np.sort(part) for part in np.array_split(order, N_FOLDS)]


def fold_seed(random_state: int, fold: int) -> int:
    """Return the seed of a fold's features."""
    return int(np.random.SeedSequence([random_state, fold]).generate_state(1)[0] >> 1)


def cross_validate(
    split: Split,
    selectors: Sequence[Chooser],
    weights: Sequence[float],
    *,
    alpha: float,
    prediction: str,
    shuffle: bool,
    random_state: int,
) -> Mapping[float, float]:
    """Return the mean squared error of each consensus weight; each site predicts its own hold-out rows.

    Parameters
    ----------
    split : Split
    selectors : sequence of Chooser
        One per site. Each fold draws its own pool and chooses by its own training rows, so that the error is that of a
        whole fit, and not that of one draw of features.
    weights : sequence of float
        Values of c.
    alpha : float
    prediction : {"own", "neighborhood"}
    shuffle : bool
        Whether rows are shuffled before they are divided into folds.
    random_state : int
    """
    neighbors = ring_neighbors(split)
    sites = rows_by_site(split)
    folds = [folds_of(len(site.y), shuffle=shuffle, seed=random_state) for site in sites]
    errors = np.zeros(len(weights))
    for k in range(N_FOLDS):
        kept = [np.setdiff1d(np.arange(len(site.y)), fold[k]) for site, fold in zip(sites, folds, strict=True)]
        train = [ArrayRows(site.X[rows], site.y[rows]) for site, rows in zip(sites, kept, strict=True)]
        held_out = [ArrayRows(site.X[fold[k]], site.y[fold[k]]) for site, fold in zip(sites, folds, strict=True)]
        maps = choose_features(train, neighbors, selectors, fold_seed(random_state, k))
        solutions = solve_network(train, maps, neighbors, alpha, weights)
        for j, site in enumerate(held_out):
            members = [j, *neighbors[j]] if prediction == "neighborhood" else [j]
            features = {m: maps[m](site.X) for m in members}
            for i, theta in enumerate(solutions):
                shares = neighborhood_weights(len(members) - 1)
                predicted = np.sum([w * (features[m] @ theta[m]) for w, m in zip(shares, members, strict=True)], axis=0)
                errors[i] += np.sum((predicted - site.y) ** 2)
    means = errors / len(split.y)
    return dict(zip(weights, means.tolist(), strict=True))


def choose_consensus(errors: Mapping[float, float]) -> float:
    """Return the weight with the smallest error."""
    smallest: Callable[[float], float] = errors.__getitem__
    return min(errors, key=smallest)
