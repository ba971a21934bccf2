"""The regressor of the paper's method, DeKRR-DDRF."""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any, Self

import msgspec
import numpy as np
from sklearn.utils.validation import check_is_fitted

from ..errors import DataError, SettingsError, warn
from ..labels import listed
from ..privacy.odometer import PROCESS
from ..protocols.calibration import keep_intervals
from ..protocols.training import SecondTraining
from ..rows import Rows
from ..settings import (
    GRIDS,
    WITH_SHARED,
    DeKRRSettings,
    EstimatorSettings,
    FeatureSettings,
    GuardSettings,
    TuningSettings,
    Wire,
    entries,
    grid_with_parts,
    is_auto,
    parts_of,
)
from ..types import Array
from . import parameters
from .base import unchanged_by_failure
from .choosing import Choosing
from .deployment import Verdict, deployed, judge, refusal, ruled, with_rules
from .features import NetworkRegressor
from .network import Run, are_weighted, sites_of
from .parameters import estimator, setting, settings_of
from .procedures import train_parts, tuning_of
from .ranks import RowsElsewhere
from .updates import Standing, go_on
from .validation import HeldOutErrors, validate

_BLOCK_ROWS = 1 << 14


@estimator
class DeKRRRegressor(NetworkRegressor):
    """Decentralised kernel ridge regression with features chosen by each site (DeKRR-DDRF).

    A site's model has three parts, f_j = shared + agreed + local. The shared part is the same at all sites; it is
    fitted to exact sums over a spanning tree. The agreed part is DeKRR, fitted to what the shared part leaves
    unexplained. The local part corrects both for the site's own rows, and is sent to nobody. Features are drawn in
    column scales that all sites learn together. With ``shared=None, local=None, column_scales=None`` the estimator is
    DeKRR alone, as follows.

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
    n_rounds_ : int
    objective_ : float
        The objective above at the end.
    sigma_, alpha_, consensus_ : float
        The values used: those given, those tuned, or with a shared part what "auto" stands for.
    own_weight_ : float
        The weight of a site's own model when it predicts with its neighbourhood.
    tuning_ : dict of str to ndarray, or None
        "sigma", "alpha", "consensus", "own_weight" (the weight of the own model in a site's prediction) and "error" of
        every candidate: the mean squared held-out error over all sites, in scaled units of the response. None where
        nothing was tuned, as with the defaults.
    validation_ : dict of str to HeldOutErrors, or None
        Under "RSE", the errors of a second training on the rows that it left out: own and union, of all sites and of
        each. None where there was no second training (see `intervals`), and after `partial_fit`.
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
    folds: int = setting(TuningSettings, "folds")
    objective: str = setting(TuningSettings, "objective")
    solver: Any = setting(DeKRRSettings, "solver")
    self_penalty: Any = setting(DeKRRSettings, "self_penalty")
    shared: Any = setting(DeKRRSettings, "shared")
    local: Any = setting(DeKRRSettings, "local")
    column_scales: Any = setting(DeKRRSettings, "column_scales")
    tol: float = setting(DeKRRSettings, "tol")
    max_rounds: int = setting(DeKRRSettings, "max_rounds")
    prediction: str = setting(FeatureSettings, "prediction")
    allocation: str = setting(DeKRRSettings, "allocation")
    exchange: str = setting(DeKRRSettings, "exchange")
    precision: str = setting(DeKRRSettings, "precision")
    wire_precision: str = setting(Wire, "precision")
    censor_start: float = setting(Wire, "censor_start")
    censor_decay: float = setting(Wire, "censor_decay")
    rows_per_feature: float = setting(GuardSettings, "rows_per_feature")
    verify_features: bool = setting(DeKRRSettings, "verify_features")
    masks: bool = setting(DeKRRSettings, "masks")
    bounds: Any = setting(DeKRRSettings, "bounds")
    privacy: Any = setting(DeKRRSettings, "privacy")
    intervals: Any = setting(EstimatorSettings, "intervals")
    store_rows: bool = setting(EstimatorSettings, "store_rows")
    store_sums: bool = setting(EstimatorSettings, "store_sums")
    deployment: bool = setting(EstimatorSettings, "deployment")

    _keep_of_second = staticmethod(keep_intervals)

    def run_settings(self, **changes: Any) -> DeKRRSettings:
        """Return the settings of a run; those that are tuned are the first of their grids.

        Parameters
        ----------
        **changes : object
            Settings to have instead.
        """
        leverage = entries(DeKRRSettings)["max_leverage"]
        parts = self._parts()
        first = {name: self._grid(name)[0] for name in ("alpha", "consensus")}
        if parts["shared"] is not None:
            first["own_weight"] = WITH_SHARED["own_weight"]
        settings = settings_of(
            self,
            DeKRRSettings,
            **first,
            **parts,
            wire=settings_of(self, Wire),
            max_leverage=leverage.default if self.rows_per_feature else leverage.in_process,
            bounds=_as_bounds(self.bounds),
        )
        if self.deployment:
            settings = deployed(settings, FeatureSettings().n_features if is_auto(self.n_features) else self.n_features)
        return msgspec.structs.replace(settings, **changes)

    def _parts(self) -> dict[str, Any]:
        """Return which parts the models have; "auto" is none where the run cannot have any."""
        given = {"shared": self.shared, "local": self.local, "column_scales": self.column_scales}
        if not isinstance(self.column_scales, str | None):
            scales = np.asarray(self.column_scales, dtype=float)
            columns = getattr(self, "columns_", None)
            if columns is not None and len(scales) == len(columns.columns):
                scales = columns.spread(scales)
            given["column_scales"] = tuple(scales.tolist())
        return parts_of(given, possible=self.privacy is None and self.exchange == "sums")

    def _grid(self, name: str, given: Any = None) -> tuple[float, ...]:
        """Return the values of a setting to choose from; with a shared part "auto" is one value."""
        given = getattr(self, name) if given is None else given
        return grid_with_parts(name, given, self._parts()["shared"])

    def _choosing(self) -> Choosing:
        choosing = Choosing.of(self)
        if self._parts()["shared"] is not None and is_auto(choosing.setting("sigma")):
            choosing = replace(choosing, leaves_sigma=True)
        n_features = choosing.setting("n_features")
        if self.allocation != "equal" and not (is_auto(n_features) or isinstance(n_features, Integral)):
            raise SettingsError(
                f"allocation={self.allocation!r} divides one n_features among the sites; give a single number, or "
                "leave it out"
            )
        if self.privacy is None or not isinstance(self.features, str) or self.features == "plain":
            return choosing
        warn(f"features={self.features!r} would look at rows; with privacy all sites share plain features")
        return Choosing.of(self, features="plain")

    def _fit(self, rows: Mapping[Hashable, Rows], seed: int) -> None:
        choosing = self._choosing()
        grids = {"sigma": choosing.sigmas(), "alpha": self._grid("alpha"), "consensus": self._grid("consensus")}
        tuned = [name for name, grid in grids.items() if len(grid) > 1]
        if self.privacy is not None and tuned:
            raise SettingsError(
                f"with privacy give {', '.join(tuned)} as one number each: tuning would look at rows, which the budget "
                "does not pay for"
            )
        settings = self.run_settings(weighted=are_weighted(rows))
        tuning = tuning_of(grids, folds=self.folds, objective=self.objective, prediction=self.prediction)
        if tuning is not None:
            settings = msgspec.structs.replace(settings, max_maps=max(settings.max_maps, tuning.n_maps))
        trainings = 1 if tuning is None else 1 + len(tuning.sigmas) * tuning.folds
        graph = self._graph(rows, seed)
        counts = is_auto(choosing.setting("n_features"))  # rows of sources are counted by a pass over them
        if counts and self.privacy is None and not self.deployment and self.allocation == "equal":
            here = {label: 0 if isinstance(part, RowsElsewhere) else part.n_rows for label, part in rows.items()}
            choosing = choosing.sized(here, graph)
        if self.deployment:
            folds = self.folds if tuning is not None else 0
            sites = ruled(self, sites_of(rows, graph, seed=seed), settings)
            twice = self._finds_intervals(tuned=bool(tuned))
            self.deployment_: dict[Hashable, Verdict] = judge(
                sites, choosing.choosers(list(rows)), settings, folds, trains_twice=twice
            )
        second = None
        if self._finds_intervals(tuned=bool(tuned)):
            second = SecondTraining(self._keep_of_second, fits_shared=self.intervals is True)
            trainings += 1
        training = train_parts(
            settings,
            tuning,
            second,
            prediction=self.prediction,
            objective=self.objective,
            keep_sums=self.store_sums,
        )
        if self.deployment:
            training = with_rules(training, sites)
        try:
            run = self._train(rows, graph, seed, training, choosing, self.network, trainings)
        except DataError as error:
            if not self.deployment:
                raise
            raise refusal(error) from error
        self.validation_: dict[str, HeldOutErrors] | None = validate(run.outcomes, len(run.sites))
        if self.privacy is not None:
            _tell_spent(rows, self.privacy.epsilon)
        self._keep_tuned(run, {name: grid[0] for name, grid in grids.items()})
        self._keep_run(run, choosing, seed, with_rows=self.store_rows)

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

    def _keep_tuned(self, run: Run, first: Mapping[str, float]) -> None:
        """Set the values that were used: those that all sites chose, or else the `first` of each grid."""
        outcome = next(iter(run.outcomes.values()))
        tuned = outcome.tuned
        self.own_weight_: float = outcome.own_weight
        self.sigma_: float = tuned.sigma if tuned else outcome.sigma or first["sigma"]
        self.alpha_: float = tuned.alpha if tuned else first["alpha"]
        self.consensus_: float = tuned.consensus if tuned else first["consensus"]
        self.tuning_: dict[str, Array] | None = None
        if tuned:
            columns = np.array(tuned.grid).T
            self.tuning_ = dict(zip([*GRIDS, "own_weight"], columns, strict=True)) | {"error": tuned.errors}

    def _keep_run(self, run: Run, choosing: Choosing, seed: int, *, with_rows: bool) -> None:
        """Set the models, and what it takes to go on from them, which after a private run nobody may."""
        self._keep(run, choosing.kernel_name(), self.sigma_, prediction=self.prediction, tol=self.tol)
        if with_rows:
            self.rows_ = {label: site.rows.owned() for label, site in run.sites.items()}
        elif hasattr(self, "rows_"):
            del self.rows_
        scales = next(iter(run.outcomes.values())).column_scales
        self.column_scales_: Array = np.ones(run.n_columns) if scales is None else scales
        self._standing: Standing | None = None
        self._is_private = any(outcome.privacy is not None for outcome in run.outcomes.values())
        if not self._is_private and all(outcome.ready is not None for outcome in run.outcomes.values()):
            rows = self.rows_ if with_rows else None
            self._standing = Standing(self.graph_, seed, run.names, run.outcomes, run.n_rows, rows, run.weights)

    def partial_fit(self, X: Any, y: Any, sites: Any = None, edges: Any = (), sample_weight: Any = None) -> Self:
        """Update a fitted network with new rows. The result is that of all rows with the same features and scaling.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns), source, or mapping of site to source
        y : array-like of shape (n_rows,) or (n_rows, n_outputs), str, or list of str
            For sources, the name of the response's column; see `fit`.
        sites : array-like of shape (n_rows,), or str, optional
            The site of every new row; at least `min_rows` for each site that has any. A new label is a site
            that joins, for which the first fit must have had ``store_rows=True``. None deals the rows out to the
            sites there are.
        edges : sequence of (site, site)
            Edges to add to the graph; at least one for every site that joins.
        sample_weight : array-like of shape (n_rows,), or str, optional
            How often each new row counts; see `fit`.
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
        new = self._read(X, y, sites, standing.seed, self._dealt_to_all, None, sample_weight, first=False)
        self._refuse_other_outputs(new)
        joining = [label for label in new if label not in self.models_]
        if joining and not len(edges):
            raise DataError(f"sites {joining} are new: give their edges, as in edges=[(new, old), ...]")
        if joining or len(edges):
            standing.refuse_new_edges_with_parts()
        self._go_on(standing, standing.graph_with(edges, new), new)
        return self

    def _refuse_other_outputs(self, new: Mapping[Hashable, Rows]) -> None:
        known = next(iter(self.models_.values())).n_outputs
        for label, rows in new.items():
            if not isinstance(rows, RowsElsewhere) and rows.n_outputs != known:
                raise DataError(f"the new rows of site {label!r} have {rows.n_outputs} outputs; the fit had {known}")

    def remove_site(self, site: Hashable) -> Self:
        """Let a site leave a fitted network: the result of training without it, with the same features.

        Parameters
        ----------
        site : hashable
            Its label; the others' graph must stay connected.
        """
        check_is_fitted(self)
        if site not in self.models_:
            raise DataError(f"{site!r} is not a site; the sites are {listed(self.sites_)}")
        if len(self.sites_) == 1:
            raise DataError(f"{site!r} is the only site, and cannot leave")
        standing = self._require_standing()
        if any(outcome.shared is not None for outcome in standing.outcomes.values()):
            raise SettingsError(
                f"the shared part has sums over the rows of {site!r}, which cannot be taken out: fit the others again, "
                "or fit with shared=None to let sites leave later"
            )
        self._go_on(standing, standing.graph_without(site), {})
        return self

    def _require_standing(self) -> Standing:
        """Return where training stands, or refuse to go on."""
        parameters.check(self)
        if self._standing is None:
            raise SettingsError(
                "the privacy budget is spent by the first fit: a second release of sums would exceed it"
                if self._is_private
                else "the sums of the first fit were not kept: fit with store_sums=True"
            )
        if self.privacy is not None:
            raise SettingsError("the first fit sent sums without noise, which privacy cannot take back: fit again")
        return self._standing

    def _dealt_to_all(self, n_rows: int) -> list[Hashable]:
        return [self.sites_[row % len(self.sites_)] for row in range(n_rows)]

    def _go_on(self, standing: Standing, graph: Any, new: Mapping[Hashable, Rows]) -> None:
        rows, choosing = standing.all_rows(graph, new), self._choosing()
        settings = self.run_settings(
            alpha=self.alpha_, consensus=self.consensus_, own_weight=self.own_weight_, weighted=are_weighted(rows)
        )
        run = go_on(standing, graph, rows, new, choosing, self.sigma_, settings, self.network)
        with unchanged_by_failure(self):
            self.sites_, self.graph_, self.n_rows_, self.validation_ = list(rows), graph, run.n_rows, None
            self._keep_run(run, choosing, standing.seed, with_rows=self.store_rows and standing.rows is not None)


def _tell_spent(rows: Mapping[Hashable, Rows], epsilon: float) -> None:
    """Warn where fits in this process have spent more on a row, together, than this fit promises."""
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
