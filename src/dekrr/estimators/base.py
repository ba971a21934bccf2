"""The shape that all regressors share: rows in, a model per site out.

`fit(X, y, sites=labels)` makes a node procedure of every site's rows and has a network run them. The procedures are
those that a deployment runs.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted, check_X_y, validate_data

from ..errors import NotNumbersError, SettingsError, warn
from ..frames import Columns, is_frame
from ..labels import factorise, listed, places_of
from ..metrics import relative, rse
from ..model import Header
from ..networks.traffic import Traffic
from ..rows import Rows
from ..rows.batches import AnyColumns, count_of, counted, names_of
from ..rows.sources import is_mapping
from ..rows.spread import is_spread, predicted
from ..settings import EstimatorSettings, FeatureSettings, GuardSettings
from ..types import Array, Block
from . import arrays, frames, parameters, streams
from .advice import advise, share_of_few, tell_of_many_columns
from .intervals import intervals_of, tell_of_too_few
from .leaks import tell_of_leaks
from .many_models import different, mean_of, refuse_unknown
from .network import seed_of
from .parameters import estimator, setting
from .ranks import Here, only_here
from .summary import FitSummary, summary_of


@estimator
class SiteRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """What all regressors share; a subclass has a method `_fit`."""

    alpha: Any = setting(GuardSettings, "alpha")
    sigma: Any = setting(FeatureSettings, "sigma")
    kernel: Any = setting(FeatureSettings, "kernel")
    scale: str | None = setting(GuardSettings, "scale")
    n_sites: int = setting(EstimatorSettings, "n_sites")
    min_rows: int = setting(GuardSettings, "min_rows")
    unknown_sites: str = setting(EstimatorSettings, "unknown_sites")
    random_state: Any = setting(EstimatorSettings, "random_state")

    _has_codes: ClassVar[bool] = False  # responses are codes of classes, of which rare ones are far from the mean

    # scikit-learn's metadata routing passes sites on without a request
    __metadata_request__fit = MappingProxyType({"sites": True, "columns": False})
    __metadata_request__predict = MappingProxyType({"sites": True})
    __metadata_request__score = MappingProxyType({"sites": True})

    def fit(self, X: Any, y: Any = None, sites: Any = None, columns: Any = None, sample_weight: Any = None) -> Self:
        """Train a model for every site.

        Parameters
        ----------
        X : frame, array-like of shape (n_rows, n_columns), source, or mapping of site to source
            A frame of pandas or Polars, or a pyarrow table, may have numbers, booleans, words, categories, dates and
            missing values; `columns_` then has what they become. A source is a path or something else that rows are
            read from in batches; see `dekrr.rows.sources`.
        y : array-like of shape (n_rows,) or (n_rows, n_outputs), str, or list of str
            The response, or the name of its column in a frame or a source; several outputs, or their names. Batches of
            pairs X, y need none.
        sites : array-like of shape (n_rows,), or str, optional
            The site of every row: any hashable labels, or the name of the column that has them. None deals the rows
            out to `n_sites` sites, as many as get `min_rows` each; equal rows are merged first.
        columns : sequence of str, optional
            The columns of a frame or a source to predict from; by default all others, of the first site's source.
        sample_weight : array-like of shape (n_rows,), or str, optional
            How often each row counts, or the name of the column that has it. A row of weight 0 is left out.
        """
        parameters.check(self)
        with unchanged_by_failure(self):
            seed = seed_of(self.random_state)
            given = (X, y, sites, seed, partial(_dealt, self), columns, sample_weight)
            try:
                self._fit_rows(self._read(*given), seed)
            except NotNumbersError:  # of a source, whose named columns have to be looked at first
                if not (streams.trains_from_sources(X, y) and hasattr(self, "feature_names_in_")):
                    raise
                self._fit_rows(self._read(*given, encode=True), seed)
        if sites is None and len(self.sites_) > 1 and not is_mapping(X):
            warn(
                f"sites was left out, so the rows were dealt out to {len(self.sites_)} sites; give the site of every "
                'row, as in sites="station", or n_sites=1'
            )
        return self

    def _fit_rows(self, rows: Mapping[Hashable, Rows], seed: int) -> None:
        self.sites_: list[Hashable] = list(rows)
        tell_of_many_columns(count_of(self._reading))
        self._fit(rows, seed)
        self.models_: Any = Models(vars(self)["models_"])
        self.n_rows_ = {label: own_rows.n_rows for label, own_rows in rows.items()}
        if hasattr(self, "columns_") and hasattr(self, "traffic_"):
            self.traffic_: Traffic = self._traffic_of_columns.plus(self.traffic_)
        scales = getattr(self, "column_scales_", None)
        if hasattr(self, "columns_") and scales is not None and len(scales) == self.columns_.n_out:
            of_columns = self.columns_.per_column(scales)
            self.column_scales_: Array = of_columns / (of_columns.max() or 1.0)
        if not self._has_codes and getattr(self, "privacy", None) is None:  # a private fit keeps nothing of rows
            self._few = share_of_few(rows)
            advise(self)

    @abstractmethod
    def _fit(self, rows: Mapping[Hashable, Rows], seed: int) -> None:
        """Train on the rows of each site, and set `models_`."""

    def _read(
        self,
        X: Any,
        y: Any,
        sites: Any,
        seed: int,
        deal: Callable[[int], Sequence[Hashable] | np.ndarray],
        columns: Any = None,
        sample_weight: Any = None,
        *,
        first: bool = True,
        encode: bool = False,
    ) -> dict[Hashable, Rows]:
        """Return the rows of each site; the `first` ones say what columns there are, and what they become."""
        here = self._here(seed, first=first)
        if first:
            self._targets = [y] if isinstance(y, str) else list(y) if streams.is_names(y) else None
            self.__dict__.pop("columns_", None)
        if is_frame(X):
            frames.refuse_empty(X, y)
            given, (X, y, sites, sample_weight) = X, frames.named(X, y, sites, columns, sample_weight)
            if X is not given:  # columns have been picked by their names, which may be numbers
                X = frames.with_words_as_names(X)
            if first:
                tell_of_leaks(X, y, sites)
            if hasattr(self, "columns_") or (first and frames.needs_encoding(X)):
                sites = deal(len(X)) if sites is None else sites
                return only_here(self._read_frame(X, y, sites, seed, sample_weight, first=first), here)
        elif streams.trains_from_sources(X, y):
            sources = streams.open_sources(X, y, sites)
            if first:
                streams.refuse_weights(sample_weight)
                others = (*(y if streams.is_names(y) else [y]), sites, sample_weight)
                _set_columns(self, streams.columns_of(next(iter(sources.values())), columns, others))
            if encode:
                self._agree_on_columns(frames.facts_of_sources(sources, list(self.feature_names_in_), sites))
            return only_here(streams.rows_of(sources, self._reading, y, sites, seed, sample_weight, here), here)
        elif columns is not None:
            raise SettingsError(
                "columns are names, which a frame or a source of rows has; for an array, select the columns before "
                "the call"
            )
        if y is not None:
            arrays.refuse_missing_responses(y)
        with arrays.telling_of_words(X):
            X, y = validate_data(
                self, X, y, dtype=np.float64, reset=first, ensure_all_finite=False, y_numeric=True, multi_output=True
            )
        block = Block(X, y.astype(np.float64), arrays.weights_of(sample_weight, len(y)))
        if sites is None and np.isfinite(X).all():
            block = arrays.merged(counted(block))
        labels, index = factorise(deal(block.n_rows) if sites is None else sites, block.n_rows)
        arrays.refuse_bad_rows(block.X, self._columns, labels, index)
        return only_here(arrays.by_site(block.X, block.y, labels, index, seed, block.weight), here)

    def _here(self, seed: int, *, first: bool) -> Here | None:
        """Return the function that says which sites are driven in this process; None where all are."""
        return None

    def _read_frame(
        self, X: Any, y: Any, sites: Any, seed: int, sample_weight: Any, *, first: bool
    ) -> dict[Hashable, Rows]:
        """Return the rows of each site of a frame whose columns are to be made numbers."""
        labels, index = factorise(sites, len(X))
        if first:
            facts = frames.facts_of_frame(X, labels, index)
            _set_columns(self, list(next(iter(facts.values())).columns))
            self._agree_on_columns(facts)
        arrays.refuse_missing_responses(y)
        numbers, y = check_X_y(self.columns_.encode(X), y, dtype=np.float64, y_numeric=True, multi_output=True)
        weight = arrays.weights_of(sample_weight, len(y))
        return arrays.by_site(numbers, y.astype(np.float64), labels, index, seed, weight)

    def _agree_on_columns(self, facts: Mapping[Hashable, Any]) -> None:
        """Set what columns become, as all sites agree on it over the edges of the graph."""
        if getattr(self, "privacy", None) is not None:
            raise SettingsError(
                "with privacy, a frame must have columns of numbers without missing values: agreeing on categories "
                "and fill values would reveal something about rows that the promise does not cover. Encode the "
                "columns by public knowledge"
            )
        graph = getattr(self, "_graph", None)
        graph_of = None if graph is None else lambda rows: graph(rows, seed_of(self.random_state))
        self.columns_: Columns
        self._traffic_of_columns: Traffic
        self.columns_, self._traffic_of_columns = frames.agree(
            facts, self.min_rows, graph_of, getattr(self, "network", None)
        )
        self._others = frames.judged(facts, self.columns_)

    @property
    def _columns(self) -> streams.Columns:
        return list(self.feature_names_in_) if hasattr(self, "feature_names_in_") else int(self.n_features_in_)

    @property
    def _reading(self) -> AnyColumns:
        """How columns are read: by what they become, their names, or their number."""
        return self.columns_ if hasattr(self, "columns_") else self._columns

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the columns that models are made of: the user's, or what these become.

        Parameters
        ----------
        input_features : object
            Not used; it is there for scikit-learn.

        Returns
        -------
        ndarray of str
            For instance "temp", "wind=NE", "when hour sin".
        """
        check_is_fitted(self)
        if hasattr(self, "columns_"):
            return np.array(self.columns_.names_out, dtype=object)
        columns = self._columns
        return np.array([f"x{j}" for j in range(columns)] if isinstance(columns, int) else columns, dtype=object)

    def _header(self, name: str, kernel: str, sigma: float) -> Header:
        """Return what the model file of a site says, but for what only some models have."""
        columns = self._columns
        return Header(
            site=name,
            method=type(self).__name__,
            kernel=kernel,
            sigma=sigma,
            columns=None if isinstance(columns, int) else [str(column) for column in columns],
            n_columns=count_of(self._reading),
            scaled=self.scale is not None,
            encoding=getattr(self, "columns_", None),
            targets=getattr(self, "_targets", None),
            version=2 if hasattr(self, "columns_") else 1,
        )

    def predict(self, X: Any, sites: Any = None) -> Array:
        """Predict each row by its own site's model.

        Parameters
        ----------
        X : frame, array-like of shape (n_rows, n_columns), source, or mapping of site to source
            Sources are those of `fit`; those of a mapping come one after another. A frame with named columns may have
            further ones.
        sites : array-like of shape (n_rows,), or str, optional
            The site of every row, or the name of the column that has it. None takes the mean over all sites' models.
            A site that was not in `fit` is refused, or predicted by that mean; see `unknown_sites`.

        Returns
        -------
        ndarray of shape (n_rows,) or (n_rows, n_outputs)
            Of a Dask frame, a Dask series or frame, which is computed when it is asked for.
        """
        if is_spread(X):
            check_is_fitted(self)
            lazily: Array = predicted(
                X, partial(self.predict, sites=sites), next(iter(self.models_.values())).n_outputs
            )
            return lazily
        if streams.predicts_from_sources(X, sites):
            check_is_fitted(self)
            parts = streams.parts_of(X, self._reading, None, sites)
            return np.concatenate([self._predict(part.X, part.labels) for part in parts])
        return self._predict(self._checked(X), sites)

    def _checked(self, X: Any) -> Array:
        check_is_fitted(self)
        if hasattr(self, "columns_"):
            return self.columns_.encode(X, "the rows")
        with arrays.telling_of_words(X):
            X = validate_data(self, X, dtype=np.float64, reset=False, ensure_all_finite=False)
        arrays.refuse_bad_rows(X, self._columns)
        return np.asarray(X)

    def _predict(self, X: Array, sites: Any) -> Array:
        if sites is None:
            if len(different(self.models_)) > 1:
                warn(
                    f"sites was left out, so each row is predicted by the mean of {len(self.models_)} sites' models; "
                    "give the site of every row, or use models_[site].predict(X)"
                )
            return mean_of(different(self.models_), X)
        labels, index = factorise(sites, len(X))
        refuse_unknown(self, labels)
        everyone, prediction = partial(mean_of, different(self.models_)), None
        for label, own in zip(labels, places_of(index, len(labels)), strict=True):
            known = label in self.models_
            part = self.models_[label].predict_encoded(X[own]) if known else everyone(X[own])
            prediction = np.empty((len(X), *part.shape[1:])) if prediction is None else prediction
            prediction[own] = part
        return np.empty(0) if prediction is None else prediction

    def predict_interval(self, X: Any, sites: Any = None, coverage: float = 0.9) -> Array:
        """Return intervals that cover the response of each row with a chance of `coverage`, by its own site's model.

        The promise is about new rows from the same distribution as the site's own rows. For a row of no known site
        (`sites` is None, or ``unknown_sites="mean"``) the interval reaches from the lowest lower end of all sites'
        intervals to the highest upper end: it holds for rows like those of any one site. If a site held
        out too few rows for the coverage, the ends are infinite, and one warning names all such sites.

        Parameters
        ----------
        X : frame or array-like of shape (n_rows, n_columns)
        sites : array-like of shape (n_rows,), or str, optional
            The site of every row, or the name of the column that has it.
        coverage : float, default=0.9

        Returns
        -------
        ndarray of shape (n_rows, 2) or (n_rows, 2, n_outputs)
            The lower and the upper end.
        """
        check_is_fitted(self)
        X, sites = frames.picked(X, sites, names_of(self._reading))
        X = self._checked(X)
        if sites is not None:
            refuse_unknown(self, factorise(sites, len(X))[0])
        ends = intervals_of(self.models_, X, sites, coverage)
        tell_of_too_few(self.models_, sites, coverage)
        return ends

    def fit_summary(self) -> FitSummary:
        """Return what came of the fit, as a table: print it, or have a notebook show it."""
        check_is_fitted(self)
        return summary_of(self)

    def score(self, X: Any, y: Any, sites: Any = None, sample_weight: Any = None) -> float:
        """Return the coefficient of determination R^2 of `predict(X, sites)`, the mean over outputs.

        Parameters
        ----------
        X : frame, array-like of shape (n_rows, n_columns), source, or mapping of site to source
        y : array-like of shape (n_rows,) or (n_rows, n_outputs), str, or list of str
            The responses, or the names of their columns in a frame or source.
        sites : array-like of shape (n_rows,), or str, optional
            The site of every row, or the name of the column that has it. None scores the mean over all sites' models.
        sample_weight : array-like of shape (n_rows,), optional
            What each row counts; not for columns that are given by name.
        """
        if isinstance(y, str) or streams.is_names(y):
            if sample_weight is not None:
                raise SettingsError("rows of sources cannot be weighted in score")
            return 1 - self.rse(X, y, sites)
        return float(r2_score(y, self.predict(X, sites), sample_weight=sample_weight))

    def rse(self, X: Any, y: Any, sites: Any = None, metric: str = "own", sample_weight: Any = None) -> float:
        """Return the relative squared error, sum (f - y)^2 / sum (y - mean y)^2; its mean over several outputs.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns), source, or mapping of site to source
        y : array-like of shape (n_rows,) or (n_rows, n_outputs), str, or list of str
            For sources, the name of the response's column, or of each output's.
        sites : array-like of shape (n_rows,), or str, optional
        metric : {"own", "union"}, default="own"
            "own" predicts each row by its own site's model. "union" has every site's model predict all the rows and
            takes the mean over sites: how good is a site's model on the data of other sites?
        sample_weight : array-like of shape (n_rows,), optional
            How often each row counts; not for sources.
        """
        if metric not in ("own", "union"):
            raise SettingsError(f'unknown metric {metric!r}; choose "own" or "union"')
        if isinstance(y, str) or streams.is_names(y):
            if sample_weight is not None:
                raise SettingsError("rows of sources cannot be weighted in rse")
            return self._streamed_rse(X, y, sites, metric)
        if metric == "own":
            return rse(y, self.predict(X, sites), sample_weight)
        check_is_fitted(self)
        X = self._checked(frames.picked(X, sites, names_of(self._reading))[0])
        errors = {id(model): rse(y, model.predict_encoded(X), sample_weight) for model in different(self.models_)}
        return float(np.mean([errors[id(model)] for model in self.models_.values()]))

    def _streamed_rse(self, X: Any, y: Any, sites: Any, metric: str) -> float:
        check_is_fitted(self)
        models = list(self.models_.values()) if metric == "union" else []
        responses: list[Array] = []
        errors: Any = 0.0
        for rows, truth, labels in streams.parts_of(X, self._reading, y, sites):
            assert truth is not None
            responses.append(truth)
            if models:
                known = {id(model): model.predict_encoded(rows) for model in different(self.models_)}
                predictions = [known[id(model)] for model in models]
            else:
                predictions = [self._predict(rows, labels)]
            errors = errors + np.array([np.sum((prediction - truth) ** 2, axis=0) for prediction in predictions])
        return relative(np.mean(errors, axis=0), np.concatenate(responses))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _set_columns(regressor: Any, columns: streams.Columns) -> None:
    """Set what scikit-learn calls features in."""
    regressor.n_features_in_ = columns if isinstance(columns, int) else len(columns)
    if hasattr(regressor, "feature_names_in_"):
        del regressor.feature_names_in_
    if not isinstance(columns, int):
        regressor.feature_names_in_ = np.array(columns, dtype=object)


class Models(dict[Hashable, Any]):
    """The models of all sites, which says which sites there are where one is asked for that is none."""

    def __missing__(self, site: Hashable) -> Any:
        raise KeyError(f"{site!r} is not a site; the sites are {listed(list(self))}")


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


def _dealt(regressor: SiteRegressor, n_rows: int) -> np.ndarray:
    """Return a site for each of rows that come without."""
    return np.arange(n_rows) % min(regressor.n_sites, max(1, n_rows // regressor.min_rows))
