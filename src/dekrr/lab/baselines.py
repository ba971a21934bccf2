"""What DeKRR is compared with: shared features, no exchange, and all rows in one place."""

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import networkx as nx
import numpy as np
from scipy.linalg import cho_factor, cho_solve

from ..errors import ModelFileError, SettingsError
from ..estimators.network import Choosing, Training, are_weighted, scaling_of, tuning_of
from ..estimators.site_regressor import (
    FeatureRegressor,
    NetworkRegressor,
    SiteRegressor,
    estimator,
    setting,
    settings_of,
)
from ..kernels import Kernel, make_kernel, name_of
from ..labels import listed, names_of
from ..model import Header, as_rows
from ..protocols.baselines import allreduce, alone, dkla
from ..scaling import UNSCALED, AnyScaling
from ..settings import (
    GRIDS_ALONE,
    AllReduceSettings,
    AloneSettings,
    DeKRRSettings,
    DKLASettings,
    FeatureSettings,
    GuardSettings,
    SharedSettings,
    grid_of,
    is_auto,
)
from ..tables.rows import ChainedRows, Rows
from ..types import Array

_FOLDS = 5  # of the rows of a site that chooses its settings alone


@estimator
class DKLARegressor(NetworkRegressor):
    """Shared features and consensus on coefficients by ADMM (DKLA; Xu et al. 2021).

    With ``features="plain"`` all sites draw the same features from the run's seed. With other features it is the
    paper's DKLA-DDRF: one site chooses from its rows, and its choice is passed on to all.

    Attributes
    ----------
    models_, sites_, graph_, n_rows_, n_rounds_, objective_, history_, traffic_
        As in `DeKRRRegressor`.
    """

    rho: float = setting(DKLASettings, "rho")
    rho_period: int = setting(DKLASettings, "rho_period")
    selecting_site: Any = setting(SharedSettings, "selecting_site")
    tol: float = setting(DKLASettings, "tol")
    max_rounds: int = setting(DKLASettings, "max_rounds")

    def run_settings(self, sites: Sequence[Hashable], **changes: Any) -> DKLASettings:
        """Return the settings of a run with these sites, and with other values of some.

        Parameters
        ----------
        sites : sequence of hashable
            The labels of the sites.
        **changes : object
            Settings to have instead.
        """
        return settings_of(self, DKLASettings, selecting_site=_name_among(self.selecting_site, sites), **changes)

    def _fit(self, rows: Mapping[Hashable, Rows], seed: int) -> None:
        choosing, settings = Choosing.of(self), self.run_settings(list(rows), weighted=are_weighted(rows))
        training = partial(dkla.train, settings=settings)
        run = self._train(rows, self._graph(rows, seed), seed, training, choosing, self.network)
        self._keep(run, choosing.kernel_name(), choosing.sigmas()[0], tol=self.tol)


@estimator
class COKERegressor(DKLARegressor):
    """DKLA that sends coefficients only when they have moved enough (COKE; Xu et al. 2021).

    In round k a site that has moved by less than ``censor_start * censor_decay**k`` since it last sent its
    coefficients says so in a few bytes, and its neighbours go on with the old ones.

    Attributes
    ----------
    models_, sites_, graph_, n_rows_, n_rounds_, objective_, history_, traffic_
        As in `DeKRRRegressor`.
    messages_saved_ : float
        The share of coefficient messages that were not sent.
    """

    censor_start: float = setting(DKLASettings, "censor_start", default=0.5)
    censor_decay: float = setting(DKLASettings, "censor_decay")

    @property
    def messages_saved_(self) -> float:
        """The share of coefficient messages that were not sent."""
        sent, saved = (self.traffic_.messages_by_kind[kind] for kind in ("Coefficients", "Unchanged"))
        return saved / max(sent + saved, 1)


@estimator
class AllReduceRegressor(NetworkRegressor):
    """Shared features and exact sums over a spanning tree: at once the result to which DKLA converges.

    Attributes
    ----------
    models_, sites_, graph_, n_rows_, n_rounds_, objective_, history_, traffic_
        As in `DeKRRRegressor`.
    """

    selecting_site: Any = setting(SharedSettings, "selecting_site")
    masks: bool = setting(AllReduceSettings, "masks")

    def _fit(self, rows: Mapping[Hashable, Rows], seed: int) -> None:
        selecting = _name_among(self.selecting_site, list(rows))
        choosing = Choosing.of(self)
        settings = settings_of(self, AllReduceSettings, selecting_site=selecting, weighted=are_weighted(rows))
        training = partial(allreduce.train, settings=settings)
        run = self._train(rows, self._graph(rows, seed), seed, training, choosing, self.network)
        self._keep(run, choosing.kernel_name(), choosing.sigmas()[0])


@estimator
class LocalRegressor(FeatureRegressor):
    """No exchange at all: every site alone with its rows, its features, its scaling and its choice of settings.

    Here `min_rows` is only for dealing rows out when `fit` is given no sites.

    Attributes
    ----------
    models_, sites_, graph_, n_rows_, n_rounds_, objective_, history_, traffic_
        As in `DeKRRRegressor`; the graph has no edges.
    sigma_, alpha_ : dict of site to float
        The values used: those given, or those that the site chose.
    """

    alpha: Any = setting(AloneSettings, "alpha")
    sigma: Any = setting(AloneSettings, "sigma")
    n_features: Any = setting(FeatureSettings, "n_features")
    features: Any = setting(FeatureSettings, "features")

    def _fit(self, rows: Mapping[Hashable, Rows], seed: int) -> None:
        choosing = Choosing.of(self)
        given = {"sigma": choosing.setting("sigma"), "alpha": self.alpha}
        grids = {name: GRIDS_ALONE[name] if is_auto(value) else grid_of(name, value) for name, value in given.items()}
        sigma, alpha = grids["sigma"][0], grids["alpha"][0]
        tuning = tuning_of({**grids, "consensus": (1.0,)}, folds=_FOLDS, prediction="own")
        weighted = are_weighted(rows)
        settings = settings_of(self, AllReduceSettings, alpha=alpha, weighted=weighted)
        training: Training = partial(allreduce.train, settings=settings)
        trainings = 1
        if tuning is not None:
            of_folds = settings_of(self, DeKRRSettings, alpha=alpha, weighted=weighted)
            training = partial(alone.train, settings=settings, of_folds=of_folds, tuning=tuning)
            trainings += len(tuning.sigmas) * tuning.folds
        run = self._train(rows, _without_edges(rows), seed, training, choosing, trainings=trainings)
        self._keep(run, choosing.kernel_name(), sigma)
        tuned = {label: outcome.tuned for label, outcome in run.outcomes.items()}
        self.sigma_ = {label: sigma if found is None else found.sigma for label, found in tuned.items()}
        self.alpha_ = {label: alpha if found is None else found.alpha for label, found in tuned.items()}


@estimator
class CentralizedRFF(FeatureRegressor):
    """Ridge regression on random features of the pooled rows: one site that has everything.

    Attributes
    ----------
    models_ : dict of site to SiteModel
        The same model for every site.
    """

    def _fit(self, rows: Mapping[Hashable, Rows], seed: int) -> None:
        first, choosing = next(iter(rows)), Choosing.of(self)
        pooled: dict[Hashable, Rows] = {first: ChainedRows(list(rows.values()))}
        training = partial(allreduce.train, settings=settings_of(self, AllReduceSettings, weighted=are_weighted(rows)))
        run = self._train(pooled, _without_edges(pooled), seed, training, choosing)
        self._keep(run, choosing.kernel_name(), choosing.sigmas()[0])
        self.models_ = dict.fromkeys(rows, self.models_[first])


_ROWS_PER_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class KernelModel:
    """Exact kernel ridge regression on the pooled rows. The model contains these rows, so it cannot be saved."""

    header: Header
    kernel: Kernel
    rows: Array
    dual_coefficients: Array
    scaling: AnyScaling = UNSCALED
    calibration: None = None

    def interval_encoded(self, rows: Array, coverage: float = 0.9) -> Array:
        """Raise `SettingsError`: there are no intervals."""
        raise SettingsError("an exact kernel model has no intervals: fit DeKRRRegressor")

    def predict(self, X: Any, *, elsewhere: bool = False) -> Array:
        """Predict the response of rows `X`, shape (n_rows,) or (n_rows, n_outputs)."""
        return self.predict_encoded(as_rows(X, self.header))

    def predict_encoded(self, rows: Array, *, elsewhere: bool = False) -> Array:
        """Predict the response of rows whose columns are numbers already, shape (n_rows, header.n_columns)."""
        rows = self.scaling.rows(rows)
        blocks = [
            self.kernel(rows[start : start + _ROWS_PER_BLOCK], self.rows) @ self.dual_coefficients
            for start in range(0, len(rows), _ROWS_PER_BLOCK)
        ]
        prediction = np.concatenate([np.empty((0, *self.dual_coefficients.shape[1:])), *blocks])
        return self.scaling.undo(prediction)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Raise `ModelFileError`: the file would contain the training rows."""
        raise ModelFileError(f"{path} not written: an exact kernel model holds all sites' rows; save a feature model")


@estimator
class CentralizedKRR(SiteRegressor):
    """Exact kernel ridge regression of the pooled rows, (K + N alpha I)^-1 y. It takes N^2 memory.

    The model is made of the rows: the fitted estimator and its pickles hold all of them.

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
            raise SettingsError(
                "exact kernel ridge regression holds all rows in memory: load them, or use CentralizedRFF"
            )
        scaling = scaling_of(settings_of(self, GuardSettings), pooled)
        block = pooled.scaled(scaling).arrays()
        X, y = block.X, block.y
        root = np.ones(len(y)) if block.weight is None else np.sqrt(block.weight)
        kernel = make_kernel(self.kernel, self.sigma)
        gram = kernel(X, X) * np.outer(root, root)  # W^1/2 K W^1/2 + N alpha I, and W^1/2 times its solution
        gram[np.diag_indices(len(y))] += pooled.weights.total * self.alpha
        dual = (root * cho_solve(cho_factor(gram, overwrite_a=True), (y.T * root).T).T).T
        self.objective_ = float(self.alpha * np.vdot(y, dual))
        header = self._header("all", name_of(self.kernel), self.sigma)
        self.models_ = dict.fromkeys(rows, KernelModel(header, kernel, X, dual, scaling))


def _without_edges(rows: Mapping[Hashable, Rows]) -> Any:
    graph: Any = nx.Graph()
    graph.add_nodes_from(rows)
    return graph


def _name_among(label: Hashable, sites: Sequence[Hashable]) -> str | None:
    """Return the name of the site that chooses for all, where one is given."""
    if label is None:
        return None
    names = dict(zip(sites, names_of(sites), strict=True))
    if label not in names:
        raise SettingsError(f"selecting_site={label!r} is not a site; the sites are {listed(sites)}")
    return names[label]
