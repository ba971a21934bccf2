"""What an analyst would fit to rows at hand: a mean, ridge or logistic regression, boosted trees, the best by folds.

They are yardsticks for `dekrr.compare`: for the rows of a site alone, and for those of all sites in one place, where
trees have the site as a category and regressions a level for each site.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..types import Array

_PENALTIES = 10.0 ** np.arange(-3, 4.1, 0.5)  # of ridge regression, on standardised columns
_STRENGTHS = (0.03, 0.3, 3.0)  # C of logistic regression
_FEWEST_ROWS = 10  # for trees
_MOST_TREES, _PATIENCE = 2000, 50
_MANY_ROWS = 5000  # for which several threads are worth their start

Predict = Callable[[Array, np.ndarray], Array]
"""Predicts rows, of sites by number: responses, or probabilities of classes."""


@dataclass(frozen=True, eq=False)
class Task:
    X: Array
    y: np.ndarray  # responses, or the places of classes
    folds: np.ndarray  # of each row, as the site's number
    n_classes: int  # 0 for numbers
    site: np.ndarray
    n_sites: int = 1  # 1 where all rows are of one site: then learners do not look at it

    def take(self, rows: np.ndarray) -> "Task":
        return replace(self, X=self.X[rows], y=self.y[rows], folds=self.folds[rows], site=self.site[rows])

    def splits(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the rows outside and in each fold, where there are some."""
        pairs = [(np.flatnonzero(self.folds != k), np.flatnonzero(self.folds == k)) for k in np.unique(self.folds)]
        return [(kept, held) for kept, held in pairs if len(kept) and len(held)]


def losses_of(y: np.ndarray, prediction: Array, n_classes: int) -> Array:
    """Return the squared error of each row, or minus the logarithm of its class's probability."""
    if not n_classes:
        return np.asarray((prediction - y) ** 2)
    return np.asarray(-np.log(prediction[np.arange(len(y)), y.astype(int)]))


def doubted(probabilities: Array, n_rows: int) -> Array:
    """Return probabilities of classes with a doubt that weighs as much as one of the rows that they come from."""
    return np.asarray((n_rows * probabilities + 1 / probabilities.shape[1]) / (n_rows + 1))


def best(task: Task, *, mean: bool) -> tuple[str, Predict]:
    """Return the name of the learner with the least error on held-out folds, and its predictor by all rows.

    The mean of the rows, or the shares of classes, may be one of them.
    """
    learners = {"mean": _mean} if mean or not task.splits() else {}
    if task.splits():
        learners |= {"ridge": _logistic, "trees": _trees} if task.n_classes else {"ridge": _ridge, "trees": _trees}
    if len(task.y) < _FEWEST_ROWS:
        learners.pop("trees", None)
    found = {name: learn(task) for name, learn in learners.items()}
    name = min(found, key=lambda name: found[name][0])
    kind = "logistic" if task.n_classes and name == "ridge" else name
    return kind, found[name][1]()


Learnt = tuple[float, Callable[[], Predict]]
"""The error on held-out folds, and what makes a predictor of all rows."""


def _by_folds(task: Task, fit: Callable[[Task], Predict]) -> float:
    losses = []
    for kept, held in task.splits():
        out = task.take(held)
        losses.append(losses_of(out.y, fit(task.take(kept))(out.X, out.site), task.n_classes))
    return float(np.mean(np.concatenate(losses))) if losses else np.inf


def _mean(task: Task) -> Learnt:
    def fit(part: Task) -> Predict:
        middle: Any = np.mean(part.y)
        if part.n_classes:
            middle = doubted(np.bincount(part.y, minlength=part.n_classes)[None] / len(part.y), len(part.y))[0]
        return lambda X, site: np.broadcast_to(middle, (len(X), *np.shape(middle)))

    return _by_folds(task, fit), lambda: fit(task)


def _standardised(task: Task) -> Callable[[Array, np.ndarray], Array]:
    """Return what standardises columns, and adds one of 0 and 1 for each of several sites."""
    mean, spread = task.X.mean(axis=0), task.X.std(axis=0)
    spread = np.where(spread > 1e-12 * (1 + np.abs(mean)), spread, np.inf)

    def design(X: Array, site: np.ndarray) -> Array:
        columns = np.clip((X - mean) / spread, -1e6, 1e6)
        if task.n_sites == 1:
            return np.asarray(columns)
        return np.hstack([columns, (site[:, None] == np.arange(task.n_sites)).astype(float)])

    return design


def _ridge(task: Task) -> Learnt:
    def path(part: Task) -> list[Predict]:
        design = _standardised(part)
        Z, middle = design(part.X, part.site), float(part.y.mean())
        centre = Z.mean(axis=0)
        values, vectors = np.linalg.eigh((Z - centre).T @ (Z - centre))
        moments = vectors.T @ ((Z - centre).T @ (part.y - middle))
        thetas = [vectors @ (moments / (np.maximum(values, 0.0) + penalty)) for penalty in _PENALTIES]
        return [lambda X, site, t=theta: middle + (design(X, site) - centre) @ t for theta in thetas]  # type: ignore[misc]

    losses = np.zeros(len(_PENALTIES))
    for kept, held in task.splits():
        out = task.take(held)
        losses += [losses_of(out.y, predict(out.X, out.site), 0).sum() for predict in path(task.take(kept))]
    place = int(np.argmin(losses))
    return float(losses[place] / len(task.y)), lambda: path(task)[place]


def _logistic(task: Task) -> Learnt:
    from sklearn.linear_model import LogisticRegression

    def fit(part: Task, strength: float) -> Predict:
        if len(np.unique(part.y)) < 2:
            return _mean(part)[1]()
        design = _standardised(part)
        model = LogisticRegression(C=strength, max_iter=500).fit(design(part.X, part.site), part.y)

        def predict(X: Array, site: np.ndarray) -> Array:
            found = np.zeros((len(X), part.n_classes))
            found[:, model.classes_.astype(int)] = model.predict_proba(design(X, site))
            return doubted(found, len(part.y))

        return predict

    losses = {strength: _by_folds(task, lambda part, c=strength: fit(part, c)) for strength in _STRENGTHS}  # type: ignore[misc]
    strength = min(losses, key=lambda strength: losses[strength])
    return losses[strength], lambda: fit(task, strength)


def _trees(task: Task) -> Learnt:
    """Boost trees until held-out folds have had no gain for some time, and then as many with all rows."""
    import lightgbm

    n_rows = len(task.y)
    settings: dict[str, Any] = {
        "objective": "multiclass" if task.n_classes else "regression",
        "metric": "multi_logloss" if task.n_classes else "l2",
        "learning_rate": 0.05,
        "min_data_in_leaf": int(np.clip(n_rows // 20, 3, 20)),
        "num_threads": 0 if n_rows >= _MANY_ROWS else 1,
        "deterministic": True,
        "force_row_wise": True,
        "seed": 0,
        "verbosity": -1,
    }
    if task.n_classes:
        settings["num_class"] = task.n_classes

    def inputs(X: Array, site: np.ndarray) -> Array:
        return X if task.n_sites == 1 else np.column_stack([X, site])

    rows = inputs(task.X, task.site)
    categories = [] if task.n_sites == 1 else [rows.shape[1] - 1]

    def table() -> Any:
        return lightgbm.Dataset(rows, task.y, categorical_feature=categories, params=settings, free_raw_data=False)

    stop = lightgbm.early_stopping(_PATIENCE, verbose=False)
    curves: dict[str, Any] = lightgbm.cv(settings, table(), _MOST_TREES, folds=task.splits(), callbacks=[stop])
    (curve,) = (values for name, values in curves.items() if name.endswith("-mean"))

    def predictor() -> Predict:
        booster = lightgbm.train(settings, table(), len(curve))

        def predict(X: Array, site: np.ndarray) -> Array:
            found = np.asarray(booster.predict(inputs(X, site)))
            return doubted(found, n_rows) if task.n_classes else found

        return predict

    return float(curve[-1]), predictor
