"""The local part: what a site's own rows say beyond the parts that it shares. It is fitted at the site and never sent.

There are four candidates for the prediction of the site's own rows:

    f, what the other parts predict;    f + g(x, f), with g fitted to what f leaves;    h(x), fitted to the responses;
    and a ridge regression of the responses on the columns.

g and h are boosted trees (`trees`), or any regressor of scikit-learn. All are fitted on folds of the site's rows.
The mean over the folds is the model, and what a fold's fit predicts for the rows of the fold is what it would predict
for new rows. For f the same follows from leverages (`dekrr.protocols.home`). A mean without a row's response
tells what that was, and trees can learn to read it off f. So g is fitted to f without each row, and judged by f with
all rows, which moves the other way: what was read off makes it worse. The site's prediction is the mean of the
candidates with the non-negative weights that have the least error on these out-of-fold predictions (stacking: Wolpert,
Neural Networks 5, 1992; Breiman, Machine Learning 24, 1996). So a site that is unlike all others ends with what it has
alone, and where that says nothing the other parts stand.

A small site cannot tell weights from few rows. All sites' squared errors are summed over the tree, and the weights that
are best for all are worth as much as `_PRIOR_ROWS` rows of a site's own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any, Protocol, Self

import numpy as np

from ..errors import ModelFileError, SettingsError
from ..features import FeatureMap
from ..statistics import OwnSums, path_with_intercept
from ..types import Array
from .trees import TreeEnsemble, fit_trees

NO_LEVEL = float("inf")  # the ratio of variances where sites have no levels
RATIOS = (*(10.0 ** np.arange(-2, 3.1, 0.5)).tolist(), NO_LEVEL)


@dataclass(frozen=True, eq=False)
class LevelSums:
    """What a site's level follows from; it stays at the site."""

    features: Array  # shape (n_features,): s, the sum of each feature over the site's rows
    responses: Array  # shape () or (n_outputs,): t, the sum of the responses
    n_rows: float  # n, or the sum of the rows' weights
    # the mean weight of all sites' rows: lambda counts rows of this weight, so that a common factor of weights changes
    # nothing
    unit: float = 1.0

    @classmethod
    def of(cls, sums: OwnSums, feature_map: FeatureMap, unit: float = 1.0) -> Self:
        """Read them from sums of features one of which is a constant."""
        place = constant_of(feature_map)
        size = feature_map.amplitudes[place]
        n_rows = float(sums.gram[place, place]) / size**2
        return cls(sums.gram[place] / size, sums.moment[place] / size, n_rows, unit)

    @classmethod
    def of_rows(cls, features: Array, responses: Array, feature_map: FeatureMap, unit: float = 1.0) -> Self:
        """Read them from rows, multiplied by the roots of their weights, with features one of which is a constant."""
        root = cls.roots(features, feature_map)
        return cls(root @ features, root @ responses, float(root @ root), unit)

    @staticmethod
    def roots(features: Array, feature_map: FeatureMap) -> Array:
        """Return the roots of the rows' weights, which their constant has."""
        place = constant_of(feature_map)
        return np.asarray(features[:, place] / feature_map.amplitudes[place])

    def share(self, ratio: float) -> float:
        """Return n / (n + lambda), what a level has of the mean that the site's rows leave."""
        return self.n_rows / self._divisor(ratio) if self.n_rows else 0.0

    def _divisor(self, ratio: Any) -> Any:
        return self.n_rows + ratio * self.unit

    def level(self, coefficients: Array, ratio: float) -> Array:
        """Return u, shape () or (n_outputs,)."""
        return np.asarray(self.levels(coefficients[None], [ratio])[0, 0])

    def levels(self, models: Array, ratios: Sequence[float]) -> Array:
        """Return u of each model for each ratio, shape (n_models, n_ratios) or (n_models, n_ratios, n_outputs).

        Models are of shape (n_models, n_features) or (n_models, n_features, n_outputs).
        """
        found = self.features[None] @ models.reshape(*models.shape[:2], -1)
        left = self.responses - found.reshape(len(models), 1, *models.shape[2:])
        return np.asarray(left / self._divisor(np.array(ratios)).reshape(-1, *[1] * (left.ndim - 2)))

    def reduced(self, sums: OwnSums, ratio: float) -> OwnSums:
        """Return the site's sums without its level.

        Examples
        --------
        >>> Z, y = np.array([[1.0, 1.0], [1.0, 3.0]]), np.array([5.0, 7.0])
        >>> sums = OwnSums(Z.T @ Z, Z.T @ y, float(y @ y))
        >>> own = LevelSums(Z.sum(axis=0), y.sum(), 2.0)
        >>> own.reduced(sums, 0.0).gram, own.reduced(sums, 0.0).moment  # the products of what is centred
        (array([[0., 0.],
               [0., 2.]]), array([0., 2.]))
        """
        if ratio == NO_LEVEL:
            return sums
        s, t, n = self.features, np.atleast_1d(self.responses), self._divisor(ratio)
        moment = np.multiply.outer(s, self.responses) / n
        return OwnSums(sums.gram - np.outer(s, s) / n, sums.moment - moment, sums.response_energy - float(t @ t) / n)

    def reduced_rows(self, rows: Array, root: Array, ratio: float) -> Array:
        """Return rows whose sums of products are those of `rows` without the level.

        They are (I - c r r') rows with the roots r of the weights, where (I - c r r')^2 = I - r r' / (n + lambda).

        Examples
        --------
        >>> rows, root = np.array([[1.0, 1.0, 5.0], [1.0, 3.0, 7.0]]), np.ones(2)
        >>> own = LevelSums(rows[:, :2].sum(axis=0), rows[:, 2].sum(), 2.0)
        >>> own.reduced_rows(rows, root, 0.0)  # as in `reduced`
        array([[ 0., -1., -1.],
               [ 0.,  1.,  1.]])
        """
        if ratio == NO_LEVEL or not self.n_rows:
            return rows
        c = (1 - np.sqrt(1 - self.n_rows / self._divisor(ratio))) / self.n_rows
        return np.asarray(rows - np.multiply.outer(c * root, root @ rows))

    def leverages(self, features: Array, ratio: float) -> tuple[Array, float]:
        """Return what takes the place of features in leverages, z - s / (n + lambda), and 1 / (n + lambda), to add.

        The leverage of a row in the regression with levels is z~'A^-1 z~ + 1 / (n + lambda), where A is the sum of all
        sites' reduced Z'Z and the ridge: the diagonal of the hat matrix, by block inversion.
        """
        if ratio == NO_LEVEL:
            return features, 0.0
        return features - self.features / self._divisor(ratio), 1 / self._divisor(ratio)


def constant_of(feature_map: FeatureMap) -> int:
    """Return the place of the constant among features; ValueError where there is none."""
    return int(_flat(feature_map).tolist().index(True))


def has_constant(feature_map: FeatureMap) -> bool:
    """Return whether a constant is among features."""
    return bool(_flat(feature_map).any())


def _flat(feature_map: FeatureMap) -> np.ndarray:
    return np.asarray(~feature_map.frequencies.any(axis=0) & (feature_map.phases == 0))


def with_constant(feature_map: FeatureMap) -> FeatureMap:
    """Return features with a constant after them, of the same mean square."""
    size = np.sqrt(np.mean(feature_map.amplitudes**2) / 2)
    return FeatureMap(
        np.hstack([feature_map.frequencies, np.zeros((feature_map.n_columns, 1))]),
        np.append(feature_map.phases, 0.0),
        np.append(feature_map.amplitudes, size),
    )


N_CANDIDATES = 4
_RIDGES = tuple(10.0 ** np.arange(-6, 1.1, 1.0))  # of Z'Z / n
_PRIOR_ROWS = 20.0
_ROUNDING = 1e-12  # of the trace of products
_PREFIX = "local_"

Predictor = Callable[[Array], Array]
"""Predicts rows, shape (n_rows, n_outputs)."""


class LocalPart(Protocol):
    """Makes a site's prediction of what its other parts predict."""

    def __call__(self, X: Array, others: Array) -> Array:
        """Return the prediction for scaled rows, of the shape of `others`, which the other parts predict for them."""

    def tensors(self) -> dict[str, Array]:
        """Return the arrays that a model file stores."""


@dataclass(frozen=True, eq=False)
class TreesPart:
    """share * others + trees(x, others) + (1, x)'slopes."""

    share: float
    trees: TreeEnsemble  # it reads a scaled row, and after its columns what the other parts predict
    slopes: Array  # shape (1 + n_columns, n_outputs)

    def __call__(self, X: Array, others: Array) -> Array:
        """Return the prediction for scaled rows."""
        own = self.trees.predict(_read(X, others)) + _on_plane(X, self.slopes)
        return np.asarray(self.share * others + own.reshape(others.shape))

    def tensors(self) -> dict[str, Array]:
        """Return the arrays that a model file stores."""
        own = {f"{_PREFIX}share": np.array([self.share]), f"{_PREFIX}slopes": self.slopes}
        return own | self.trees.tensors(_PREFIX)


@dataclass(frozen=True, eq=False)
class LearntPart:
    """share * others + g(x, others) + h(x) + (1, x)'slopes, with means g and h of regressors that the user brought."""

    share: float
    of_residuals: Predictor  # of_residuals, of_responses: g and h
    of_responses: Predictor
    slopes: Array  # shape (1 + n_columns, n_outputs)

    def __call__(self, X: Array, others: Array) -> Array:
        """Return the prediction for scaled rows."""
        own = self.of_residuals(_read(X, others)) + self.of_responses(X) + _on_plane(X, self.slopes)
        return np.asarray(self.share * others + own.reshape(others.shape))

    def tensors(self) -> dict[str, Array]:
        """Refuse."""
        raise ModelFileError(
            "the local part is a regressor that was given as local=, and model files hold no Python objects: save the "
            'model without it, as in model.without_local().save(path), fit with local="auto", or keep the estimator '
            "with joblib, where you trust the file"
        )


@dataclass(frozen=True, eq=False)
class WavesPart:
    """others + theta'z(x, others), or others + theta'z(x): the local part of model files of release 0.2 and before."""

    feature_map: FeatureMap
    coefficients: Array  # shape (n_features,) or (n_features, n_outputs)

    def __call__(self, X: Array, others: Array) -> Array:
        """Return the prediction for scaled rows."""
        read = X if self.feature_map.n_columns == X.shape[1] else _read(X, others)
        return np.asarray(others + self.feature_map.apply(read, self.coefficients))

    def tensors(self) -> dict[str, Array]:
        """Return the arrays that a model file stores."""
        waves = self.feature_map
        arrays = {"frequencies": waves.frequencies, "phases": waves.phases, "amplitudes": waves.amplitudes}
        return {f"{_PREFIX}{name}": array for name, array in (arrays | {"coefficients": self.coefficients}).items()}


def from_tensors(tensors: Mapping[str, Array], n_columns: int, outputs: tuple[int, ...]) -> LocalPart | None:
    """Return the local part among a file's tensors, for outputs of shape () or (n_outputs,); None without one."""
    n_outputs = int(np.prod(outputs, dtype=int))
    if f"{_PREFIX}frequencies" in tensors:
        arrays = [tensors[f"{_PREFIX}{name}"] for name in ("frequencies", "phases", "amplitudes", "coefficients")]
        size = arrays[0].shape[-1:]
        if arrays[0].shape[0] not in (n_columns, n_columns + n_outputs) or arrays[3].shape != size + outputs:
            raise ModelFileError("the shapes of the local part do not fit each other")
        if not arrays[1].shape == arrays[2].shape == size:
            raise ModelFileError("the shapes of the local part do not fit each other")
        return WavesPart(FeatureMap(*arrays[:3]), arrays[3])
    if f"{_PREFIX}share" not in tensors:
        return None
    trees = TreeEnsemble.from_tensors(tensors, _PREFIX, n_columns=n_columns + n_outputs, n_outputs=n_outputs)
    slopes = tensors[f"{_PREFIX}slopes"]
    if tensors[f"{_PREFIX}share"].shape != (1,) or slopes.shape != (1 + n_columns, n_outputs):
        raise ModelFileError("the shapes of the local part do not fit each other")
    return TreesPart(float(tensors[f"{_PREFIX}share"][0]), trees, slopes)


def _read(X: Array, others: Array) -> Array:
    return np.column_stack((X, others))


def _on_plane(X: Array, slopes: Array) -> Array:
    return np.asarray(slopes[0] + X @ slopes[1:])


@dataclass(frozen=True, eq=False)
class Fit:
    """A learner fitted to some folds of a site's rows."""

    folds: Mapping[int, Any]  # without the rows of each fold
    out_of_fold: Array  # shape (n_rows, n_outputs): what a row's fold predicts for it

    def judged(self, X: Array, fold_of: np.ndarray) -> "Fit":
        """Return the same with what is predicted out of fold for other rows in their places."""
        found = np.empty_like(self.out_of_fold)
        for fold, one in self.folds.items():
            held = fold_of == fold
            found[held] = one.predict(X[held]).reshape(-1, found.shape[1])
        return replace(self, out_of_fold=found)


@dataclass(frozen=True, eq=False)
class LocalFits:
    """The candidates for a site's prediction."""

    others: Array  # shape (n_rows, n_outputs): what the other parts would predict for each row if they had not seen it
    of_residuals: Fit
    of_responses: Fit
    ridge: Fit

    @classmethod
    def fitted(
        cls,
        X: Array,
        y: Array,
        weight: Array | None,
        others: Array,
        with_row: Array,
        fold_of: np.ndarray,
        learner: Any,
        seed: int,
    ) -> "LocalFits":
        """Fit the learner to what the other parts leave of scaled rows' responses, and to the responses.

        It is boosted trees ("auto"), or a regressor that is cloned for each fold. `others` is what the other parts
        would predict for each row if they had not seen it, `with_row` what they predict.
        """
        y, others = y.reshape(len(y), -1), others.reshape(len(y), -1)
        fit = _fit_trees if isinstance(learner, str) else _fit_learner
        of_residuals = fit(learner, _read(X, others), y - others, weight, fold_of, seed, about_zero=True)
        return cls(
            others,
            of_residuals.judged(_read(X, with_row), fold_of),
            fit(learner, X, y, weight, fold_of, seed, about_zero=False),
            _fit_ridge(X, y, weight, fold_of),
        )

    def predictions(self) -> Array:
        """Return what each candidate predicts for rows that it has not seen, shape (4, n_rows, n_outputs)."""
        corrected = self.others + self.of_residuals.out_of_fold
        return np.array([self.others, corrected, self.of_responses.out_of_fold, self.ridge.out_of_fold])

    def part(self, weights: Array, fold: int | None = None) -> LocalPart | None:
        """Return the mean by weights (4,) as a local part, of all folds or of the fits without one; None if it is f."""
        first, second, third, fourth = (float(weight) for weight in weights)
        if first == 1:
            return None
        g, h, planes = (_folds(fit, fold) for fit in (self.of_residuals, self.of_responses, self.ridge))
        slopes = np.asarray(fourth * np.mean(planes, axis=0))
        if all(isinstance(one, TreeEnsemble) for one in (*g, *h)):
            parts = [one.scaled(second / len(g)) for one in g] + [one.scaled(third / len(h)) for one in h]
            return TreesPart(first + second, TreeEnsemble.joined(parts), slopes)
        return LearntPart(first + second, _mean(g, second), _mean(h, third), slopes)


def _folds(fit: Fit, fold: int | None) -> list[Any]:
    return [fit.folds[fold]] if fold is not None and fold in fit.folds else list(fit.folds.values())


def _mean(predictors: Sequence[Any], weight: float) -> Predictor:
    return partial(_mean_of, predictors, weight)  # which can be pickled, as a function in here cannot


def _mean_of(predictors: Sequence[Any], weight: float, X: Array) -> Array:
    found = [one.predict(X).reshape(len(X), -1) for one in predictors]
    return np.asarray(weight * np.mean(found, axis=0))


def _folds_of(fold_of: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield each fold, its rows, and the others: all rows where there is one fold alone."""
    for fold in np.unique(fold_of):
        held = fold_of == fold
        yield int(fold), held, ~held if (~held).any() else held


def _fit_trees(
    learner: Any, X: Array, y: Array, weight: Array | None, fold_of: np.ndarray, seed: int, *, about_zero: bool
) -> Fit:
    """Return boosted trees; where rows are too few for a split, a constant: 0, or the mean of the other folds."""
    fitted = fit_trees(X, y, weight, fold_of, seed=seed)
    if fitted is not None:
        return Fit(fitted.folds, fitted.out_of_fold)
    weights = np.ones(len(y)) if weight is None else weight
    folds, out_of_fold = {}, np.empty_like(y)
    for fold, held, _ in _folds_of(fold_of):
        left = weights * ~held if np.any(weights * ~held) else weights
        mean = np.zeros(y.shape[1]) if about_zero else np.average(y, axis=0, weights=left)
        folds[fold], out_of_fold[held] = TreeEnsemble.constant(mean), mean
    return Fit(folds, out_of_fold)


def _fit_learner(
    learner: Any, X: Array, y: Array, weight: Array | None, fold_of: np.ndarray, seed: int, *, about_zero: bool
) -> Fit:
    """Return clones of a regressor, each fitted to the rows of all folds but one."""
    from sklearn.base import clone
    from sklearn.utils.validation import has_fit_parameter

    folds, out_of_fold = {}, np.empty_like(y)
    if weight is not None and not has_fit_parameter(learner, "sample_weight"):
        raise SettingsError(f"rows have weights, which local={learner!r} does not take: give a regressor that does")
    for fold, held, kept in _folds_of(fold_of):
        one = clone(learner)
        if "random_state" in one.get_params() and one.get_params()["random_state"] is None:
            one.set_params(random_state=seed)
        weights = {} if weight is None else {"sample_weight": weight[kept]}
        one.fit(X[kept], y[kept].ravel() if y.shape[1] == 1 else y[kept], **weights)
        folds[fold], out_of_fold[held] = one, one.predict(X[held]).reshape(-1, y.shape[1])
    return Fit(folds, out_of_fold)


def _fit_ridge(X: Array, y: Array, weight: Array | None, fold_of: np.ndarray) -> Fit:
    """Return ridge regressions on the columns, each of the rows of all folds but one."""
    root = np.ones((len(y), 1)) if weight is None else np.sqrt(weight)[:, None]
    Z = np.column_stack((np.ones(len(y)), X))
    folds, out_of_fold = {}, np.empty_like(y)
    for fold, held, kept in _folds_of(fold_of):
        features, responses = root[kept] * Z[kept], root[kept] * y[kept]
        sums = OwnSums(features.T @ features, features.T @ responses, float(np.vdot(responses, responses)))
        path = path_with_intercept(sums, 0, float(np.sum(root[kept] ** 2)), _RIDGES, int(kept.sum()))
        best = min(path, key=lambda fit: fit.error)
        folds[fold], out_of_fold[held] = best.coefficients, Z[held] @ best.coefficients
    return Fit(folds, out_of_fold)


def error_products(predictions: Array, y: Array, weight: Array | None) -> Array:
    """Return the products of the candidates' errors, summed over rows and outputs, shape (4, 4).

    Predictions are of shape (4, n_rows, n_outputs), y of (n_rows, n_outputs), weights of (n_rows,).
    """
    errors = predictions - y
    weighted = errors if weight is None else errors * weight[:, None]
    return np.asarray(np.einsum("ano,bno->ab", weighted, errors))


def weights_of(products: Array, prior: Array | None = None, of_prior: Array | None = None) -> Array:
    """Return the weights of candidates, non-negative and with the sum 1, whose mean has the least squared error.

    `products` are as from `error_products`. The weights stay near to `prior`, if there is one, which is worth
    `_PRIOR_ROWS` rows; `of_prior` are the products per row of the rows that it is from.
    """
    n = len(products)
    strength = 0.0 if of_prior is None else _PRIOR_ROWS * float(np.trace(of_prior)) / n
    matrix = products + strength * np.eye(n)
    size_of = max(float(np.trace(matrix)), np.finfo(float).tiny)
    matrix, wanted = matrix / size_of, np.zeros(n) if prior is None else strength / size_of * prior
    best, least, regular = np.full(n, 1 / n), np.inf, matrix + _ROUNDING * np.eye(n)  # candidates may be equal
    for size in range(1, n + 1):  # the support of the best weights is one of fifteen
        supports = np.array(list(combinations(range(n), size)))
        systems = np.ones((len(supports), size + 1, size + 1))
        systems[:, :-1, :-1] = regular[supports[:, :, None], supports[:, None, :]]
        systems[:, -1, -1] = 0
        sides = np.column_stack([wanted[supports], np.ones(len(supports))])
        found = np.linalg.solve(systems, sides[:, :, None])[:, :-1, 0]
        weights = np.zeros((len(supports), n))
        np.put_along_axis(weights, supports, found, axis=1)
        errors = np.where(found.min(axis=1) >= 0, ((weights @ matrix - 2 * wanted) * weights).sum(axis=1), np.inf)
        if errors.min() < least - _ROUNDING:  # of equal ones those of fewer candidates
            best, least = weights[errors.argmin()], float(errors.min())
    return best


_WEIGHT, _LEVEL = "home_own_weight", "home_level"


@dataclass(frozen=True, eq=False)
class Home:
    """The weight of the site's own agreed model, its level, and its local part."""

    own_weight: float  # the site's neighbours share the rest equally
    # shape () or (n_outputs,): what the site's responses are above or below all others', in units of scaled responses
    level: Array
    local: LocalPart | None = None

    def finished(self, X: Array, others: Array) -> Array:
        """Return the prediction for scaled rows, from what the members predict for them with the own weight."""
        found = others + self.level
        return found if self.local is None else self.local(X, found)

    def tensors(self) -> dict[str, Array]:
        """Return the arrays that a model file stores."""
        local = {} if self.local is None else self.local.tensors()
        return {_WEIGHT: np.array([self.own_weight]), _LEVEL: np.ravel(self.level)} | local

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Array], n_columns: int, outputs: tuple[int, ...]) -> "Home | None":
        """Return what a file has of it, for outputs of shape () or (n_outputs,); None where it has nothing."""
        if _WEIGHT not in tensors:
            return None
        if tensors[_WEIGHT].shape != (1,) or tensors[_LEVEL].shape != (int(np.prod(outputs, dtype=int)),):
            raise ModelFileError("the level or the own weight of the site has another shape than its model")
        level = tensors[_LEVEL].reshape(outputs)
        return cls(float(tensors[_WEIGHT][0]), level, from_tensors(tensors, n_columns, outputs))
