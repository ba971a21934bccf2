"""The scikit-learn front door: fit on rows with a site label each, and get a model per site.

All regressors here share one shape. `fit(X, y, sites=labels)` makes a node procedure of every site's rows
and has the local network run them; the procedures are the ones that a deployment runs.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import msgspec
import networkx as nx
import numpy as np
from scipy.linalg import cho_factor, cho_solve
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from .. import topology as topologies
from ..errors import DataError, SettingsError, warn
from ..kernels import KERNELS, Kernel, make_kernel, name_of
from ..labels import factorise, names_of, names_with, places_of
from ..metrics import relative, rse
from ..model import Header, KernelModel, SiteModel, members_of
from ..networks.local import LocalNetwork
from ..networks.traffic import Traffic
from ..protocols import allreduce, dekrr, dkla
from ..protocols.online import go_on
from ..protocols.outcome import Outcome
from ..protocols.site import Procedure, Site
from ..protocols.tuning import Tuning
from ..rows import ArrayRows, ChainedRows, Rows, StreamedRows, split_by_site
from ..rows.batches import block_of, column_names, inputs_of, labels_of
from ..rows.sources import Source, is_mapping, is_source, open_source
from ..scaling import UNSCALED
from ..selection import CHOOSERS, MAPPINGS, Chooser
from ..selection.transformers import Selector, parameters
from ..settings import (
    GRIDS,
    PRECISIONS,
    WIRE_PRECISIONS,
    AllReduceSettings,
    DeKRRSettings,
    DifferentialPrivacy,
    DKLASettings,
    Wire,
    entries,
    grid_of,
)
from ..solvers import SOLVERS
from ..types import Array

Training = Callable[[Site, Chooser], Procedure[Outcome]]

_POSITIVE = Interval(Real, 0, None, closed="neither")
_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
_COUNT = Interval(Integral, 1, None, closed="left")


@parameters
class _SiteRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """What all regressors share: rows in, a model per site out."""

    alpha: float = 1e-6
    sigma: float = 1.0
    kernel: Any = "gaussian"
    scale: str | None = "minmax"
    n_sites: int = 10
    min_rows: int = 10
    random_state: Any = None

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "alpha": [_POSITIVE],
        "sigma": [_POSITIVE],
        "kernel": [StrOptions(set(KERNELS)), Kernel, type],
        "scale": [StrOptions({"minmax"}), None],
        "n_sites": [_COUNT],
        "min_rows": [_COUNT],
        "random_state": ["random_state"],
    }

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
        self._validate_params()
        with self._unchanged_by_failure():
            self._fit_checked(X, y, sites, columns)
        return self

    @contextmanager
    def _unchanged_by_failure(self) -> Iterator[None]:
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _fit_checked(self, X: Any, y: Any, sites: Any, columns: Any) -> None:
        if is_mapping(X) or isinstance(y, str):
            seed = self._draw_seed()
            rows = self._open(X, y, sites, columns, seed)
            self.sites_ = list(rows)
            self._fit(rows, seed)
            return
        if columns is not None:
            raise SettingsError("columns is for sources of rows; pick an array's columns before")
        if y is not None:
            _refuse_missing_responses(y)
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_all_finite=False, y_numeric=True)
        y = y.astype(np.float64)
        if sites is None:
            n_sites = min(self.n_sites, max(1, len(y) // self.min_rows))
            sites = np.arange(len(y)) % n_sites
        labels, index = factorise(sites, len(y))
        self._refuse_bad_rows(X, labels, index)
        self.sites_ = labels
        seed = self._draw_seed()
        self._fit(_by_site(X, y, labels, index, seed), seed)

    def _draw_seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _open(
        self, X: Any, y: str | None, sites: Any, columns: Sequence[str] | None, seed: int, *, reset: bool = True
    ) -> dict[Hashable, Rows]:
        """Return the rows of each site, from a mapping of site to source or from one source with a site column."""
        if y is not None and not isinstance(y, str):
            raise DataError(f"for sources, y is the name of the response's column; got {type(y).__name__}")
        if is_mapping(X) and sites is not None:
            raise DataError("a mapping of site to source says whose the rows are: leave sites out")
        if is_mapping(X) == isinstance(sites, str):
            raise DataError(
                "give either a mapping of site to source, or one source with sites the name of the column that has "
                "the site"
            )
        given = X if is_mapping(X) else {sites: X}
        sources = {label: open_source(source) for label, source in given.items()}
        if not sources:
            raise DataError("there are no sites: the mapping of site to source is empty")
        first = next(iter(sources.values()))
        if reset:
            self._remember_columns(first, columns, (y, sites))
        named = self._columns
        if isinstance(sites, str):
            if y is None or isinstance(named, int):
                raise DataError("a source with a site column must have named columns, with y the response's name")
            return split_by_site(first, named, y, sites, seed)
        labels, _ = factorise(list(sources), len(sources))
        return {label: StreamedRows(sources[label], named, y, seed=seed) for label in labels}

    @property
    def _columns(self) -> list[str] | int:
        """The names of the columns, or how many there are where they have none."""
        return list(self.feature_names_in_) if hasattr(self, "feature_names_in_") else self.n_features_in_

    def _remember_columns(self, source: Source, columns: Sequence[str] | None, others: Sequence[Any]) -> None:
        """Set what scikit-learn calls features in: the columns given, or all of a source's but for `others`."""
        there = source.columns
        if isinstance(columns, str) or (columns is not None and set(columns) & {name for name in others if name}):
            raise SettingsError(
                f"columns are the names of those to predict from, without the response and the site; got {columns!r}"
            )
        if columns is None and there is not None:
            columns = [name for name in there if name not in others]
        self.n_features_in_ = source.n_columns if columns is None else len(columns)
        if not self.n_features_in_:
            raise DataError(f"{source.name} has no column to predict from")
        if hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        if columns is not None:
            self.feature_names_in_: np.ndarray = np.array(columns, dtype=object)

    @abstractmethod
    def _fit(self, rows: Mapping[Hashable, Rows], seed: int) -> None:
        """Train on the rows of each site."""

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
        if is_mapping(X) or is_source(X) or (isinstance(sites, str) and column_names(X) is not None):
            check_is_fitted(self)
            return np.concatenate([self._predict(rows, labels) for rows, _, labels in self._stream(X, None, sites)])
        return self._predict(self._check_rows(X), sites)

    def _stream(
        self, X: Any, y: str | None, sites: Any
    ) -> Iterator[tuple[Array, Array | None, Sequence[Any] | np.ndarray | None]]:
        """Yield rows, responses where `y` names them, and site labels, of each batch of a source or of several."""
        if is_mapping(X):
            for label, given in X.items():
                for rows, responses, _ in self._stream_one(given, y, None):
                    yield rows, responses, [label] * len(rows)
        else:
            yield from self._stream_one(X, y, sites)

    def _stream_one(
        self, X: Any, y: str | None, sites: Any
    ) -> Iterator[tuple[Array, Array | None, Sequence[Any] | np.ndarray | None]]:
        columns, source, seen = self._columns, open_source(X, once=True), 0
        if sites is not None and not isinstance(sites, str | np.ndarray):
            sites = list(sites)
        for batch in source.batches(columns, y, sites if isinstance(sites, str) else None):
            if y is None:
                rows, responses = inputs_of(batch, columns), None
            else:
                rows, responses, *_ = block_of(batch, columns, y)
            labels = sites
            if isinstance(sites, str):
                labels = labels_of(batch, sites)
            elif sites is not None:
                labels = sites[seen : seen + len(rows)]
            seen += len(rows)
            yield rows, responses, labels
        if sites is not None and not isinstance(sites, str) and len(sites) != seen:
            raise DataError(f"{len(sites)} site labels for {seen} rows; give one label per row")

    def _predict(self, X: Array, sites: Any) -> Array:
        if sites is None:
            different = list({id(model): model for model in self.models_.values()}.values())
            return np.asarray(np.mean([model.predict(X) for model in different], axis=0))
        labels, index = factorise(sites, len(X))
        unknown = [label for label in labels if label not in self.models_]
        if unknown:
            raise DataError(
                f"unknown sites {unknown}: no rows of theirs were in fit; the sites are {_listed(self.sites_)}. "
                "models_[site].predict(X) applies any site's model to any rows"
            )
        prediction = np.empty(len(X))
        for label, own in zip(labels, places_of(index, len(labels)), strict=True):
            prediction[own] = self.models_[label].predict(X[own])
        return prediction

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
        X = self._check_rows(X)
        different = {id(model): rse(y, model.predict(X)) for model in self.models_.values()}
        return float(np.mean([different[id(model)] for model in self.models_.values()]))

    def _streamed_rse(self, X: Any, y: str, sites: Any, metric: str) -> float:
        check_is_fitted(self)
        models = list(self.models_.values()) if metric == "union" else []
        responses: list[Array] = []
        errors = np.zeros(max(len(models), 1))
        for rows, truth, labels in self._stream(X, y, sites):
            assert truth is not None
            responses.append(truth)
            different = {id(model): model for model in models}
            known = {key: model.predict(rows) for key, model in different.items()}
            predictions = [known[id(model)] for model in models] or [self._predict(rows, labels)]
            errors += [np.sum((prediction - truth) ** 2) for prediction in predictions]
        every = np.concatenate(responses)
        return relative(float(errors.mean()), every)

    def _check_rows(self, X: Any) -> Array:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False, ensure_all_finite=False)
        self._refuse_bad_rows(X)
        return np.asarray(X)

    def _refuse_bad_rows(self, X: Array, labels: Sequence[Any] = (), index: np.ndarray | None = None) -> None:
        if np.isfinite(X).all():
            return
        row, column = np.argwhere(~np.isfinite(X))[0]
        name = repr(self.feature_names_in_[column]) if hasattr(self, "feature_names_in_") else column
        where = f" of site {labels[index[row]]!r}" if index is not None else ""
        count = int((~np.isfinite(X)).sum())
        raise DataError(
            f"Input X contains NaN or infinity: row {row}{where}, column {name} is {X[row, column]} "
            f"({count} such values in all); fill or drop them"
        )

    def _header(self, name: str, n_members: int = 1) -> Header:
        columns = [str(column) for column in self.feature_names_in_] if hasattr(self, "feature_names_in_") else None
        return Header(
            site=name,
            method=type(self).__name__,
            kernel=name_of(self._setting("kernel")),
            sigma=getattr(self, "sigma_", None) or self._grid("sigma")[0],
            columns=columns,
            n_columns=self.n_features_in_,
            n_members=n_members,
            scaled=self.scale is not None,
        )

    def _brought(self) -> Chooser | None:
        """Return the chooser that `features` is, or makes; None where it is a name."""
        features = getattr(self, "features", None)
        if isinstance(features, Selector):
            return features.chooser()
        return features if isinstance(features, Chooser) else None

    def _setting(self, name: str) -> Any:
        """Return a setting that a chooser object may bring too: from where it is given.

        A default counts as not given.
        """
        own, brought = getattr(self, name), self._brought()
        if brought is None or _is_default(getattr(brought, name), Chooser, name):
            return own
        if _is_default(own, type(self), name) or _is_same(own, getattr(brought, name)):
            return getattr(brought, name)
        raise SettingsError(
            f"{name} is {own!r} in {type(self).__name__} and {getattr(brought, name)!r} in {type(brought).__name__}, "
            "which chooses its features: give it once"
        )

    def _grid(self, name: str) -> tuple[float, ...]:
        """Return the values of a setting to choose from; one that is given is the only one."""
        return grid_of(name, self._setting(name) if name == "sigma" else getattr(self, name))


@parameters
class _FeatureRegressor(_SiteRegressor):
    """A regressor on random features, trained by node procedures on a network."""

    n_features: Any = 100
    features: Any = "plain"
    mapping: str = "cos"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **_SiteRegressor._parameter_constraints,
        "n_features": [_COUNT, dict, "array-like"],
        "features": [StrOptions(set(CHOOSERS)), Chooser, Selector],
        "mapping": [StrOptions(set(MAPPINGS))],
    }

    def _fit(self, rows: Mapping[Hashable, Rows], seed: int) -> None:
        labels = list(rows)
        self.graph_ = self._graph(labels, seed)
        names = dict(zip(labels, names_of(labels), strict=True))
        sizes = self._sizes(labels)
        selectors = {size: self._selector(size) for size in set(sizes.values())}
        neighbors = _named(self.graph_, names)
        network = LocalNetwork(neighbors)
        train = self._training(names)
        procedures = {}
        for label, own_rows in rows.items():
            site = Site(names[label], neighbors[names[label]], own_rows, seed=seed)
            procedures[site.name] = train(site, selectors[sizes[label]])
        outcomes = network.run(procedures)
        self._keep(labels, names, outcomes, network.traffic)

    @abstractmethod
    def _graph(self, labels: list[Hashable], seed: int) -> Any:
        """Return the graph of sites."""

    @abstractmethod
    def _training(self, names: Mapping[Hashable, str]) -> Training:
        """Return what a site does with its selector."""

    def _sizes(self, labels: list[Hashable]) -> dict[Hashable, int]:
        """Return how many features each site gets (its mean, where an allocation shares them out)."""
        given = self._setting("n_features")
        if isinstance(given, Integral):
            return dict.fromkeys(labels, int(given))
        if getattr(self, "allocation", "equal") != "equal":
            raise SettingsError(f"allocation={self.allocation!r} shares out one n_features; give a number, or leave it")
        sizes = dict(given) if isinstance(given, Mapping) else dict(zip(labels, given, strict=False))
        if set(sizes) != set(labels) or (not isinstance(given, Mapping) and len(given) != len(labels)):
            raise SettingsError(f"n_features has {len(given)} entries for {len(labels)} sites: {_listed(labels)}")
        return {label: int(size) for label, size in sizes.items()}

    def _selector(self, n_features: int) -> Chooser:
        chooser = self._brought() or CHOOSERS[self.features]()
        return chooser.replace(
            n_features=n_features,
            kernel=self._setting("kernel"),
            sigma=self._grid("sigma")[0],
            mapping=self._setting("mapping"),
        )

    def _keep(
        self,
        labels: list[Hashable],
        names: Mapping[Hashable, str],
        outcomes: Mapping[str, Outcome],
        traffic: Traffic,
    ) -> None:
        self.models_ = {label: self._model(names[label], outcomes[names[label]]) for label in labels}
        first = outcomes[names[labels[0]]]
        self.n_rounds_ = max(outcome.rounds for outcome in outcomes.values())
        objective = np.sum([outcome.objective_shares for outcome in outcomes.values()], axis=0)
        self.objective_ = float(objective[-1])
        self.history_ = {"round": np.arange(len(objective)), "objective": objective}
        self.traffic_ = traffic.relabelled({name: label for label, name in names.items()})
        tol = getattr(self, "tol", 0.0)
        if tol > 0 and not first.settled:
            warn(
                f"{type(self).__name__} stopped after {self.n_rounds_} rounds at a relative residual of "
                f"{first.relative_residual:.2g}, above tol={tol:g}; raise max_rounds or tol",
                ConvergenceWarning,
            )

    def _model(self, name: str, outcome: Outcome) -> SiteModel:
        members = members_of(outcome, getattr(self, "prediction", "own"))
        header = msgspec.structs.replace(self._header(name, len(members)), privacy=outcome.privacy)
        return SiteModel(header, members, outcome.scaling)


@parameters
class _NetworkRegressor(_FeatureRegressor):
    """A regressor whose sites talk over a graph."""

    topology: Any = "ring"
    n_neighbors: int = 4

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **_FeatureRegressor._parameter_constraints,
        "topology": [StrOptions(set(topologies.TOPOLOGIES)), "array-like", nx.Graph],
        "n_neighbors": [_COUNT],
    }

    def _graph(self, labels: list[Hashable], seed: int) -> Any:
        return topologies.build(self.topology, labels, self.n_neighbors, seed)


@parameters
class DeKRRRegressor(_NetworkRegressor):
    """Decentralised kernel ridge regression with features chosen by each site (DeKRR-DDRF).

    Every site chooses random features from its own rows and ends with its own model; neighbours are made to
    agree on predictions. All sites together minimise

        sum_j 1/N |Z_jj theta_j - y_j|^2 + alpha/J |theta_j|^2
              + sum_{p in N_j} c~_j |Z_jj theta_j - Z_pj theta_p|^2,    c~_j = consensus / (N |N_j|),

    exchanging sums over rows once, then coefficients in rounds, with neighbours only.

    Parameters
    ----------
    n_features : int, mapping of site to int, or sequence of int, default=100
        Features per site (the paper's D_j). A sequence is in the order of the sorted labels. Greedy selection
        takes no more than a site has rows.
    features : {"plain", "energy", "leverage", "surrogate", "greedy"} or Chooser, default="greedy"
        How a site chooses its features: by name, or by a chooser object (`dekrr.selection`, or a subclass of
        `dekrr.Chooser`) or one of the transformers (`dekrr.GreedySelector`). An object may bring n_features, kernel,
        sigma and mapping. Each counts where it is not the default, here or there. Where it is given at both places
        and differs, the fit is refused.
    kernel : {"gaussian", "laplacian", "cauchy"}, Kernel class or object, default="gaussian"
    sigma : float, "auto" or sequence of float, default="auto"
        The kernel's bandwidth, in scaled columns. "auto", or a sequence, is tuned: chosen by cross-validation
        that all sites take part in, without a centre. The sigma of a chooser object is not tuned.
    alpha : float, "auto" or sequence of float, default="auto"
        Regularisation (the paper's lambda).
    consensus : float, "auto" or sequence of float, default="auto"
        Weight of the agreement with neighbours (c of the authors' code).
    topology : str, edge list or networkx graph, default="ring"
        See `dekrr.topology.TOPOLOGIES`.
    n_neighbors : int, default=4
        Neighbours of a site in the named topologies that leave it open.
    folds : int, default=5
        Of each site's own rows, for tuning.
    objective : {"mean", "own", "union"}, default="mean"
        What tuning minimises on held-out rows: the error of a site's own prediction, that of its neighbours'
        models on its rows, or the mean of both.
    solver : {"chebyshev", "jacobi"} or Solver, default="chebyshev"
        "jacobi" is the paper's; "chebyshev" takes about the root of its rounds; see `dekrr.Solver` for one of your own.
    self_penalty : float or "bound", default=5.0
        Damping of "jacobi", in units of c~_j: a number, or the smallest one of the paper's Proposition 1.
    tol : float, default=1e-6
        Relative residual at which all sites stop; 0 runs `max_rounds`.
    max_rounds : int, default=1500
    mapping : {"cos", "cossin"}, default="cos"
        A cosine with a phase per feature, or cos/sin pairs.
    prediction : {"neighborhood", "own"}, default="neighborhood"
        Predict with the site's own model and its neighbours', which it holds anyway, or with its own alone. Its
        own counts one half and the mean of theirs the other; where anything is tuned, so is this.
    allocation : {"equal", "sqrt", "gain"}, default="equal"
        Features per site: all `n_features`; or, at the same mean, in proportion to the root of its rows, or
        where they lower the squared error most (for greedy features; from a third to three times the mean).
    exchange : {"sums", "features"}, default="sums"
        "features" sends features of every row, as the paper does. It gives rows away; for comparison only.
    precision : {"double", "mixed"}, default="double"
        Of sums over rows. "mixed" has features and their products in single precision and adds blocks of rows up in
        double: about twice as fast for many rows, with sums right to 1e-5; for alpha of 1e-7 and more.
    wire_precision : {"double", "single", "int8"}, default="double"
        Of coefficients on the wire: 8 bytes each, 4, or 1, with what rounding leaves out made up for later.
    censor_start, censor_decay : float, default=0.0 and 0.8
        In round k a site does not send coefficients that have moved by less than censor_start * censor_decay**k
        since it last did.
    rows_per_feature : float, default=0.0
        The fewest rows that a site must have, for each feature of its own and of a neighbour, to send it sums.
        Here all rows are in one process anyway; 1.5, what a deployment starts from, tells whether it would refuse,
        and keeps rows that stand alone out of all sums between sites, as there.
    verify_features : bool, default=False
        Sites prove that their features come from the agreed pool, by its seed and the chosen indices.
    bounds : pair of array-like of shape (n_columns + 1,), optional
        Public lower and upper bounds of the columns and, last, of the response, for ``scale="minmax"``
        instead of bounds that the sites agree on.
    privacy : DifferentialPrivacy, optional
        A guarantee for every row; it takes public `bounds` (or ``scale=None``), sigma, alpha and consensus as
        numbers, and the extra ``dekrr[dp]``, and all sites then share plain features. Noise is drawn from a secure
        source, not from `random_state`.
    scale : {"minmax"} or None, default="minmax"
        Columns to [0, 1] and the response to [-1, 1], by bounds agreed over edges and undone in predictions;
        None for data that is scaled already.
    n_sites : int, default=10
        Sites to deal rows out to when `fit` is given none.
    min_rows : int, default=10
        The fewest rows that a site sends sums over.
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    models_ : dict of site to SiteModel
    sites_ : list
        The sites, sorted where they can be.
    graph_ : networkx.Graph
    n_rounds_ : int
    objective_ : float
        The objective above at the end.
    sigma_, alpha_, consensus_ : float
        The values used: those given, or those tuned.
    own_weight_ : float
        What a site's own model counts when it predicts with its neighbourhood.
    tuning_ : dict of str to ndarray, or None
        "sigma", "alpha", "consensus", "own_weight" (of the own model in a site's prediction) and "error" of every
        candidate: the mean squared held-out error over all sites, in scaled units of the response.
    history_ : dict of str to ndarray
        "round" and "objective", before the first round and after each.
    traffic_ : Traffic
        Bytes and messages over every directed edge.
    rows_ : dict of site to Rows
        The training rows, or where to read them, for sites that join later.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Where the columns had names.

    References
    ----------
    Yang, He, He, Yang and Huang, Decentralized kernel ridge regression based on data-dependent random
    feature, IEEE Transactions on Neural Networks and Learning Systems, 2024.

    Examples
    --------
    >>> from dekrr import DeKRRRegressor
    >>> from dekrr.data import make_sites
    >>> X, y, sites = make_sites(n_sites=6, random_state=0)
    >>> regressor = DeKRRRegressor(n_features=30, sigma=0.3, alpha=1e-4, random_state=0).fit(X, y, sites=sites)
    >>> X_new, y_new, new_sites = make_sites(n_sites=6, random_state=1)
    >>> regressor.rse(X_new, y_new, sites=new_sites) < 0.3
    True
    >>> regressor.models_[regressor.sites_[0]].predict(X[:2]).shape
    (2,)
    """

    features: Any = "greedy"
    sigma: Any = "auto"
    alpha: Any = "auto"
    consensus: Any = "auto"
    folds: int = 5
    objective: str = "mean"
    solver: Any = "chebyshev"
    self_penalty: Any = 5.0
    tol: float = 1e-6
    max_rounds: int = 1500
    prediction: str = "neighborhood"
    allocation: str = "equal"
    exchange: str = "sums"
    precision: str = "double"
    wire_precision: str = "double"
    censor_start: float = 0.0
    censor_decay: float = 0.8
    rows_per_feature: float = 0.0
    verify_features: bool = False
    bounds: Any = None
    privacy: Any = None

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **_NetworkRegressor._parameter_constraints,
        "sigma": [_POSITIVE, StrOptions({"auto"}), "array-like"],
        "alpha": [_POSITIVE, StrOptions({"auto"}), "array-like"],
        "consensus": [_NOT_NEGATIVE, StrOptions({"auto"}), "array-like"],
        "folds": [Interval(Integral, 2, None, closed="left")],
        "objective": [StrOptions({"own", "union", "mean"})],
        "solver": [StrOptions(set(SOLVERS)), HasMethods(["start", "update"])],
        "self_penalty": [_NOT_NEGATIVE, StrOptions({"bound"})],
        "tol": [_NOT_NEGATIVE],
        "max_rounds": [_COUNT],
        "prediction": [StrOptions({"own", "neighborhood"})],
        "allocation": [StrOptions({"equal", "sqrt", "gain"})],
        "exchange": [StrOptions({"sums", "features"})],
        "precision": [StrOptions(set(PRECISIONS))],
        "wire_precision": [StrOptions(set(WIRE_PRECISIONS))],
        "censor_start": [_NOT_NEGATIVE],
        "censor_decay": [Interval(Real, 0, 1, closed="both")],
        "rows_per_feature": [_NOT_NEGATIVE],
        "verify_features": ["boolean"],
        "bounds": ["array-like", None],
        "privacy": [DifferentialPrivacy, None],
    }

    def _selector(self, n_features: int) -> Chooser:
        if self.privacy is None or self.features == "plain" or self._brought() is not None:
            return super()._selector(n_features)
        warn(f"features={self.features!r} would look at rows; with privacy all sites share plain ones")
        return CHOOSERS["plain"](n_features, kernel=self.kernel, sigma=self._grid("sigma")[0])

    def _training(self, names: Mapping[Hashable, str]) -> Training:
        grids = {name: self._grid(name) for name in GRIDS}
        settings = self._settings(grids["alpha"][0], grids["consensus"][0])
        tuning = None
        if max(map(len, grids.values())) > 1:
            tuning = Tuning(
                sigmas=grids["sigma"],
                alphas=grids["alpha"],
                consensuses=grids["consensus"],
                folds=self.folds,
                objective=self.objective,
                prediction=self.prediction,
            )
            settings = msgspec.structs.replace(settings, max_maps=max(settings.max_maps, tuning.n_maps))
        return partial(dekrr.train, settings=settings, tuning=tuning)

    def _settings(self, alpha: float, consensus: float) -> DeKRRSettings:
        return DeKRRSettings(
            alpha=alpha,
            consensus=consensus,
            solver=self.solver,
            self_penalty=self.self_penalty,
            tol=self.tol,
            max_rounds=self.max_rounds,
            exchange=self.exchange,
            scale=self.scale,
            allocation=self.allocation,
            min_rows=self.min_rows,
            precision=self.precision,
            wire=Wire(precision=self.wire_precision, censor_start=self.censor_start, censor_decay=self.censor_decay),
            rows_per_feature=self.rows_per_feature,
            max_leverage=entries(DeKRRSettings)["max_leverage"].default if self.rows_per_feature else 1.0,
            verify_features=self.verify_features,
            bounds=_as_bounds(self.bounds),
            privacy=self.privacy,
        )

    def _fit(self, rows: Mapping[Hashable, Rows], seed: int) -> None:
        tuned = [name for name in GRIDS if len(self._grid(name)) > 1]
        if self.privacy is not None and tuned:
            raise SettingsError(
                f"with privacy give {', '.join(tuned)} as one number each: tuning would look at rows, which the budget "
                "does not pay for"
            )
        self._seed = seed
        self.rows_ = {label: own_rows.owned() for label, own_rows in rows.items()}
        super()._fit(rows, seed)

    def _keep(
        self,
        labels: list[Hashable],
        names: Mapping[Hashable, str],
        outcomes: Mapping[str, Outcome],
        traffic: Traffic,
    ) -> None:
        tuned = outcomes[names[labels[0]]].tuned
        chosen = (tuned.sigma, tuned.alpha, tuned.consensus) if tuned else tuple(self._grid(n)[0] for n in GRIDS)
        self.own_weight_: float = outcomes[names[labels[0]]].own_weight
        self.sigma_: float = chosen[0]
        self.alpha_: float = chosen[1]
        self.consensus_: float = chosen[2]
        self.tuning_: dict[str, Array] | None = None
        self._outcomes: dict[Hashable, Outcome] = {label: outcomes[names[label]] for label in labels}
        self._names: Mapping[Hashable, str] = names
        if tuned:
            columns = np.array(tuned.grid).T
            self.tuning_ = dict(zip([*GRIDS, "own_weight"], columns, strict=True)) | {"error": tuned.errors}
        super()._keep(labels, names, outcomes, traffic)

    def partial_fit(self, X: Any, y: Any, sites: Any = None, edges: Any = ()) -> Self:
        """Go on from a fitted network with new rows: the result of all rows with the same features and scaling.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns), source, or mapping of site to source
        y : array-like of shape (n_rows,), or str
            For sources, the name of the response's column; see `fit`.
        sites : array-like of shape (n_rows,), or str, optional
            The site of every new row; at least `min_rows` for each site that has any. A new label is a site
            that joins. None deals the rows out to the sites there are.
        edges : sequence of (site, site)
            Edges to add to the graph; at least one for every site that joins.
        """
        if not hasattr(self, "models_"):
            if len(edges):
                raise SettingsError("edges are added to the graph of a fitted network; before, give a topology")
            return self.fit(X, y, sites)
        if is_mapping(X) or isinstance(y, str):
            rows = self._open(X, y, sites, None, self._seed, reset=False)
        else:
            if y is not None:
                _refuse_missing_responses(y)
            X, y = validate_data(self, X, y, dtype=np.float64, reset=False, ensure_all_finite=False, y_numeric=True)
            if sites is None:
                sites = [self.sites_[row % len(self.sites_)] for row in range(len(y))]
            labels, index = factorise(sites, len(y))
            self._refuse_bad_rows(X, labels, index)
            rows = _by_site(X, y.astype(np.float64), labels, index, self._seed)
            rows = {label: own_rows.owned() for label, own_rows in rows.items()}
        labels = list(rows)
        if not set(labels) <= set(self.sites_) and not len(edges):
            joining = [label for label in labels if label not in set(self.sites_)]
            raise DataError(f"sites {joining} are new: give their edges, as in edges=[(new, old), ...]")
        graph: Any = nx.Graph(self.graph_)
        topologies.add_edges(graph, edges)
        self._go_on(graph, rows)
        return self

    def remove_site(self, site: Hashable) -> Self:
        """Let a site leave a fitted network: the result of training without it, with the same features.

        Parameters
        ----------
        site : hashable
            Its label; the others' graph must stay connected.
        """
        check_is_fitted(self)
        if site not in self.models_:
            raise DataError(f"{site!r} is not a site; the sites are {_listed(self.sites_)}")
        if len(self.sites_) == 1:
            raise DataError(f"{site!r} is the only site, and cannot leave")
        graph: Any = nx.Graph(self.graph_)
        graph.remove_node(site)
        self._go_on(graph, {})
        return self

    def _go_on(self, graph: Any, new_rows: Mapping[Hashable, Rows]) -> None:
        joining = [label for label in new_rows if label not in self._outcomes]
        labels = [*(label for label in self.sites_ if label in graph), *joining]
        graph = topologies.build(graph, labels)
        names = names_with(self._names, labels)
        neighbors = _named(graph, names)
        network = LocalNetwork(neighbors)
        settings = msgspec.structs.replace(self._settings(self.alpha_, self.consensus_), own_weight=self.own_weight_)
        no_rows = ArrayRows(np.empty((0, self.n_features_in_)), np.empty(0))
        procedures = {}
        rows: dict[Hashable, Rows] = {}
        for label in labels:
            before = self._outcomes.get(label)
            parts = [every[label] for every in (self.rows_, new_rows) if label in every]
            rows[label] = ChainedRows(parts) if len(parts) > 1 else parts[0]
            site = Site(names[label], neighbors[names[label]], rows[label], seed=self._seed)
            size = before.feature_map.n_features if before else self._sizes(labels)[label]
            selector = self._selector(size).replace(sigma=self.sigma_)
            procedures[site.name] = go_on(site, before, new_rows.get(label, no_rows), selector, settings)
        outcomes = network.run(procedures)
        self.sites_, self.graph_, self.rows_ = labels, graph, rows
        self._outcomes = {label: outcomes[names[label]] for label in labels}
        self._names = names
        super()._keep(labels, names, outcomes, network.traffic)


@parameters
class DKLARegressor(_NetworkRegressor):
    """Shared features and consensus on coefficients by ADMM (DKLA; Xu et al. 2021).

    With ``features="plain"`` all sites draw the same features from the run's seed. With any other it is the
    paper's DKLA-DDRF: one site chooses from its rows and its choice is flooded to all.

    Parameters
    ----------
    rho : float, default=1e-4
        Penalty of the augmented Lagrangian.
    rho_period : int, default=200
        Rounds after which rho doubles, as the authors of DeKRR have it.
    selecting_site : hashable, optional
        Who chooses features that depend on rows; the site with most rows by default.
    tol : float, default=1e-4
        Relative change and disagreement at which all sites stop; 0 runs `max_rounds`.
    max_rounds : int, default=1500
    n_features : int, default=100
    features : {"plain", "energy", "leverage", "surrogate", "greedy"} or Chooser, default="plain"
    alpha : float, default=1e-6
    sigma : float, default=1.0
    kernel, mapping, topology, n_neighbors, scale, n_sites, min_rows, random_state
        As in `DeKRRRegressor`.

    Attributes
    ----------
    models_, sites_, graph_, n_rounds_, objective_, history_, traffic_
        As in `DeKRRRegressor`.
    """

    rho: float = 1e-4
    rho_period: int = 200
    selecting_site: Any = None
    tol: float = 1e-4
    max_rounds: int = 1500

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **_NetworkRegressor._parameter_constraints,
        "n_features": [_COUNT],
        "rho": [_POSITIVE],
        "rho_period": [_COUNT],
        "selecting_site": "no_validation",
        "tol": [_NOT_NEGATIVE],
        "max_rounds": [_COUNT],
    }

    def _training(self, names: Mapping[Hashable, str]) -> Training:
        settings = DKLASettings(
            alpha=self.alpha,
            rho=self.rho,
            rho_period=self.rho_period,
            tol=self.tol,
            max_rounds=self.max_rounds,
            scale=self.scale,
            min_rows=self.min_rows,
            rows_per_feature=0.0,
            max_leverage=1.0,
            selecting_site=_selecting_name(self.selecting_site, names),
            **self._censoring(),
        )
        return partial(dkla.train, settings=settings)

    def _censoring(self) -> dict[str, float]:
        return {}


@parameters
class COKERegressor(DKLARegressor):
    """DKLA that sends coefficients only when they have moved enough (COKE; Xu et al. 2021).

    In round k a site that has moved by less than ``censor_start * censor_decay**k`` since it last sent its
    coefficients says so in a few bytes, and its neighbours go on with the old ones.

    Parameters
    ----------
    censor_start : float, default=0.5
    censor_decay : float, default=0.99
    rho, rho_period, selecting_site, tol, max_rounds and others
        As in `DKLARegressor`.

    Attributes
    ----------
    messages_saved_ : float
        The share of coefficient messages that were not sent.
    """

    censor_start: float = 0.5
    censor_decay: float = 0.99

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **DKLARegressor._parameter_constraints,
        "censor_start": [_NOT_NEGATIVE],
        "censor_decay": [Interval(Real, 0, 1, closed="both")],
    }

    def _censoring(self) -> dict[str, float]:
        return {"censor_start": self.censor_start, "censor_decay": self.censor_decay}

    @property
    def messages_saved_(self) -> float:
        """The share of coefficient messages that were not sent."""
        sent, saved = (self.traffic_.messages_by_kind[kind] for kind in ("Coefficients", "Unchanged"))
        return saved / max(sent + saved, 1)


@parameters
class AllReduceRegressor(_NetworkRegressor):
    """Shared features and exact sums over a spanning tree: where DKLA converges to, at once.

    Parameters
    ----------
    n_features : int, default=100
    features : {"plain", "energy", "leverage", "surrogate", "greedy"} or Chooser, default="plain"
    selecting_site : hashable, optional
        Who chooses features that depend on rows; the site with most rows by default.
    alpha : float, default=1e-6
    sigma : float, default=1.0
    kernel, mapping, topology, n_neighbors, scale, n_sites, min_rows, random_state
        As in `DeKRRRegressor`.

    Attributes
    ----------
    models_, sites_, graph_, n_rounds_, objective_, history_, traffic_
        As in `DeKRRRegressor`.
    """

    selecting_site: Any = None

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **_NetworkRegressor._parameter_constraints,
        "n_features": [_COUNT],
        "selecting_site": "no_validation",
    }

    def _training(self, names: Mapping[Hashable, str]) -> Training:
        settings = AllReduceSettings(
            alpha=self.alpha,
            scale=self.scale,
            min_rows=self.min_rows,
            rows_per_feature=0.0,
            max_leverage=1.0,
            selecting_site=_selecting_name(self.selecting_site, names),
        )
        return partial(allreduce.train, settings=settings)


@parameters
class _UnconnectedRegressor(_FeatureRegressor):
    """A regressor whose sites, one or many, have nobody to talk to: the exact solution at each."""

    def _graph(self, labels: list[Hashable], seed: int) -> Any:
        return nx.create_empty_copy(nx.path_graph(labels))

    def _training(self, names: Mapping[Hashable, str]) -> Training:
        settings = AllReduceSettings(alpha=self.alpha, scale=self.scale, rows_per_feature=0.0, max_leverage=1.0)
        return partial(allreduce.train, settings=settings)


@parameters
class LocalRegressor(_UnconnectedRegressor):
    """No exchange at all: every site alone with its rows, its features and its scaling.

    Parameters
    ----------
    n_features : int, mapping of site to int, or sequence of int, default=100
    features : {"plain", "energy", "leverage", "surrogate", "greedy"} or Chooser, default="greedy"
    alpha : float, default=1e-6
    sigma : float, default=1.0
    kernel, mapping, scale, n_sites, random_state
        As in `DeKRRRegressor`.
    min_rows : int, default=10
        Only for dealing rows out when `fit` is given no sites.

    Attributes
    ----------
    models_, sites_, graph_, n_rounds_, objective_, history_, traffic_
        As in `DeKRRRegressor`; the graph has no edges.
    """

    features: Any = "greedy"


@parameters
class CentralizedRFF(_UnconnectedRegressor):
    """Ridge regression on random features of the pooled rows: one site that has everything.

    Parameters
    ----------
    n_features : int, default=100
    features : {"plain", "energy", "leverage", "surrogate", "greedy"} or Chooser, default="plain"
    alpha : float, default=1e-6
    sigma : float, default=1.0
    kernel, mapping, scale, n_sites, min_rows, random_state
        As in `DeKRRRegressor`.

    Attributes
    ----------
    models_ : dict of site to SiteModel
        The same model for every site.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **_FeatureRegressor._parameter_constraints,
        "n_features": [_COUNT],
    }

    def _fit(self, rows: Mapping[Hashable, Rows], seed: int) -> None:
        labels = list(rows)
        super()._fit({labels[0]: ChainedRows(list(rows.values()))}, seed)
        self.models_ = dict.fromkeys(labels, self.models_[labels[0]])


@parameters
class CentralizedKRR(_SiteRegressor):
    """Exact kernel ridge regression of the pooled rows, (K + N alpha I)^-1 y. It takes N^2 memory.

    Parameters
    ----------
    alpha : float, default=1e-6
    sigma : float, default=1.0
    kernel, scale, n_sites, min_rows, random_state
        As in `DeKRRRegressor`.

    Attributes
    ----------
    models_ : dict of site to KernelModel
        The same model for every site.
    objective_ : float
        1/N |f - y|^2 + alpha |f|^2 at the end.
    """

    def _fit(self, rows: Mapping[Hashable, Rows], seed: int) -> None:
        pooled = ChainedRows(list(rows.values()))
        if pooled.streamed:
            raise SettingsError("exact kernel ridge regression holds all rows in memory: load them, or CentralizedRFF")
        scaling = pooled.bounds if self.scale is not None else UNSCALED
        X, y, *_ = pooled.scaled(scaling).arrays()
        kernel = make_kernel(self.kernel, self.sigma)
        gram = kernel(X, X)
        gram[np.diag_indices(len(y))] += len(y) * self.alpha
        dual = cho_solve(cho_factor(gram, overwrite_a=True), y)
        self.objective_ = float(self.alpha * (y @ dual))
        model = KernelModel(self._header("all"), kernel, X, dual, scaling)
        self.models_ = dict.fromkeys(rows, model)


def _is_default(value: Any, kind: Any, name: str) -> bool:
    """Return whether a parameter has the value that a class gives it, which is as if nobody gave it."""
    return _is_same(value, kind.__dataclass_fields__[name].default)


def _is_same(value: Any, other: Any) -> bool:
    return np.ndim(value) == 0 and bool(value == other)


def _named(graph: Any, names: Mapping[Hashable, str]) -> dict[str, tuple[str, ...]]:
    """Return each site's neighbours, by the names that a run gives them."""
    return {names[label]: tuple(names[p] for p in graph[label]) for label in graph}


def _by_site(X: Array, y: Array, labels: Sequence[Hashable], index: np.ndarray, seed: int) -> dict[Hashable, Rows]:
    """Return each site's part of rows in memory; it is a view where the part is in one piece."""
    parts = map(_in_one_piece, places_of(index, len(labels)))
    return {label: ArrayRows(X[own], y[own], seed=seed) for label, own in zip(labels, parts, strict=True)}


def _in_one_piece(places: np.ndarray) -> np.ndarray | slice:
    """Return increasing indices as a slice where they leave out none."""
    if len(places) and places[-1] - places[0] + 1 == len(places):
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def _as_bounds(bounds: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    if bounds is None:
        return None
    if len(bounds) != 2:
        raise SettingsError(f"bounds must be a pair, lower and upper; got {len(bounds)} entries")
    lower, upper = (tuple(np.asarray(bound, dtype=float).ravel().tolist()) for bound in bounds)
    return lower, upper


def _selecting_name(label: Hashable, names: Mapping[Hashable, str]) -> str | None:
    if label is None:
        return None
    if label not in names:
        raise SettingsError(f"selecting_site={label!r} is not a site; the sites are {_listed(list(names))}")
    return names[label]


def _refuse_missing_responses(y: Any) -> None:
    values = np.asarray(y)
    if values.dtype == object and values.ndim == 1:
        missing = [row for row, value in enumerate(values) if value is None]
        if missing:
            raise DataError(f"Input y contains NaN or infinity: row {missing[0]} is None; drop such rows")
    if values.dtype.kind != "f":
        return
    if values.ndim == 1 and not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        count = int((~np.isfinite(values)).sum())
        raise DataError(
            f"Input y contains NaN or infinity: row {row} is {values[row]} ({count} in all); drop those rows"
        )


def _listed(labels: Sequence[Any], most: int = 8) -> str:
    shown = ", ".join(repr(label) for label in labels[:most])
    return shown + (f", ... ({len(labels)} in all)" if len(labels) > most else "")
