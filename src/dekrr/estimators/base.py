"""The shape that all regressors share: rows in, a model per site out.

`fit(X, y, sites=labels)` makes a node procedure of every site's rows and has a network run them. The procedures are
those that a deployment runs.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted, validate_data

from ..errors import DataError, SettingsError
from ..labels import factorise, listed, places_of
from ..metrics import relative, rse
from ..model import Header, KernelModel, SiteModel
from ..rows import Rows
from ..settings import EstimatorSettings, FeatureSettings, GuardSettings
from ..types import Array
from . import arrays, parameters, streams
from .network import seed_of
from .parameters import estimator, setting


@estimator
class SiteRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """What all regressors share; a subclass has a method `_fit`."""

    alpha: Any = setting(GuardSettings, "alpha")
    sigma: Any = setting(FeatureSettings, "sigma")
    kernel: Any = setting(FeatureSettings, "kernel")
    scale: str | None = setting(GuardSettings, "scale")
    n_sites: int = setting(EstimatorSettings, "n_sites")
    min_rows: int = setting(GuardSettings, "min_rows")
    random_state: Any = setting(EstimatorSettings, "random_state")

    def fit(self, X: Any, y: Any = None, sites: Any = None, columns: Any = None) -> Self:
        """Train a model for every site.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns), source, or mapping of site to source
            A source is a path or something else that rows are read from in batches; see `dekrr.rows.sources`.
        y : array-like of shape (n_rows,), or str
            For sources, the name of the response's column. Batches of pairs X, y need none.
        sites : array-like of shape (n_rows,), or str, optional
            The site of every row: any hashable labels. None deals the rows out to `n_sites` sites, as many as
            get `min_rows` each. For one source, the name of the column that has the site.
        columns : sequence of str, optional
            For sources, the columns to predict from; by default all others of the first site's source.
        """
        parameters.check(self)
        with unchanged_by_failure(self):
            seed = seed_of(self.random_state)
            rows = self._read(X, y, sites, seed, self._dealt, columns)
            self.sites_: list[Hashable] = list(rows)
            self._fit(rows, seed)
            self.n_rows_ = {label: own_rows.n_rows for label, own_rows in rows.items()}
        return self

    @abstractmethod
    def _fit(self, rows: Mapping[Hashable, Rows], seed: int) -> None:
        """Train on the rows of each site, and set `models_`."""

    def _dealt(self, n_rows: int) -> np.ndarray:
        """Return a site for each of rows that come without."""
        return np.arange(n_rows) % min(self.n_sites, max(1, n_rows // self.min_rows))

    def _read(
        self,
        X: Any,
        y: Any,
        sites: Any,
        seed: int,
        deal: Callable[[int], Sequence[Hashable] | np.ndarray],
        columns: Any = None,
        *,
        first: bool = True,
    ) -> dict[Hashable, Rows]:
        """Return the rows of each site; the `first` ones say what columns there are."""
        if streams.trains_from_sources(X, y):
            sources = streams.open_sources(X, y, sites)
            if first:
                self._set_columns(streams.columns_of(next(iter(sources.values())), columns, (y, sites)))
            return streams.rows_of(sources, self._columns, y, sites, seed)
        if columns is not None:
            raise SettingsError("columns is for sources of rows; pick an array's columns before")
        if y is not None:
            arrays.refuse_missing_responses(y)
        X, y = validate_data(self, X, y, dtype=np.float64, reset=first, ensure_all_finite=False, y_numeric=True)
        labels, index = factorise(deal(len(y)) if sites is None else sites, len(y))
        arrays.refuse_bad_rows(X, self._columns, labels, index)
        return arrays.by_site(X, y.astype(np.float64), labels, index, seed)

    @property
    def _columns(self) -> streams.Columns:
        return list(self.feature_names_in_) if hasattr(self, "feature_names_in_") else int(self.n_features_in_)

    def _set_columns(self, columns: streams.Columns) -> None:
        """Set what scikit-learn calls features in."""
        self.n_features_in_ = columns if isinstance(columns, int) else len(columns)
        if hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        if not isinstance(columns, int):
            self.feature_names_in_: np.ndarray = np.array(columns, dtype=object)

    def _header(self, name: str, kernel: str, sigma: float) -> Header:
        """Return what the model file of a site says, but for what only some models have."""
        columns = self._columns
        return Header(
            site=name,
            method=type(self).__name__,
            kernel=kernel,
            sigma=sigma,
            columns=None if isinstance(columns, int) else [str(column) for column in columns],
            n_columns=self.n_features_in_,
            scaled=self.scale is not None,
        )

    def predict(self, X: Any, sites: Any = None) -> Array:
        """Predict each row by its own site's model.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns), source, or mapping of site to source
            Sources are those of `fit`; those of a mapping come one after another.
        sites : array-like of shape (n_rows,), or str, optional
            The site of every row, or the name of a source's column that has it. None takes the mean over all
            sites' models.

        Returns
        -------
        ndarray of shape (n_rows,)
        """
        if streams.predicts_from_sources(X, sites):
            check_is_fitted(self)
            parts = streams.parts_of(X, self._columns, None, sites)
            return np.concatenate([self._predict(part.X, part.labels) for part in parts])
        return self._predict(self._checked(X), sites)

    def _checked(self, X: Any) -> Array:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False, ensure_all_finite=False)
        arrays.refuse_bad_rows(X, self._columns)
        return np.asarray(X)

    def _predict(self, X: Array, sites: Any) -> Array:
        if sites is None:
            return np.asarray(np.mean([model.predict(X) for model in self._different_models()], axis=0))
        labels, index = factorise(sites, len(X))
        unknown = [label for label in labels if label not in self.models_]
        if unknown:
            raise DataError(
                f"unknown sites {unknown}: no rows of theirs were in fit; the sites are {listed(self.sites_)}. "
                "models_[site].predict(X) applies any site's model to any rows"
            )
        prediction = np.empty(len(X))
        for label, own in zip(labels, places_of(index, len(labels)), strict=True):
            prediction[own] = self.models_[label].predict(X[own])
        return prediction

    def _different_models(self) -> list[SiteModel | KernelModel]:
        """Return the models, each once: some methods end with one model for all sites."""
        return list({id(model): model for model in self.models_.values()}.values())

    def score(self, X: Any, y: Any, sites: Any = None, sample_weight: Any = None) -> float:
        """Return the coefficient of determination R^2 of `predict(X, sites)`; rows may have weights."""
        if isinstance(y, str):
            if sample_weight is not None:
                raise SettingsError("rows of sources cannot be weighted in score")
            return 1 - self.rse(X, y, sites)
        return float(r2_score(y, self.predict(X, sites), sample_weight=sample_weight))

    def rse(self, X: Any, y: Any, sites: Any = None, metric: str = "own") -> float:
        """Return the relative square error, sum (f - y)^2 / sum (y - mean y)^2.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns), source, or mapping of site to source
        y : array-like of shape (n_rows,), or str
            For sources, the name of the response's column.
        sites : array-like of shape (n_rows,), or str, optional
        metric : {"own", "union"}, default="own"
            "own" predicts each row by its own site's model. "union" has every site's model predict all the
            rows and takes the mean over sites: how good is a site's model where other sites' data live?
        """
        if metric not in ("own", "union"):
            raise SettingsError(f'unknown metric {metric!r}; choose "own" or "union"')
        if isinstance(y, str):
            return self._streamed_rse(X, y, sites, metric)
        if metric == "own":
            return rse(y, self.predict(X, sites))
        X = self._checked(X)
        different = {id(model): rse(y, model.predict(X)) for model in self._different_models()}
        return float(np.mean([different[id(model)] for model in self.models_.values()]))

    def _streamed_rse(self, X: Any, y: str, sites: Any, metric: str) -> float:
        check_is_fitted(self)
        models = list(self.models_.values()) if metric == "union" else []
        responses: list[Array] = []
        errors = np.zeros(max(len(models), 1))
        for rows, truth, labels in streams.parts_of(X, self._columns, y, sites):
            assert truth is not None
            responses.append(truth)
            if models:
                known = {id(model): model.predict(rows) for model in self._different_models()}
                predictions = [known[id(model)] for model in models]
            else:
                predictions = [self._predict(rows, labels)]
            errors += [np.sum((prediction - truth) ** 2) for prediction in predictions]
        return relative(float(errors.mean()), np.concatenate(responses))


@contextmanager
def unchanged_by_failure(regressor: Any) -> Iterator[None]:
    """Give an estimator all its attributes back where what is done to it fails."""
    before = dict(regressor.__dict__)
    try:
        yield
    except BaseException:
        regressor.__dict__.clear()
        regressor.__dict__.update(before)
        raise
