"""The shape that all regressors share: rows in, a model per site out.

`fit(X, y, sites=labels)` makes a node procedure of every site's rows and has a network run them. The procedures are
those that a deployment runs.
"""

import textwrap
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial, wraps
from inspect import signature
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import msgspec
import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted, check_X_y, validate_data

from ..errors import NotNumbersError, SettingsError, warn
from ..labels import factorise, listed, refuse_rows_as_sites
from ..metrics import relative, rse
from ..model import FarRows, Header, Outside, SiteModel, model_of, out_of_range, response_range_of
from ..networks.base import Connect, Traffic
from ..scaling import Response
from ..settings import Entry, EstimatorSettings, FeatureSettings, GuardSettings, entries
from ..tables.columns import Columns, column_names, is_frame, is_plain, names_in, require_columns
from ..tables.rows import ArrayRows, Rows
from ..tables.sources import AnyColumns, count_of, counted, is_mapping, is_source, is_spread, open_spread
from ..topology import build
from ..types import Array, Block
from . import model_set, tables
from .network import (
    Choosing,
    Here,
    NetworkRun,
    Training,
    gathered,
    here_of,
    only_here,
    run,
    seed_of,
    sites_of,
    watching,
)

_OF_TABLE: Any = object()
_WIDTH = 112
_ATTRIBUTES = "    Attributes\n    ----------\n"
_NO_ATTRIBUTES = frozenset({"transform"})  # options: scikit-learn takes what has this attribute for a transformer
Settings = TypeVar("Settings", bound=msgspec.Struct)


@dataclass(frozen=True)
class Parameter:
    """Where a parameter is in the table of settings."""

    kind: type[msgspec.Struct]  # the struct that has it
    entry: Entry  # its entry there
    objects: bool  # whether an object may take the place of a name or number
    # None is a parameter of its own; an option is an entry of the parameter `options`. It may be given as a keyword,
    # too: if it has "moved" there, with a warning, until release 0.4.
    option: str | None = None


def setting(
    kind: type[msgspec.Struct],
    name: str,
    default: Any = _OF_TABLE,
    *,
    objects: bool = True,
    option: str | None = None,
) -> Any:
    """Return a parameter that is a setting: the one with this name in the struct `kind`.

    `default` is the estimator's where it is another than the table's; `objects` and `option` are as in `Parameter`.
    """
    entry = entries(kind)[name]
    value = entry.in_process if default is _OF_TABLE else default
    return field(default=value, metadata={"parameter": Parameter(kind, entry, objects, option)})


@dataclass_transform(eq_default=False, kw_only_default=True)
def estimator(kind: type[Any]) -> Any:
    """Give a class the constructor that scikit-learn wants, and write its parameters into its docstring."""
    made = dataclass(eq=False, repr=False, kw_only=True)(kind)
    made.__init__.__signature__ = signature(made.__init__)  # scikit-learn asks for it in every call of fit
    if _options_of(made):
        _with_options(made)
    if made.__doc__:  # Python can be told to leave docstrings out
        place, text = _ATTRIBUTES, f"{_documentation(made)}\n{_ATTRIBUTES}"
        if place not in made.__doc__:  # from 3.13 on, Python takes the indentation out of docstrings
            place, text = textwrap.dedent(place), textwrap.dedent(text)
        made.__doc__ = made.__doc__.replace(place, text)
    return made


def parameters_of(kind: Any) -> Mapping[str, Parameter]:
    """Return an estimator's parameters and options, by their names there."""
    return {each.name: each.metadata["parameter"] for each in fields(kind) if each.name != "options"}


def keywords_of(kind: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes an estimator with some settings: those that are options go into `options`."""
    moved = {name: given[name] for name in given if name in _options_of(kind)}
    plain = {name: value for name, value in given.items() if name not in moved}
    return {**plain, "options": {**(plain.get("options") or {}), **moved}} if moved else plain


def value_of(regressor: Any, name: str) -> Any:
    """Return a parameter or an option of an estimator; None where it has none of this name."""
    if name in _NO_ATTRIBUTES:
        return (getattr(regressor, "options", None) or {}).get(name)
    return getattr(regressor, name)


def _options_of(kind: Any) -> dict[str, Any]:
    """Return the names of an estimator's options, and their defaults."""
    return {name: kind.__dataclass_fields__[name].default for name, it in parameters_of(kind).items() if it.option}


class _Option:
    """An option, read as an attribute of the estimator."""

    def __init__(self, name: str, default: Any) -> None:
        self._name, self._default = name, default

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self._default if instance is None else (instance.options or {}).get(self._name, self._default)

    def __set__(self, instance: Any, value: Any) -> None:
        instance.options = {**(instance.options or {}), self._name: value}


def _with_options(made: Any) -> None:
    """Have a class store its options in one parameter, and take them as keywords, too."""
    defaults, options = {each.name: each.default for each in fields(made)}, _options_of(made)
    moved = {name for name, parameter in parameters_of(made).items() if parameter.option == "moved"}
    full = signature(made.__init__)

    def placed(given: dict[str, Any]) -> dict[str, Any]:
        named = sorted(moved & set(given))
        if named:
            warn(
                f"{', '.join(named)} of {made.__name__}: give settings that few need in options, as in options="
                f"{ {name: given[name] for name in named}!r}; the keyword goes in release 0.4",
                FutureWarning,
            )
        return keywords_of(made, given)

    def __init__(self: Any, **given: Any) -> None:
        unknown = [name for name in given if name not in defaults]
        if unknown:
            raise TypeError(f"{made.__name__}() got an unexpected keyword argument {unknown[0]!r}")
        given = placed(given)
        for name, default in defaults.items():
            if name not in options:
                setattr(self, name, given.get(name, default))

    @wraps(BaseEstimator.set_params)
    def set_params(self: Any, **params: Any) -> Any:
        if set(params) & set(options):
            params = placed({"options": self.options, **params})
        return super(made, self).set_params(**params)

    init: Any = __init__
    init.__signature__ = full.replace(
        parameters=[each for name, each in full.parameters.items() if name not in options], return_annotation=None
    )
    made.__init__, made.set_params = init, set_params
    for name, default in options.items():
        if name not in _NO_ATTRIBUTES:
            setattr(made, name, _Option(name, default))
        elif name in vars(made):
            delattr(made, name)


def check(regressor: Any) -> None:
    """Refuse parameters that are not what they may be, all of them at once."""
    mistakes, options = {}, getattr(regressor, "options", None)
    if options is not None:
        known = _options_of(regressor)
        if not isinstance(options, Mapping):
            raise SettingsError(f"options is {options!r}; it must be a dict of settings, or None")
        if unknown := [name for name in options if name not in known]:
            raise SettingsError(
                f"options have no {listed(unknown)}; they are {', '.join(known)}. Other settings are parameters of "
                f"{type(regressor).__name__} itself"
            )
    for name, parameter in parameters_of(regressor).items():
        entry = replace(parameter.entry, name=name)
        mistake = entry.mistake(value_of(regressor, name), objects=parameter.objects)
        if mistake:
            mistakes[name] = mistake
    if mistakes:
        names = " and the ".join(f"{name!r} parameter" for name in mistakes)
        verb = "is" if len(mistakes) == 1 else "are"
        raise SettingsError(f"The {names} of {type(regressor).__name__} {verb} wrong: " + "; ".join(mistakes.values()))


def settings_of(regressor: Any, kind: type[Settings], **more: Any) -> Settings:
    """Return the settings of a run: an estimator's parameters, and for the others the defaults in one process.

    Parameters of this struct, and of the structs that it extends, are taken over; `more` are settings to have instead.
    """
    values = {name: entry.in_process for name, entry in entries(kind).items()}
    for name, parameter in parameters_of(regressor).items():
        if issubclass(kind, parameter.kind):
            values[parameter.entry.name] = value_of(regressor, name)
    return kind(**values | more)


def _documentation(kind: Any) -> str:
    lines, options = ["Parameters", "----------"], []
    for name, parameter in parameters_of(kind).items():
        words = parameter.entry.words(objects=parameter.objects)
        default = kind.__dataclass_fields__[name].default
        text = parameter.entry.setting.text
        if parameter.option:
            text = f"- ``{name}`` : {words}, default={default!r}. {text}"
            options += textwrap.wrap(text, _WIDTH, initial_indent="    ", subsequent_indent="      ")
        else:
            lines.append(f"{name} : {words}, default={default!r}" if words else f"{name} : object, optional")
            lines += textwrap.wrap(text, _WIDTH, initial_indent="    ", subsequent_indent="    ")
    if options:
        lines += ["options : dict, optional", "    Settings that few need, by their names:", "", *options]
    return textwrap.indent("\n".join(lines) + "\n", "    ")


_FEWEST_DEALT = 10  # rows of a site that nobody named: smaller ones would learn nothing


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
            read from in batches; see `dekrr.tables.sources`.
        y : array-like of shape (n_rows,) or (n_rows, n_outputs), str, or list of str
            The response, or the name of its column in a frame or a source; several outputs, or their names. Batches of
            pairs X, y need none.
        sites : array-like of shape (n_rows,), or str, optional
            The site of every row: any hashable labels, or the name of the column that has them. None deals the rows
            out to `n_sites` sites, as many as get 10 rows (or `min_rows`) each; equal rows are merged first. In
            predictions and scores, None takes the mean over all sites' models.
        columns : sequence of str, optional
            The columns of a frame or a source to predict from; by default all others, of the first site's source.
        sample_weight : array-like of shape (n_rows,), or str, optional
            How often each row counts, or the name of the column that has it. A row of weight 0 is left out.
        """
        check(self)
        with unchanged_by_failure(self):
            seed = seed_of(self.random_state)
            given = (X, y, sites, seed, partial(_dealt, self), columns, sample_weight)
            try:
                self._fit_rows(self._read(*given), seed)
            except NotNumbersError:  # of a source, whose named columns have to be looked at first
                if not (tables.trains_from_sources(X, y) and hasattr(self, "feature_names_in_")):
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
        model_set.tell_of_many_columns(count_of(self._reading))
        tables.refuse_small_sites(
            {label: own.n_rows for label, own in rows.items() if isinstance(own, ArrayRows)}, self.min_rows
        )
        self._fit(rows, seed)
        self.models_: Any = Models(vars(self)["models_"])
        self.n_rows_ = {label: own_rows.n_rows for label, own_rows in rows.items()}
        if hasattr(self, "columns_") and hasattr(self, "traffic_"):
            self.traffic_: Traffic = self._traffic_of_columns.plus(self.traffic_)
        first, *others = list(self._together.values()) or [None]
        agreed = first is not None and all(_bounds_of(model) == _bounds_of(first) for model in others)
        self._bounds: Outside | None = Outside(first) if agreed else None  # a site alone has bounds of its own
        self._range: tuple[float, float] | None = None  # of the response, where it is known and not changed
        if agreed and not self._has_codes and self._response.transform is None:
            self._range = response_range_of(first)
        if getattr(self, "privacy", None) is None:  # a private fit keeps nothing of rows
            self._few = model_set.share_of_few(rows)
            model_set.advise(self)

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
        here, is_encoded = self._here(seed, first=first), False
        if first:
            self._targets = [y] if isinstance(y, str) else list(y) if tables.is_names(y) else None
            self.__dict__.pop("columns_", None)
        if is_frame(X):
            tables.refuse_empty(X, y)
            given, (X, y, sites, sample_weight) = X, tables.named(X, y, sites, columns, sample_weight)
            if X is not given:  # columns have been picked by their names, which may be numbers
                X = tables.with_words_as_names(X)
            if first:
                tables.tell_of_leaks(X, y, sites)
                require_columns(X, column_names(X))
            if hasattr(self, "columns_") or (first and not is_plain(X, column_names(X))):
                sites = deal(len(X)) if sites is None else sites
                X, is_encoded = self._encoded(X, sites, first=first), True
        elif tables.trains_from_sources(X, y):
            sources = tables.open_sources(X, y, sites, sample_weight)
            if first:
                others = (*(y if tables.is_names(y) else [y]), sites, sample_weight)
                _set_columns(self, tables.columns_of(sources, columns, others))
                encode = tables.some_lack(sources, self._columns) or encode
            if encode:
                self._agree_on_columns(tables.facts_of_sources(sources, list(self.feature_names_in_), sites))
            rows = tables.rows_of(sources, self._reading, y, sites, seed, sample_weight, here)
            changed = {label: own.transformed(self._response, f"site {label!r}") for label, own in rows.items()}
            return only_here(changed, here)
        elif columns is not None:
            raise SettingsError(
                "columns are names, which a frame or a source of rows has; for an array, select the columns before "
                "the call"
            )
        if y is not None:
            tables.refuse_missing_responses(y)
        where, options = tables.naming(sites), {"dtype": np.float64, "y_numeric": True, "multi_output": True}
        if is_encoded:
            X, y = check_X_y(X, y, **options)
        else:
            with tables.telling_of_words(X):
                X, y = validate_data(self, X, y, reset=first, ensure_all_finite=False, **options)
        y = self._response.forward(y.astype(np.float64), where)
        block = Block(X, y, tables.weights_of(sample_weight, len(y)))
        is_private = getattr(self, "privacy", None) is not None  # it pays for rows that count once
        if sites is None and np.isfinite(X).all() and not is_private:
            block = tables.merged(counted(block))
        labels, index = factorise(deal(block.n_rows) if sites is None else sites, block.n_rows)
        if first:
            refuse_rows_as_sites(labels, block.n_rows)
        tables.refuse_bad_rows(block.X, self._columns, labels, index)
        return only_here(tables.by_site(block.X, block.y, labels, index, seed, block.weight), here)

    def _here(self, seed: int, *, first: bool) -> Here | None:
        """Return the function that says which sites are driven in this process; None where all are."""
        return None

    def _encoded(self, X: Any, sites: Any, *, first: bool) -> Array:
        """Return the rows of a frame as numbers; at `first` the sites agree on what its columns become."""
        if first:
            labels, index = factorise(sites, len(X))
            refuse_rows_as_sites(labels, len(X))
            facts = tables.facts_of_frame(X, labels, index)
            _set_columns(self, list(next(iter(facts.values())).columns))
            self._agree_on_columns(facts)
        return self.columns_.encode(X)

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
        verbose, callbacks = (getattr(self, name, None) for name in ("verbose", "callbacks"))
        with watching(verbose or 0, callbacks, before="columns") as watch:
            self.columns_, self._traffic_of_columns = tables.agree(
                facts, self._min_rows, graph_of, getattr(self, "network", None), watch
            )
        self._others = tables.judged(facts, self.columns_)

    @property
    def _min_rows(self) -> int:
        """The setting, which a prototype of a deployment has as a deployment does."""
        entry = entries(GuardSettings)["min_rows"]
        is_prototype = getattr(self, "deployment", False) and self.min_rows == entry.in_process
        return int(entry.default if is_prototype else self.min_rows)

    @property
    def _response(self) -> Response:
        """How responses are changed for training."""
        return Response.of(value_of(self, "transform"))

    @property
    def _columns(self) -> tables.ColumnNames:
        return list(self.feature_names_in_) if hasattr(self, "feature_names_in_") else int(self.n_features_in_)

    @property
    def _reading(self) -> AnyColumns:
        """How columns are read: by what they become, their names, or their number."""
        return self.columns_ if hasattr(self, "columns_") else self._columns

    def get_feature_names_out(self, input_features: object = None) -> np.ndarray:
        """Return the names of the columns that models are made of: the user's, or what these become.

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

    @property
    def _together(self) -> "Models":
        """The models of the sites that were trained together, which stand for all where no site is given."""
        apart = getattr(self, "left_out_", ())
        return Models({label: model for label, model in self.models_.items() if label not in apart})

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
        """Predict each row by its own site's model; `X` and `sites` are as in `fit`.

        A site that was not in `fit` is refused, or predicted by the mean of all models; see `unknown_sites`.

        Returns
        -------
        ndarray of shape (n_rows,) or (n_rows, n_outputs)
            Of a Dask frame, a Dask series or frame, which is computed when it is asked for.
        """
        if is_spread(X):
            check_is_fitted(self)
            lazily: Array = open_spread(X).predicted(
                partial(self.predict, sites=sites), next(iter(self.models_.values())).n_outputs
            )
            return lazily
        check_is_fitted(self)
        has_column = isinstance(sites, str) and names_in(X) is not None
        if is_mapping(X) or is_source(X) or has_column:
            parts: Iterable[tables.LabelledRows] = tables.parts_of(X, self._reading, None, sites)
        else:
            X, sites = tables.picked(X, sites, self._reading)
            parts = [tables.LabelledRows(self._checked(X), None, sites)]
        far, found = FarRows(self._bounds), []
        for part in parts:
            far.add(part.X)
            found.append(self._predict(part.X, part.labels))
        _tell_of_outside(far)
        predictions = np.concatenate(found)
        if self._range is not None and (told := out_of_range(predictions, *self._range)):
            warn(told)
        return predictions

    def _checked(self, X: Any) -> Array:
        check_is_fitted(self)
        if hasattr(self, "columns_"):
            return self.columns_.encode(X, "the rows")
        with tables.telling_of_words(X):
            X = validate_data(self, X, dtype=np.float64, reset=False, ensure_all_finite=False)
        tables.refuse_bad_rows(X, self._columns)
        return np.asarray(X)

    def _predict(self, X: Array, sites: Any) -> Array:
        if sites is None:
            if len(model_set.different(self._together)) > 1:
                warn(
                    f"sites was left out, so each row is predicted by the mean of {len(self._together)} sites' models; "
                    "give the site of every row, or use models_[site].predict(X)"
                )
            return model_set.mean_of(model_set.different(self._together), X)
        labels, index = factorise(sites, len(X))
        model_set.refuse_unknown(self, labels)
        everyone = model_set.different(self._together)

        def of_site(label: Hashable, rows: Array) -> Array:
            known = label in self.models_
            return self.models_[label].predict_encoded(rows) if known else model_set.mean_of(everyone, rows)

        return model_set.by_owner(X, labels, index, of_site)

    def predict_interval(self, X: Any, sites: Any = None, coverage: float = 0.9) -> Array:
        """Return intervals that cover the response of each row with a chance of `coverage`, by its own site's model.

        The promise is about new rows from the same distribution as the site's own rows. For a row of no known site
        (`sites` is None, or ``unknown_sites="mean"``) the interval reaches from the lowest lower end of all sites'
        intervals to the highest upper end: it holds for rows like those of any one site. If a site held
        out too few rows for the coverage, the ends are infinite, and one warning names all such sites.

        Returns
        -------
        ndarray of shape (n_rows, 2) or (n_rows, 2, n_outputs)
            The lower and the upper end.
        """
        check_is_fitted(self)
        X, sites = tables.picked(X, sites, self._reading)
        X = self._checked(X)
        if sites is not None:
            model_set.refuse_unknown(self, factorise(sites, len(X))[0])
        _tell_of_outside(FarRows(self._bounds, X))
        ends = model_set.intervals_of(self.models_, X, sites, coverage)
        for words in model_set.words_on_intervals(self.models_, sites, coverage):
            warn(words)
        return ends

    def fit_summary(self) -> model_set.FitSummary:
        """Return what came of the fit, as a table: print it, or have a notebook show it."""
        check_is_fitted(self)
        return model_set.summary_of(self)

    def score(self, X: Any, y: Any, sites: Any = None, sample_weight: Any = None) -> float:
        """Return the coefficient of determination R^2 of `predict(X, sites)`, the mean over outputs."""
        if isinstance(y, str) or tables.is_names(y):
            return 1 - self.rse(X, y, sites, sample_weight=sample_weight)
        return float(r2_score(y, self.predict(X, sites), sample_weight=sample_weight))

    def rse(self, X: Any, y: Any, sites: Any = None, metric: str = "own", sample_weight: Any = None) -> float:
        """Return the relative squared error, sum (f - y)^2 / sum (y - mean y)^2; its mean over several outputs.

        Parameters
        ----------
        metric : {"own", "union"}, default="own"
            "own" predicts each row by its own site's model, with the site's level and local part. "union" has every
            site's model predict all the rows, as rows from elsewhere, and takes the mean over sites: how good is a
            site's model on the data of other sites?
        """
        if metric not in ("own", "union"):
            raise SettingsError(f'unknown metric {metric!r}; choose "own" or "union"')
        if isinstance(y, str) or tables.is_names(y):
            if sample_weight is not None:
                raise SettingsError("rows of sources cannot be weighted in a score")
            return self._streamed_rse(X, y, sites, metric)
        if metric == "own":
            return rse(y, self.predict(X, sites), sample_weight)
        check_is_fitted(self)
        X = self._checked(tables.picked(X, sites, self._reading)[0])
        models = model_set.different(self._together)
        return float(np.mean([rse(y, model.predict_encoded(X, elsewhere=True), sample_weight) for model in models]))

    def cross_site_errors(self, X: Any, y: Any, sites: Any) -> Any:
        """Return the relative squared error of each site's model on each site's rows: others than those of `fit`.

        A model predicts the rows of its own site with the site's level and local part, and those of other sites as rows
        from elsewhere. Each error is relative to the variance of the rows that it is measured on, those of one site: 1
        is the error of their mean. A column whose own site has the least error by far is a site that is unlike the
        others; a row with large errors everywhere is a model to keep at home.

        Returns
        -------
        frame of shape (n_sites, n_sites)
            Of pandas, if it is installed; otherwise an object with `to_dict`. Rows are models, columns are the sites of
            rows.

        Examples
        --------
        >>> from dekrr import DeKRRRegressor
        >>> from dekrr.data import make_sites
        >>> X, y, sites = make_sites(n_sites=3, random_state=0)
        >>> regressor = DeKRRRegressor(n_features=20, random_state=0).fit(X[::2], y[::2], sites=sites[::2])
        >>> regressor.cross_site_errors(X[1::2], y[1::2], sites=sites[1::2]).shape
        (3, 3)
        """
        check_is_fitted(self)
        X, y, sites = self._scored(X, y, sites)

        def error_of(rows: np.ndarray, model: Any, X: Array, *, elsewhere: bool) -> float:
            return rse(y[rows], model.predict_encoded(X[rows], elsewhere=elsewhere))

        return model_set.matrix_of_errors(self.models_, self._checked(X), sites, error_of)

    def _scored(self, X: Any, y: Any, sites: Any) -> tuple[Any, Any, Any]:
        """Return rows, responses and sites of rows as arrays, where they are names of a frame's columns."""
        if is_frame(X) and (isinstance(y, str) or tables.is_names(y)):
            y = tables.named(X, y, None, None).y
        X, sites = tables.picked(X, sites, self._reading)
        return X, np.asarray(y, dtype=float), sites

    def _streamed_rse(self, X: Any, y: Any, sites: Any, metric: str) -> float:
        check_is_fitted(self)
        models = model_set.different(self._together) if metric == "union" else []
        responses: list[Array] = []
        errors: Any = 0.0
        for rows, truth, labels in tables.parts_of(X, self._reading, y, sites):
            assert truth is not None
            responses.append(truth)
            found = [model.predict_encoded(rows, elsewhere=True) for model in models] or [self._predict(rows, labels)]
            errors = errors + np.array([np.sum((each - truth) ** 2, axis=0) for each in found])
        return relative(np.mean(errors, axis=0), np.concatenate(responses))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _bounds_of(model: SiteModel) -> dict[str, list[float]]:
    return {name: ends.tolist() for name, ends in model.scaling.tensors.items()}


def _tell_of_outside(far: FarRows) -> None:
    told = far.in_words()
    if told:
        warn(
            f"{told}: their predictions are guesses, and their intervals are no wider for it. "
            "models_[site].outside(X) names the columns of each row"
        )


def _set_columns(regressor: Any, columns: tables.ColumnNames) -> None:
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
    return np.arange(n_rows) % min(regressor.n_sites, max(1, n_rows // max(regressor.min_rows, _FEWEST_DEALT)))


@estimator
class FeatureRegressor(SiteRegressor):
    """A regressor on random features, trained by node procedures; a subclass has a method `_fit`."""

    n_features: Any = setting(FeatureSettings, "n_features", objects=False)
    features: Any = setting(FeatureSettings, "features", default="plain")
    mapping: str = setting(FeatureSettings, "mapping")
    verbose: int = setting(EstimatorSettings, "verbose")
    callbacks: Any = setting(EstimatorSettings, "callbacks")

    def _train(
        self,
        rows: Mapping[Hashable, Rows],
        graph: Any,
        seed: int,
        training: Training,
        choosing: Choosing,
        connect: Connect | None = None,
        trainings: int = 1,
    ) -> NetworkRun:
        """Return what came of the training of all sites on a graph; `trainings` counts those of tuning, too."""
        self.graph_ = graph
        choosers = choosing.choosers(list(rows))
        sites = sites_of(rows, graph, seed=seed)
        with watching(self.verbose, self.callbacks, trainings) as watch:
            return run(sites, lambda label, site: training(site, choosers[label]), connect, watch)

    def _keep(self, run: NetworkRun, kernel: str, sigma: float, *, prediction: str = "own", tol: float = 0.0) -> None:
        """Set what came of a run; warn where it did not settle to a `tol` above 0."""
        models = {}
        for label, outcome in run.outcomes.items():
            used = sigma if outcome.tuned is None else outcome.tuned.sigma
            header = self._header(run.sites[label].name, kernel, used)
            models[label] = model_of(outcome, header, prediction, self._response)
        self.n_rounds_ = max(outcome.rounds for outcome in run.outcomes.values())
        objective = np.sum([outcome.objective_shares for outcome in run.outcomes.values()], axis=0)
        self.models_, objective = gathered(run.network, run.names, models, objective)
        self.objective_ = float(objective[-1])
        self.history_ = {"round": np.arange(len(objective)), "objective": objective}
        self.traffic_ = run.traffic
        first = next(iter(run.outcomes.values()))
        if tol > 0 and not first.settled:
            warn(
                f"{type(self).__name__} stopped after {self.n_rounds_} rounds at a relative residual of "
                f"{first.relative_residual:.2g}, above tol={tol:g}; raise max_rounds or tol",
                ConvergenceWarning,
            )


@estimator
class NetworkRegressor(FeatureRegressor):
    """A regressor whose sites talk over a graph; a subclass has a method `_fit`."""

    topology: Any = setting(EstimatorSettings, "topology")
    n_neighbors: int = setting(EstimatorSettings, "n_neighbors")
    network: Any = setting(EstimatorSettings, "network")

    def _here(self, seed: int, *, first: bool) -> Here | None:
        """Return the function that says which sites are driven in this process; None where all are."""
        return here_of(self.network, lambda labels: self._graph(labels, seed) if first else self.graph_)

    def _graph(self, labels: Iterable[Hashable], seed: int) -> Any:
        return build(self.topology, list(labels), self.n_neighbors, seed)
