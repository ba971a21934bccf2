"""What regressors on random features share: node procedures on a network, and models of what they return."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from .. import topology as topologies
from ..errors import warn
from ..networks.base import Connect
from ..rows import Rows
from ..settings import EstimatorSettings, FeatureSettings
from ..trained import model_of
from .base import SiteRegressor
from .choosing import Choosing
from .network import Run, run, sites_of
from .parameters import estimator, setting
from .procedures import Training
from .progress import watching
from .ranks import Here, gathered, here_of


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
    ) -> Run:
        """Return what came of the training of all sites on a graph; `trainings` counts those of tuning, too."""
        self.graph_ = graph
        choosers = choosing.choosers(list(rows))
        sites = sites_of(rows, graph, seed=seed)
        with watching(self.verbose, self.callbacks, trainings) as watch:
            return run(sites, lambda label, site: training(site, choosers[label]), connect, watch)

    def _keep(self, run: Run, kernel: str, sigma: float, *, prediction: str = "own", tol: float = 0.0) -> None:
        """Set what came of a run; warn where it did not settle to a `tol` above 0."""
        models = {}
        for label, outcome in run.outcomes.items():
            models[label] = model_of(outcome, self._header(run.sites[label].name, kernel, sigma), prediction)
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
        return here_of(self.network, lambda labels: self._graph_of(labels, seed) if first else self.graph_)

    def _graph(self, rows: Mapping[Hashable, Rows], seed: int) -> Any:
        return self._graph_of(list(rows), seed)

    def _graph_of(self, labels: Sequence[Hashable], seed: int) -> Any:
        return topologies.build(self.topology, labels, self.n_neighbors, seed)
