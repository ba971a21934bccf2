"""The problem of a task: scaled training and test rows, and the bandwidth and regularisation of its protocol."""

import os
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh
from sklearn.model_selection import KFold

from ..data import authors_split, halves, load, partition
from ..data.catalogue import PAPER
from ..data.splits import Split
from ..kernels import Gaussian
from ..scaling import Scaling
from ..selection import Plain
from ..types import Array
from .tasks import Task

SIGMAS = tuple(2.0**i for i in range(-2, 3))
ALPHAS = tuple(10.0**i for i in range(-8, -1))
N_FOLDS = 5
_TUNING_FEATURES = 500


class Problem(NamedTuple):
    """A split, the kernel's bandwidth and the regularisation."""

    split: Split
    sigma: float
    alpha: float


def problem_of(task: Task, directory: str | os.PathLike[str] | None = None) -> Problem:
    """Return the rows of a task and the settings of its protocol."""
    folder = os.fspath(directory) if directory is not None else None
    if task.splits == "authors":
        split = _authors(task.data, folder)
        return Problem(split, *split.kernel)
    key = (task.data, folder, task.partition, task.n_sites, task.mix, task.n_rows, task.split_seed)
    split = _own_split(*key, honest=task.protocol == "honest", n_neighbors=task.n_neighbors)
    if task.protocol == "paper":
        return Problem(split, PAPER[task.data].sigma, PAPER[task.data].alpha)
    return Problem(split, *_tuned(*key, n_neighbors=task.n_neighbors))


_authors = lru_cache(maxsize=4)(authors_split)
_load = lru_cache(maxsize=2)(load)


@lru_cache(maxsize=4)
def _own_split(
    name: str,
    directory: str | None,
    how: str,
    n_sites: int,
    mix: float,
    n_rows: int,
    seed: int,
    *,
    honest: bool,
    n_neighbors: int,
) -> Split:
    X, y = _load(name, directory)
    if 0 < n_rows < len(y):
        rows = np.sort(np.random.default_rng(seed).permutation(len(y))[:n_rows])
        X, y = X[rows], y[rows]
    scaling = Scaling.of(X, y)
    sites = partition(how, scaling.rows(X), scaling.responses(y), n_sites=n_sites, mix=mix, random_state=seed)
    train = halves(sites, random_state=seed)
    if honest:
        scaling = Scaling.of(X[train], y[train])
    X, y = scaling.rows(X), scaling.responses(y)
    return Split(X[train], y[train], sites[train], X[~train], y[~train], sites[~train], n_neighbors=n_neighbors)


@lru_cache(maxsize=4)
def _tuned(
    name: str,
    directory: str | None,
    how: str,
    n_sites: int,
    mix: float,
    n_rows: int,
    seed: int,
    *,
    n_neighbors: int,
) -> tuple[float, float]:
    split = _own_split(name, directory, how, n_sites, mix, n_rows, seed, honest=True, n_neighbors=n_neighbors)
    return choose_kernel(split.X, split.y, seed)


def choose_kernel(X: Array, y: Array, seed: int) -> tuple[float, float]:
    """Return sigma and alpha by 5-fold cross-validation of a centralised ridge on 500 plain features.

    The paper says that its bandwidth and regularisation come from cross-validation of centralised kernel ridge
    regression. This function does the same, on training rows only, over the paper's grids `SIGMAS` and `ALPHAS`.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_columns)
    y : ndarray of shape (n_rows,)
    seed : int
    """
    folds = list(KFold(N_FOLDS, shuffle=True, random_state=seed).split(X))
    errors = np.zeros((len(SIGMAS), len(ALPHAS)))
    for i, sigma in enumerate(SIGMAS):
        rng = np.random.default_rng(seed)
        selector = Plain(_TUNING_FEATURES, kernel=Gaussian.name, sigma=sigma)
        features = selector.select(X, y, rng)(X)
        gram, moment = features.T @ features, features.T @ y
        for train, validation in folds:
            held_out, responses = features[validation], y[validation]
            values, vectors = eigh(gram - held_out.T @ held_out)
            projected = vectors.T @ (moment - held_out.T @ responses)
            rotated = held_out @ vectors
            for k, alpha in enumerate(ALPHAS):
                prediction = rotated @ (projected / (np.maximum(values, 0) + len(train) * alpha))
                errors[i, k] += np.sum((prediction - responses) ** 2)
    best = np.unravel_index(np.argmin(errors), errors.shape)
    return SIGMAS[best[0]], ALPHAS[best[1]]
