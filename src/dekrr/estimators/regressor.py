"""The regressor of the paper's method, DeKRR-DDRF."""

import copy
import itertools
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from numbers import Integral
from typing import Any, Self

import msgspec
import networkx as nx
import numpy as np
from sklearn.utils.validation import check_is_fitted

from .. import topology as topologies
from ..errors import DataError, SettingsError, TopologyError, warn
from ..labels import listed, names_with
from ..networks.base import Traffic
from ..protocols import online
from ..protocols.calibration import keep_intervals
from ..protocols.looking import FEWEST_SITES, MANY_OF_SITES, Contribution, Finding, Looked, look
from ..protocols.roll_call import are_named
from ..protocols.run import Outcome
from ..protocols.site import Limits, Site
from ..protocols.training import SecondTraining, train
from ..selection import Chooser
from ..settings import (
    ALONE,
    GONE,
    GRIDS,
    WITH_SHARED,
    DeKRRSettings,
    DifferentialPrivacy,
    EstimatorSettings,
    FeatureSettings,
    GuardSettings,
    TuningSettings,
    Wire,
    entries,
    grid_of,
    is_auto,
    parts_of,
    private_sigma,
)
from ..tables.rows import ArrayRows, ChainedRows, ForgottenRows, Rows, RowsElsewhere, Weighed
from ..tables.sources import count_of
from ..topology import add_edges, build
from ..types import Array
from . import network, site_regressor
from .model_set import HeldOutErrors, validate
from .network import (
    Choosing,
    Here,
    NetworkRun,
    Training,
    are_weighted,
    refuse_other_sites,
    sites_of,
    tuning_of,
)
from .site_regressor import NetworkRegressor, estimator, parameters_of, setting, settings_of, unchanged_by_failure


@dataclass(frozen=True)
class Standing:
    """Where the training of a network stands: maps, sums and coefficients, but no rows."""

    graph: Any
    seed: int  # the run's
    names: Mapping[Hashable, str]  # what the run calls its sites
    outcomes: Mapping[Hashable, Outcome]  # of the sites that are driven in this process
    n_rows: Mapping[Hashable, int]  # how many rows are in the sums
    rows: Mapping[Hashable, Rows] | None  # the rows themselves, where they were kept
    weights: Mapping[Hashable, Weighed] | None = None  # the sums of the rows' weights, where they had some

    def graph_with(self, edges: Any, new: Mapping[Hashable, Rows]) -> Any:
        """Return the graph with more edges, and with the sites of new rows."""
        graph: Any = nx.Graph(self.graph)
        add_edges(graph, edges)
        return build(graph, [*self.n_rows, *(label for label in new if label not in self.n_rows)])

    def all_rows(self, graph: Any, new: Mapping[Hashable, Rows]) -> dict[Hashable, Rows]:
        """Return all rows of each site of a graph, as far as they were kept."""
        added = [edge for edge in graph.edges if not self.graph.has_edge(*edge)]
        if added and self.rows is None:
            a, b = added[0]
            raise SettingsError(
                f"the edge from {a!r} to {b!r} is new: over a new edge sites send sums over all their rows, and those "
                "of the first fit were not kept. Fit with store_rows=True to let sites join later"
            )
        rows: dict[Hashable, Rows] = {}
        n_columns = next(iter(self.outcomes.values())).feature_map.n_columns
        weighted = self.weights is not None or any(part.weighted for part in new.values())
        for label in graph:
            if label in self.n_rows and label not in self.outcomes:
                rows[label] = RowsElsewhere(n_columns, weighted=weighted)
                continue
            parts = [every[label] for every in (self.rows or {}, new) if label in every]
            if self.rows is None and label in self.n_rows:
                weights = None if self.weights is None else self.weights[label]
                parts.insert(0, ForgottenRows(self.n_rows[label], n_columns, weights))
            rows[label] = ChainedRows(parts) if len(parts) > 1 else parts[0]
        return rows

    @property
    def has_parts(self) -> bool:
        """Whether models have more parts than the agreed one."""
        return any(outcome.sigma is not None for outcome in self.outcomes.values())


_BLOCK_ROWS = 1 << 14


@estimator
class DeKRRRegressor(NetworkRegressor):
    """Decentralised kernel ridge regression with features chosen by each site (DeKRR-DDRF).

    A site's model has three parts, f_j = shared + agreed + local, and at home the level of the site. The shared part is
    the same at all sites; it is fitted to exact sums over a spanning tree, together with a level for each site, the
    random intercept of a mixed model. The agreed part is DeKRR, fitted to what the shared part leaves unexplained. The
    local part, boosted trees by default, is fitted to the site's own rows. Level and local part are sent to nobody, and
    count for rows of the site alone. Features are drawn in column scales that all sites learn together. With
    ``shared=None, site_effect=None, local=None, column_scales=None`` the estimator is DeKRR alone, as follows.

    Every site chooses random features from its own rows and ends with its own model; neighbours are made to
    agree on predictions. All sites together minimise ::

        sum_j 1/N |Z_jj theta_j - y_j|^2 + alpha/J |theta_j|^2
              + sum_{p in N_j} c~_j |Z_jj theta_j - Z_pj theta_p|^2,    c~_j = consensus / (N |N_j|),

    exchanging sums over rows once, then coefficients in rounds, with neighbours only.

    A fitted estimator, and so its pickle, holds models, and the sums over rows that `partial_fit` adds to. It holds no
    rows unless ``store_rows=True``. After a fit with `privacy`, or with ``store_sums=False``, it holds no sums either,
    and cannot be updated.

    Attributes
    ----------
    models_ : dict of site to SiteModel
    sites_ : list
        The sites, sorted where they can be.
    graph_ : networkx.Graph
    n_rows_ : dict of site to int
    site_effects_ : dict of site to float, or to ndarray of shape (n_outputs,)
        The level of each site, in units of the (transformed) response; 0 where there are none.
    n_rounds_ : int
    objective_ : float
        The objective above at the end.
    sigma_, alpha_, consensus_ : float
        The values used: those given, those tuned, or with a shared part what "auto" stands for.
    own_weight_ : float
        The weight of a site's own agreed model, beside its neighbours', for rows from elsewhere. For its own rows each
        site chooses one.
    tuning_ : dict of str to ndarray, or None
        "sigma", "alpha", "consensus", "own_weight" (the weight of the own model in a site's prediction) and "error" of
        every candidate: the mean squared held-out error over all sites, in scaled units of the response. None where
        nothing was tuned, as with the defaults.
    validation_ : dict of str to HeldOutErrors, or None
        Under "RSE", the errors of a second training on the rows that it left out: own and union, of all sites and of
        each. None where there was no second training (see `intervals`), and after `partial_fit`.
    left_out_ : dict of site to str
        The sites that the others were better off without, and what their rows look like; see `exclude`. Each has a
        model of its own rows alone. What is not of one site, as predictions without sites, is of the others.
    contributions_ : dict of site to Contribution
        What each site does for the others: their error on held-out rows of a small shared model with its sums and
        without. Empty with ``exclude=None``, of fewer than 3 sites and of more than 256.
    history_ : dict of str to ndarray
        "round" and "objective", before the first round and after each.
    column_scales_ : ndarray of shape (n_columns,)
        How fast the response changes along each column, as all sites agreed; the largest is 1, and all are 1 where none
        were learnt or given. Features are drawn in these scales. They are not importances: they may be squares, and of
        a column of words it is the largest scale of any of its categories.
    traffic_ : Traffic
        Bytes and messages over every directed edge.
    deployment_ : dict of site to Verdict
        With ``deployment=True``: each site's rows, and how many of them would be withheld.
    rows_ : dict of site to Rows
        The training rows, or where to read them, with ``store_rows=True`` only.
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

    n_features: Any = setting(FeatureSettings, "n_features", default="auto")
    features: Any = setting(FeatureSettings, "features")
    sigma: Any = setting(TuningSettings, "sigma")
    alpha: Any = setting(TuningSettings, "alpha")
    consensus: Any = setting(TuningSettings, "consensus")
    folds: int = setting(TuningSettings, "folds", option="moved")
    objective: Any = setting(TuningSettings, "objective", option="moved")
    solver: Any = setting(DeKRRSettings, "solver")
    self_penalty: Any = setting(DeKRRSettings, "self_penalty", option="keyword")
    shared: Any = setting(DeKRRSettings, "shared")
    site_effect: Any = setting(DeKRRSettings, "site_effect")
    local: Any = setting(DeKRRSettings, "local")
    column_scales: Any = setting(DeKRRSettings, "column_scales")
    transform: Any = setting(DeKRRSettings, "transform", option="keyword")
    exclude: Any = setting(DeKRRSettings, "exclude", option="keyword")
    tol: float = setting(DeKRRSettings, "tol")
    max_rounds: int = setting(DeKRRSettings, "max_rounds")
    prediction: str = setting(FeatureSettings, "prediction")
    allocation: str = setting(DeKRRSettings, "allocation", option="keyword")
    exchange: str = setting(DeKRRSettings, "exchange", option="moved")
    precision: str = setting(EstimatorSettings, "precision", option="moved")
    wire_precision: str = setting(Wire, "precision", option="moved")
    censor_start: float = setting(Wire, "censor_start", option="moved")
    censor_decay: float = setting(Wire, "censor_decay", option="moved")
    rows_per_feature: float = setting(GuardSettings, "rows_per_feature", option="moved")
    verify_features: bool = setting(DeKRRSettings, "verify_features", option="moved")
    masks: bool = setting(DeKRRSettings, "masks", option="moved")
    bounds: Any = setting(DeKRRSettings, "bounds")
    privacy: Any = setting(DeKRRSettings, "privacy")
    intervals: Any = setting(EstimatorSettings, "intervals", option="keyword")
    store_rows: bool = setting(EstimatorSettings, "store_rows")
    store_sums: bool = setting(EstimatorSettings, "store_sums", option="moved")
    kernel: Any = setting(FeatureSettings, "kernel", option="keyword")
    mapping: str = setting(FeatureSettings, "mapping", option="keyword")
    n_sites: int = setting(EstimatorSettings, "n_sites", option="keyword")
    min_rows: int = setting(GuardSettings, "min_rows", option="moved")
    callbacks: Any = setting(EstimatorSettings, "callbacks", option="keyword")
    options: Any = None
    deployment: bool = setting(EstimatorSettings, "deployment", option="keyword")

    _keep_of_second = staticmethod(keep_intervals)

    def run_settings(self, **changes: Any) -> DeKRRSettings:
        """Return the settings of a run, with `changes`; those that are tuned are the first of their grids.

        Parameters
        ----------
        **changes : object
        """
        leverage = entries(DeKRRSettings)["max_leverage"]
        parts = self._parts()
        first: dict[str, Any] = {name: self._grid(name)[0] for name in ("alpha", "consensus")}
        if parts["shared"] is not None:
            first["own_weight"] = WITH_SHARED["own_weight"]
            first["alpha"] = None if is_auto(self.alpha) else first["alpha"]
        settings = settings_of(
            self,
            DeKRRSettings,
            **first,
            **parts,
            **{name: value for name, value in self._in_place_of_gone().items() if name in entries(DeKRRSettings)},
            wire=settings_of(self, Wire),
            max_leverage=leverage.default if self.rows_per_feature else leverage.in_process,
            bounds=_as_bounds(self.bounds),
            privacy=DifferentialPrivacy.of(self.privacy),
        )
        if self.deployment:
            settings = _prototype().deployed(settings, self.n_features)
        return msgspec.structs.replace(settings, **changes)

    def _in_place_of_gone(self) -> dict[str, Any]:
        """Return the defaults of settings whose value is deprecated."""
        table = parameters_of(DeKRRRegressor)
        return {name: table[name].entry.default for name in GONE if getattr(self, name) == GONE[name]}

    def _parts(self) -> dict[str, Any]:
        """Return which parts the models have; "auto" is none where the run cannot have any."""
        given = {name: getattr(self, name) for name in ALONE}
        if not isinstance(self.column_scales, str | None):
            scales = np.asarray(self.column_scales, dtype=float)
            columns = getattr(self, "columns_", None)
            if columns is not None and len(scales) == len(columns.columns):
                scales = columns.spread(scales)
            given["column_scales"] = tuple(scales.tolist())
        return parts_of(given, possible=self.exchange == "sums", private=self.privacy is not None)

    def _grid(self, name: str) -> tuple[float, ...]:
        """Return the values of a setting to choose from; with a shared part or privacy "auto" is one value."""
        parts = self._parts()
        return grid_of(name, getattr(self, name), shared=parts["shared"], private=self.privacy is not None)

    def _choosing(self) -> Choosing:
        choosing = Choosing.of(self)
        if self._parts()["shared"] is not None and is_auto(choosing.setting("sigma")):
            choosing = replace(choosing, leaves_sigma=True)
        n_features = choosing.setting("n_features")
        if self.allocation == "sqrt" and not (is_auto(n_features) or isinstance(n_features, Integral)):
            raise SettingsError(
                f"allocation={self.allocation!r} divides one n_features among the sites; give a single number, or "
                "leave it out"
            )
        if self.privacy is None:
            return choosing
        if is_auto(choosing.setting("sigma")):
            sigma = private_sigma(count_of(self._reading))
            choosing = replace(choosing, given={**choosing.given, "sigma": sigma})
        if not isinstance(self.features, str) or self.features == "plain":
            return choosing
        if not is_auto(self.features):
            warn(f"features={self.features!r} would look at rows; with privacy all sites share plain features")
        return replace(choosing, features="plain")

    def _fit(self, rows: Mapping[Hashable, Rows], seed: int) -> None:
        if self.objective is not None:
            warn(
                f"objective={self.objective!r} has no effect any more, and goes in release 0.4: leave it out. Tuning "
                "minimises the error of sites' own predictions; rows from elsewhere are predicted without what a site "
                "adds for its own, as in models_[site].predict(X, elsewhere=True)",
                FutureWarning,
            )
        for name, value in self._in_place_of_gone().items():
            warn(
                f"{name}={GONE[name]!r} is gone, for it gained nothing: {value!r} is used; leave it out. It is an "
                "error from release 0.4 on",
                FutureWarning,
            )
        choosing = self._choosing()
        grids = {"sigma": choosing.sigmas(), "alpha": self._grid("alpha"), "consensus": self._grid("consensus")}
        tuned = [name for name, grid in grids.items() if len(grid) > 1]
        if self.privacy is not None and tuned:
            raise SettingsError(
                f"with privacy give {', '.join(tuned)} as one number each: tuning would look at rows, which the budget "
                "does not pay for"
            )
        settings = self.run_settings(weighted=are_weighted(rows))
        tuning = tuning_of(grids, folds=self.folds, prediction=self.prediction)
        if tuning is not None:
            settings = msgspec.structs.replace(settings, max_maps=max(settings.max_maps, tuning.n_maps))
        trainings = 1 if tuning is None else 1 + len(tuning.sigmas) * tuning.folds
        graph = self._graph(rows, seed)
        if self.deployment:
            folds = self.folds if tuning is not None else 0
            sites = _prototype().ruled(self, sites_of(rows, graph, seed=seed), settings)
            twice = self._finds_intervals(tuned=bool(tuned))
            choosers = choosing.choosers(list(rows))
            self.deployment_: Any = _prototype().judge(sites, choosers, settings, folds, trains_twice=twice)
        sifted, everyone = Sifted(rows, graph), rows
        is_one = isinstance(choosing.setting("n_features"), str | Integral)  # and not a number for each site
        if settings.exclude is not None and settings.shared is not None and is_one:
            sifted = sift(self, rows, graph, seed, settings, self._here(seed, first=True))
        rows, graph = sifted.rows, sifted.graph
        counts = is_auto(choosing.setting("n_features"))  # rows of sources are counted by a pass over them
        if counts and self.privacy is None and not self.deployment and self.allocation != "sqrt":
            here = {label: 0 if isinstance(part, RowsElsewhere) else part.n_rows for label, part in rows.items()}
            choosing = choosing.sized(here, graph)
        second = None
        if self._finds_intervals(tuned=bool(tuned)):
            second = SecondTraining(self._keep_of_second, fits_shared=self.intervals is True)
            trainings += 1
        training: Training = partial(
            train,
            settings=settings,
            tuning=tuning,
            second=second,
            prediction=self.prediction,
            keep_sums=self.store_sums,
        )
        limits: Any = {} if sifted.limits is None else {"limits": sifted.limits}
        rules: Any = {site.name: {"admission": site.admission} for site in sites.values()} if self.deployment else {}

        def trained(site: Site, chooser: Chooser) -> Any:
            return training(replace(site, **limits, **rules.get(site.name, {})), chooser)

        try:
            run = self._train(rows, graph, seed, trained, choosing, self.network, trainings)
        except DataError as error:
            if not self.deployment:
                raise
            raise DataError(f"a deployment would refuse this run: {error}") from error
        self.validation_: dict[str, HeldOutErrors] | None = validate(
            run.outcomes, len(run.sites), self._response.back, run.everywhere
        )
        if settings.privacy is not None:
            _tell_spent(rows, settings.privacy.epsilon)
        self._keep_tuned(run, {name: grid[0] for name, grid in grids.items()})
        self._keep_run(run, choosing, seed, with_rows=self.store_rows)
        self.traffic_ = sifted.traffic.plus(self.traffic_)
        self.contributions_: dict[Hashable, Contribution] = sifted.contributions
        self.left_out_: dict[Hashable, str] = sifted.apart
        self._apart = {label: alone(self, {label: everyone[label]}, seed) for label in sifted.apart}
        self._keep_apart()

    def _finds_intervals(self, *, tuned: bool) -> bool:
        """Return whether a fit trains a second time, for intervals."""
        if self.intervals == "auto":
            tuned |= any(is_auto(getattr(self, name)) for name in GRIDS)
            return tuned and self.privacy is None and not self.rows_per_feature and not self.deployment
        if self.intervals and self.privacy is not None:
            raise SettingsError(
                "intervals take a second training, which the privacy budget does not pay for: give intervals=False"
            )
        return bool(self.intervals)

    def _keep_tuned(self, run: NetworkRun, first: Mapping[str, float]) -> None:
        """Set the values that were used: those that all sites chose, or else the `first` of each grid."""
        outcome = next(iter(run.outcomes.values()))
        tuned = outcome.tuned
        self.own_weight_: float = outcome.own_weight
        self.sigma_: float = tuned.sigma if tuned else outcome.sigma or first["sigma"]
        self.alpha_: float = tuned.alpha if tuned else outcome.alpha or first["alpha"]
        self.consensus_: float = tuned.consensus if tuned else first["consensus"]
        self.tuning_: dict[str, Array] | None = None
        if tuned:
            columns = np.array(tuned.grid).T
            self.tuning_ = dict(zip([*GRIDS, "own_weight"], columns, strict=True)) | {"error": tuned.errors}

    def _keep_run(self, run: NetworkRun, choosing: Choosing, seed: int, *, with_rows: bool) -> None:
        """Set the models, and what it takes to go on from them, which after a private run nobody may."""
        self._keep(run, choosing.kernel_name(), self.sigma_, prediction=self.prediction, tol=self.tol)
        if with_rows:
            self.rows_ = {label: site.rows.owned() for label, site in run.sites.items()}
        elif hasattr(self, "rows_"):
            del self.rows_
        levels = {label: model.level for label, model in self.models_.items()}
        self.site_effects_: dict[Hashable, Any] = {
            label: level.item() if level.ndim == 0 else level for label, level in levels.items()
        }
        scales = next(iter(run.outcomes.values())).column_scales
        scales = np.ones(run.n_columns) if scales is None else scales
        if hasattr(self, "columns_"):  # the user's columns, not what they became
            scales = self.columns_.per_column(scales)
            scales = scales / (scales.max() or 1.0)
        self.column_scales_: Array = scales
        self._standing: Standing | None = None
        self._is_private = any(outcome.privacy is not None for outcome in run.outcomes.values())
        if not self._is_private and all(outcome.ready is not None for outcome in run.outcomes.values()):
            rows = self.rows_ if with_rows else None
            self._standing = Standing(self.graph_, seed, run.names, run.outcomes, run.n_rows, rows, run.weights)

    def _keep_apart(self) -> None:
        """Set the models of sites that are left out beside those of the others."""
        for label, other in self._apart.items():
            self.models_[label] = other.models_[label]
            self.site_effects_[label] = other.site_effects_[label]

    def partial_fit(self, X: Any, y: Any, sites: Any = None, edges: Any = (), sample_weight: Any = None) -> Self:
        """Update a fitted network with new rows. The result is that of all rows with the same features and scaling.

        The agreed part alone is fitted anew: the shared part, levels, local parts and intervals stay as they are.

        Parameters
        ----------
        sites : array-like of shape (n_rows,), or str, optional
            The site of every new row; at least `min_rows` for each site that has any. A new label is a site
            that joins, for which the first fit must have had ``store_rows=True``. None deals the rows out to the
            sites there are.
        edges : sequence of (site, site)
            Edges to add to the graph; at least one for every site that joins.
        """
        if not hasattr(self, "models_"):
            if len(edges):
                raise SettingsError(
                    "edges are added to the graph of a fitted network; for the first fit, give a topology"
                )
            return self.fit(X, y, sites, sample_weight=sample_weight)
        standing = self._require_standing()
        if self.exchange != "sums":
            raise SettingsError(
                f'partial_fit adds up sums, but exchange is {self.exchange!r}: set it to "sums", or fit again'
            )
        dealt = itertools.cycle(self.sites_)  # among the sites that there are
        given = (X, y, sites, standing.seed, lambda n_rows: [*itertools.islice(dealt, n_rows)], None, sample_weight)
        new = self._read(*given, first=False)
        known = next(iter(self.models_.values())).n_outputs
        for label, rows in new.items():
            if not isinstance(rows, RowsElsewhere) and rows.n_outputs != known:
                raise DataError(f"the new rows of site {label!r} have {rows.n_outputs} outputs; the fit had {known}")
        joining = [label for label in new if label not in self.models_]
        if joining and not len(edges):
            raise DataError(f"sites {joining} are new: give their edges, as in edges=[(new, old), ...]")
        if (joining or len(edges)) and standing.has_parts:
            raise SettingsError(
                "a site cannot join, and an edge cannot be added, where models have a shared or a local part or "
                "learnt column scales: fit again, or fit with shared=None, local=None and column_scales=None"
            )
        self._go_on(standing, standing.graph_with(edges, new), new)
        return self

    def remove_site(self, site: Hashable) -> Self:
        """Let a site leave a fitted network: the result of training without it, with the same features.

        All that is fitted is fitted anew to the others' rows: shared part, levels, agreed and local parts. What was
        chosen with the site stays: features, column scales, scaling, ridge, tuned numbers and intervals. So do models
        that were saved or sent before. Whoever has seen the sums over all sites before and after knows the site's sums.

        Parameters
        ----------
        site : hashable
            Its label; the others' graph must stay connected. Where models have more than the agreed part, the fit must
            have had ``store_rows=True``.
        """
        check_is_fitted(self)
        if site not in self.models_:
            raise DataError(f"{site!r} is not a site; the sites are {listed(self.sites_)}")
        if site in self._apart:  # it is in no sums
            for known in (self._apart, self.left_out_, self.models_, self.site_effects_, self.n_rows_):
                del known[site]
            self.sites_.remove(site)
            return self
        if len(self.sites_) - len(self._apart) == 1:
            raise DataError(f"{site!r} is the only site, and cannot leave")
        standing = self._require_standing()
        has_parts = standing.has_parts
        if has_parts and standing.rows is None:
            raise SettingsError(
                f"without {site!r} the others sum their rows again, which were not kept: fit with store_rows=True to "
                "let sites leave later, or fit the others alone"
            )
        if has_parts and self.run_settings().masks:
            raise SettingsError(
                f"masks hide the sums of every site, and new sums without {site!r} would tell its own: fit the others "
                "anew, with features of their own"
            )
        others = [label for label in standing.n_rows if label != site]
        graph = build(nx.Graph(standing.graph.subgraph(others)), others)
        self._go_on(standing, graph, {}, self.prediction if has_parts else None)
        self.contributions_.pop(site, None)
        return self

    def _require_standing(self) -> Standing:
        """Return where training stands, or refuse to go on."""
        site_regressor.check(self)
        if self._standing is None:
            raise SettingsError(
                "the privacy budget is spent by the first fit: a second release of sums would exceed it"
                if self._is_private
                else "the sums of the first fit were not kept: fit with store_sums=True"
            )
        if self.privacy is not None:
            raise SettingsError("the first fit sent sums without noise, which privacy cannot take back: fit again")
        return self._standing

    def _go_on(
        self, standing: Standing, graph: Any, new: Mapping[Hashable, Rows], prediction: str | None = None
    ) -> None:
        rows, choosing = standing.all_rows(graph, new), self._choosing()
        settings = self.run_settings(
            alpha=self.alpha_, consensus=self.consensus_, own_weight=self.own_weight_, weighted=are_weighted(rows)
        )
        labels, outputs = list(rows), next(iter(standing.outcomes.values())).coefficients.shape[1:]
        refuse_other_sites(self.network, standing.n_rows, labels)
        sites = network.sites_of(rows, graph, seed=standing.seed, names=names_with(standing.names, labels))

        def procedure(label: Hashable, site: Any) -> Any:
            before = standing.outcomes.get(label)
            size = before.feature_map.n_features if before else choosing.sizes(labels)[label]
            nothing = ArrayRows(np.empty((0, site.rows.n_columns)), np.empty((0, *outputs)))
            chooser = choosing.chooser(size, self.sigma_)
            return online.go_on(site, before, new.get(label, nothing), chooser, settings, prediction)

        run = network.run(sites, procedure, self.network)
        with unchanged_by_failure(self):
            n_rows = run.n_rows | {label: self.n_rows_[label] for label in self._apart}
            self.sites_, self.graph_, self.n_rows_, self.validation_ = list(n_rows), graph, n_rows, None
            self._range = None  # that of the new rows is not known
            self._keep_run(run, choosing, standing.seed, with_rows=self.store_rows and standing.rows is not None)
            self._keep_apart()


def _prototype() -> Any:
    """Return what knows of deployments; the core imports no annex but by name."""
    return import_module("dekrr.mesh.prototype")


def _tell_spent(rows: Mapping[Hashable, Rows], epsilon: float) -> None:
    """Warn where fits in this process have spent more on a row, together, than this fit promises."""
    from ..privacy.odometer import PROCESS  # of private fits alone

    blocks = (block for part in rows.values() for block in part.blocks(_BLOCK_ROWS))
    total, fits = PROCESS.add(blocks, epsilon)
    if fits > 1:
        warn(
            f"{fits} fits with differential privacy in this process used the same rows, and together spent epsilon "
            f"{total:g} on one of them, not {epsilon:g}. Fit once, or reckon with {total:g}"
        )


def _as_bounds(bounds: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    if bounds is None:
        return None
    lower, upper = (tuple(np.asarray(bound, dtype=float).ravel().tolist()) for bound in bounds)
    return lower, upper


_MOST_LEFT_OUT = 1 / 3  # of the sites


@dataclass
class Sifted:
    """The sites that train together, and those that are left out."""

    rows: Mapping[Hashable, Rows]
    graph: Any  # of the sites that train together
    # the sites that are left out, and what their rows look like
    apart: dict[Hashable, str] = field(default_factory=dict)
    contributions: dict[Hashable, Contribution] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    limits: Limits | None = None  # see `dekrr.protocols.looking.Looked`


def sift(
    regressor: Any, rows: Mapping[Hashable, Rows], graph: Any, seed: int, settings: DeKRRSettings, here: Here | None
) -> Sifted:
    """Look at the rows of all sites, leave out those that harm the others, and warn of what looks wrong.

    The worst is left out first, and then the others look again; at most a third of the sites. The topology of the
    regressor is built again without them. Sites that are driven in several processes (`here`) are named and stay in,
    because the rows of those that are left are where the graph of all sites has them.
    """
    sifted = Sifted(rows, graph)
    if not len(rows) >= FEWEST_SITES or not are_named(len(rows)):
        return sifted
    most = int(_MOST_LEFT_OUT * len(rows))
    names, told = regressor.get_feature_names_out(), set()
    procedure: Any = lambda label, site: look(site, settings)  # noqa: E731
    while True:
        with network.watching(regressor.verbose, regressor.callbacks, before="looking at rows") as watch:
            run = network.run(
                network.sites_of(sifted.rows, sifted.graph, seed=seed), procedure, regressor.network, watch
            )
        sifted.traffic = sifted.traffic.plus(run.traffic)
        labels = {name: label for label, name in run.names.items()}
        looks: Mapping[Hashable, Any] = run.outcomes
        looked: Looked = next(iter(looks.values()))
        sifted.contributions |= {labels[name]: one for name, one in looked.contributions.items()}
        sifted.limits = looked.limits
        harmful = None if looked.harmful is None else labels[looked.harmful]
        counts = Counter((one.kind, one.place) for found in looks.values() for one in found.findings)
        most_alike = max(1, len(looks) // MANY_OF_SITES)  # where more sites are odd in one way, none is: they differ so
        for label, found in looks.items():
            odd = tuple(one for one in found.findings if counts[one.kind, one.place] <= most_alike)
            if label not in told and label != harmful and odd:
                told.add(label)
                warn(_in_words(label, odd, names))
        if harmful is None:
            return sifted
        words = _in_words(harmful, looks[harmful].findings if harmful in looks else (), names)
        one = sifted.contributions[harmful]
        harm = (
            f"{words} The others' error on held-out rows of a small model is {one.with_site:.3g} with the sums of "
            f"{harmful!r}, and {one.without_site:.3g} without"
        )
        rest = {label: own for label, own in sifted.rows.items() if label != harmful}
        if settings.exclude == "stop":
            raise DataError(f'{harm}. Put it right, or give exclude="harmful" or "warn"')
        stays = here is not None or settings.exclude == "warn" or len(sifted.apart) == most
        graph = None if stays else _graph_of(regressor, sifted.graph, rest, seed)
        if graph is None:
            warn(f"{harm}. It is in the fit all the same: put it right, or fit without it")
            return sifted
        warn(f"{harm}: it is left out, and has a model of its own rows. Put it right; exclude=None keeps such sites in")
        sifted.apart[harmful] = words
        sifted.rows, sifted.graph = rest, graph


def _graph_of(regressor: Any, graph: Any, rows: Mapping[Hashable, Rows], seed: int) -> Any:
    """Return the graph of the sites that are left; None where it falls apart."""
    if isinstance(regressor.topology, str):
        return regressor._graph(rows, seed)
    try:
        return topologies.build(nx.Graph(graph.subgraph(rows)), list(rows))
    except TopologyError:
        return None


def _in_words(label: Hashable, findings: tuple[Finding, ...], names: Any) -> str:
    """Return what looks wrong at a site, in a sentence for each finding."""
    told = [f"the {'response' if one.place < 0 else f'column {names[one.place]!r}'} {one.text}" for one in findings[:3]]
    return f"site {label!r}: {'; '.join(told) or 'its rows are unlike those of the others.'}"


def alone(regressor: Any, rows: Mapping[Hashable, Rows], seed: int) -> Any:
    """Return a copy of an estimator, fitted to the rows of one site by itself."""
    other = copy.copy(regressor)
    other.set_params(exclude=None, network=None, topology="auto", deployment=False, callbacks=None, verbose=0)
    try:
        other._fit(rows, seed)
    except SettingsError as error:
        raise SettingsError(f"a site that is left out is fitted by itself: {error}") from error
    return other
