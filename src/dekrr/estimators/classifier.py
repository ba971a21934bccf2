"""Classification by least squares on class codes, with probabilities that are calibrated on held-out rows."""

from dataclasses import field, fields
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score, log_loss
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from ..classes import codes, scores
from ..errors import DataError, SettingsError, warn
from ..intervals import too_few_text
from ..labels import factorise
from ..model import SiteClassifier, margins, uncalibrated
from ..protocols.calibration import keep_classes
from ..rules import is_missing
from ..settings import EstimatorSettings
from ..tables.columns import is_frame
from ..types import Array
from . import site_regressor, tables
from .model_set import FitSummary, matrix_of_errors, summary_of
from .network import NetworkRun
from .regressor import DeKRRRegressor
from .site_regressor import estimator, setting, unchanged_by_failure
from .tables import tell_of_leaks

_NOT_OF_CLASSES = ("intervals",)
_OF_CLASSES = ("classes",)
_FROM_REGRESSOR = (
    *("sites_", "graph_", "n_rows_", "n_rounds_", "traffic_", "sigma_", "alpha_", "consensus_"),
    *("tuning_", "validation_", "left_out_", "contributions_", "column_scales_"),
)


class _OfCodes(DeKRRRegressor):
    """The regressor of class codes: its second training is for probabilities."""

    _has_codes = True
    _keep_of_second = staticmethod(keep_classes)

    def _keep_run(self, run: NetworkRun, *others: Any, **more: Any) -> None:
        super()._keep_run(run, *others, **more)
        self.class_calibrations_ = {
            label: outcome.classes for label, outcome in run.outcomes.items() if outcome.classes is not None
        }

    def _finds_intervals(self, *, tuned: bool) -> bool:
        return self.privacy is None


_OfCodes.__name__ = "DeKRRClassifier"  # in messages and in the headers of models


def _with_parameters(kind: type[Any]) -> Any:
    """Give a classifier the parameters of the regressor, but for those that make no sense for classes, and its own."""
    kind.__annotations__ = dict(getattr(kind, "__annotations__", {}))
    for each in fields(DeKRRRegressor):
        if each.name not in _NOT_OF_CLASSES:
            kind.__annotations__[each.name] = Any
            setattr(kind, each.name, field(default=each.default, metadata=each.metadata))
    for name in _OF_CLASSES:
        kind.__annotations__[name] = Any
        setattr(kind, name, setting(EstimatorSettings, name))
    return estimator(kind)


@_with_parameters
class DeKRRClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classification by decentralised kernel ridge regression on class codes.

    Each class is an output: 1 for its own rows, 0 for the others (two classes need only one output). All sites train
    together as `DeKRRRegressor` does, with the same sums. They then train once more without a fifth of the rows. On the
    rows left out they find, by sums over the spanning tree, how predictions become probabilities: a slope, and an
    offset per class, with the least log loss.

    It is least squares, not logistic regression: it also counts as an error if a row lies far on the right side of a
    boundary. The classes are public. Every site learns the names of all classes.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    models_ : dict of site to SiteClassifier
    regressor_ : DeKRRRegressor
        Of the class codes.
    validation_ : dict of str to HeldOutErrors, or None
        Under "accuracy" and "log loss", those of a second training on the rows that it left out. The probabilities were
        calibrated on the same rows.
    sites_, graph_, n_rows_, n_rounds_, traffic_, sigma_, alpha_, consensus_, tuning_, left_out_, contributions_
        As in `DeKRRRegressor`.
    column_scales_ : ndarray of shape (n_columns,)
        As in `DeKRRRegressor`.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Where the columns had names.

    Examples
    --------
    >>> import numpy as np
    >>> from dekrr import DeKRRClassifier
    >>> from dekrr.data import make_sites
    >>> X, y, sites = make_sites(n_sites=4, random_state=0)
    >>> classes = np.where(y > np.median(y), "high", "low")
    >>> classifier = DeKRRClassifier(n_features=30, sigma=0.3, alpha=1e-4, consensus=1.0, random_state=0)
    >>> classifier = classifier.fit(X, classes, sites=sites)
    >>> classifier.score(X, classes, sites=sites) > 0.8
    True
    >>> classifier.predict_proba(X, sites=sites).shape
    (240, 2)
    """

    # scikit-learn's metadata routing passes sites on without a request
    __metadata_request__fit = MappingProxyType({"sites": True, "columns": False})
    __metadata_request__predict = MappingProxyType({"sites": True})
    __metadata_request__predict_proba = MappingProxyType({"sites": True})
    __metadata_request__decision_function = MappingProxyType({"sites": True})
    __metadata_request__score = MappingProxyType({"sites": True, "metric": False, "loss": False})

    def fit(self, X: Any, y: Any = None, sites: Any = None, columns: Any = None, sample_weight: Any = None) -> Self:
        """Train a model for every site.

        Parameters
        ----------
        X : frame, or array-like of shape (n_rows, n_columns)
        y : array-like of shape (n_rows,), or str
            The class of every row: words or numbers; or the name of the column that has it.
        sites, columns, sample_weight : optional
            As in `DeKRRRegressor.fit`.
        """
        if y is None:
            raise DataError("DeKRRClassifier requires y to be passed, but the target y is None")
        target = y if isinstance(y, str) else None
        if is_frame(X):
            X, y, sites, sample_weight = tables.named(X, y, sites, columns, sample_weight)
            X = tables.with_words_as_names(X)
            tell_of_leaks(X, y, None)
        elif tables.trains_from_sources(X, y):
            raise DataError(
                "a classifier takes arrays and frames, not files or mappings: read them into one frame first, as in "
                'fit(pandas.read_csv(path), "kind", sites="station")'
            )
        y = column_or_1d(y, warn=True)
        _refuse_bad_classes(y)
        weights = tables.weights_of(sample_weight, len(y))
        counted = y if weights is None else y[weights > 0]
        site_regressor.check(self)
        with unchanged_by_failure(self):
            self.classes_ = self._classes_of(counted)
            if len(self.classes_) < 2:
                there = f"one class, {self.classes_.tolist()[0]!r}" if len(self.classes_) else "no row, and so no class"
                raise DataError(f"there is {there}: a classifier needs rows of at least two classes")
            places = np.searchsorted(self.classes_, y)
            places = np.minimum(places, len(self.classes_) - 1)  # classes of rows of weight 0 alone
            given = self.get_params(deep=False)
            self.regressor_ = _OfCodes(**{name: given[name] for name in given if name not in _OF_CLASSES})
            self.regressor_.fit(X, codes(places, len(self.classes_)), sites, sample_weight=weights)
            self._target = target
            self._keep()
        return self

    def _classes_of(self, y: np.ndarray) -> np.ndarray:
        """Return the classes in their order: those that are named, or else those of rows."""
        found = np.unique(y)
        if self.classes is None:
            if self.privacy is not None:
                raise SettingsError(
                    "with privacy, name the classes, as in classes=['no', 'yes']: a class that one row alone has would "
                    "show in the models, and the budget does not pay for that"
                )
            return found
        named = np.unique(np.asarray(self.classes))
        unknown = sorted(set(found.tolist()) - set(named.tolist()), key=str)
        if unknown:
            raise DataError(f"rows have the classes {unknown}, which are not among classes={named.tolist()}")
        return named

    def _keep(self) -> None:
        """Set what came of the regressor's training."""
        regressor = self.regressor_
        for name in (*_FROM_REGRESSOR, "n_features_in_", "feature_names_in_"):
            if hasattr(regressor, name):
                setattr(self, name, getattr(regressor, name))
            elif hasattr(self, name):
                delattr(self, name)
        found = regressor.class_calibrations_
        plain = uncalibrated(len(self.classes_))
        self.models_ = {
            label: SiteClassifier.of(model, self.classes_, found.get(label) or plain, self._target)
            for label, model in regressor.models_.items()
        }

    def fit_summary(self) -> FitSummary:
        """Return what came of the fit, as a table: print it, or have a notebook show it."""
        check_is_fitted(self)
        return summary_of(self.regressor_)

    def partial_fit(
        self, X: Any, y: Any, sites: Any = None, edges: Any = (), sample_weight: Any = None, classes: Any = None
    ) -> Self:
        """Update a fitted network with new rows, of classes that it knows; see `DeKRRRegressor.partial_fit`.

        Parameters
        ----------
        edges : sequence of (site, site)
        classes : array-like of shape (n_classes,), optional
            All classes: for the first call, whose rows must have all of them.
        """
        if not hasattr(self, "models_"):
            if classes is not None and set(np.unique(classes)) != set(np.unique(y)):
                raise DataError("the first rows must have all classes: fit with more rows")
            return self.fit(X, y, sites, sample_weight=sample_weight)
        y = column_or_1d(y, warn=True)
        unknown = sorted(set(np.unique(y).tolist()) - set(self.classes_.tolist()), key=str)
        if unknown:
            raise DataError(f"unknown classes {unknown}: the fit had {self.classes_.tolist()}; fit again")
        places = np.searchsorted(self.classes_, y)
        given = codes(places, len(self.classes_))
        self.regressor_.partial_fit(X, given, sites, edges, sample_weight)
        self._keep()
        return self

    def _found(self, X: Any, sites: Any) -> tuple[Array, Array]:
        """Return logits and probabilities by the models of the rows' sites."""
        check_is_fitted(self)
        found = scores(self.regressor_.predict(X, sites))
        platt = next(iter(self.models_.values())).class_calibration.platt
        return platt.logits(found), platt.probabilities(found)

    def predict_proba(self, X: Any, sites: Any = None) -> Array:
        """Return the probability of each of `classes_`, shape (n_rows, n_classes), by each row's own site's model."""
        return self._found(X, sites)[1]

    def decision_function(self, X: Any, sites: Any = None) -> Array:
        """Return logits, shape (n_rows, n_classes); of two classes their difference, shape (n_rows,)."""
        return margins(self._found(X, sites)[0])

    def predict(self, X: Any, sites: Any = None) -> np.ndarray:
        """Return the most probable class of each row, shape (n_rows,)."""
        probabilities = self._found(X, sites)[0]
        return np.asarray(self.classes_[np.argmax(probabilities, axis=1)])

    def predict_set(self, X: Any, sites: Any = None, coverage: float = 0.9) -> np.ndarray:
        """Return which classes are in each row's prediction set, a mask of shape (n_rows, n_classes).

        The set of a row that is drawn as its site's rows were has its class with a chance of at least `coverage`. Where
        a site held out too few rows for the coverage, its sets have all classes, and one warning names all such sites.
        Nothing is promised for a row of no known site (`sites` is None, or ``unknown_sites="mean"``): its set is the
        largest by what any site learnt.
        """
        X, _, sites, _ = self._named(X, None, sites, None)
        probabilities = self.predict_proba(X, sites)
        least = {label: model.class_calibration.least_probability(coverage) for label, model in self.models_.items()}
        labels, index = (
            ([None], np.zeros(len(probabilities), dtype=int)) if sites is None else factorise(sites, len(probabilities))
        )
        limits = np.array([least.get(label, min(least.values())) for label in labels])
        everyone = not set(labels) <= set(least)
        without = [label for label, limit in least.items() if not limit and (everyone or label in labels)]
        if without:
            warn(too_few_text(without, coverage, "these prediction sets have all classes"))
        return np.asarray(probabilities >= limits[index][:, None])

    def score(
        self, X: Any, y: Any, sites: Any = None, metric: str = "own", loss: str = "accuracy", sample_weight: Any = None
    ) -> float:
        """Return the accuracy, or the log loss.

        Parameters
        ----------
        metric : {"own", "union"}, default="own"
            "own" predicts each row by its own site's model. "union" has every site's model predict all rows and takes
            the mean over sites.
        loss : {"accuracy", "log_loss"}, default="accuracy"
        """
        if metric not in ("own", "union") or loss not in ("accuracy", "log_loss"):
            raise SettingsError(
                f'metric is "own" or "union" and loss "accuracy" or "log_loss"; got {metric!r}, {loss!r}'
            )
        check_is_fitted(self)
        X, y, sites, sample_weight = self._named(X, y, sites, sample_weight)
        if metric == "own":
            return self._measured(y, self._found(X, sites)[1], loss, sample_weight)
        found = [model.predict_proba(X, elsewhere=True) for model in self.models_.values()]
        return float(np.mean([self._measured(y, each, loss, sample_weight) for each in found]))

    def cross_site_errors(self, X: Any, y: Any, sites: Any) -> Any:
        """Return the log loss of each site's model on each site's rows; see `DeKRRRegressor.cross_site_errors`."""
        check_is_fitted(self)
        X, y, sites, _ = self._named(X, y, sites, None)
        y, encoded = np.asarray(y), self.regressor_._checked(X)

        def error_of(rows: np.ndarray, model: SiteClassifier, X: Array, *, elsewhere: bool) -> float:
            calibration = model.class_calibration.elsewhere if elsewhere else None
            platt = (calibration or model.class_calibration).platt
            found = platt.probabilities(scores(model.predict_encoded(X[rows], elsewhere=elsewhere)))
            return self._measured(y[rows], found, "log_loss", None)

        return matrix_of_errors(self.models_, encoded, sites, error_of)

    def _named(self, X: Any, y: Any, sites: Any, weight: Any) -> tables.Named:
        """Return rows, and as arrays what was given by the names of a frame's columns."""
        check_is_fitted(self)
        if is_frame(X) and any(isinstance(given, str) for given in (y, sites, weight)):
            known = [str(name) for name in self.feature_names_in_] if hasattr(self, "feature_names_in_") else None
            return tables.named(X, y, sites, known, weight)
        if isinstance(y, str):
            raise DataError(
                f"y={y!r} is the name of a column, but the rows are not a frame: give the class of every row"
            )
        return tables.Named(X, y, sites, weight)

    def _measured(self, y: Any, probabilities: Array, loss: str, weight: Any) -> float:
        if loss == "log_loss":
            return float(log_loss(y, probabilities, labels=self.classes_, sample_weight=weight))
        return float(accuracy_score(y, self.classes_[np.argmax(probabilities, axis=1)], sample_weight=weight))


def _refuse_bad_classes(y: np.ndarray) -> None:
    """Refuse rows without a class, and numbers that are no classes."""
    missing = [row for row, value in enumerate(y.tolist()) if is_missing(value)]
    if missing and y.dtype.kind == "O":
        raise DataError(
            f"Input y contains NaN: row {missing[0]} has no class ({len(missing)} in all); drop such rows, or give "
            'them a class of their own, such as "unknown"'
        )
    try:
        check_classification_targets(y)
    except ValueError as error:
        if "continuous" not in str(error):
            raise
        raise DataError(
            f"Unknown label type: continuous. The column has numbers with fractions, such as {y[0]:g}: DeKRRRegressor "
            "predicts numbers, and a classifier takes words or whole numbers"
        ) from None
