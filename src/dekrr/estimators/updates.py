"""Going on from a trained network: new rows, sites that join, sites that leave."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from .. import topology as topologies
from ..errors import SettingsError
from ..labels import names_with
from ..networks.base import Connect
from ..protocols.outcome import Outcome
from ..rows import ArrayRows, ChainedRows, Rows
from ..rows.survey import Weighed
from ..settings import DeKRRSettings
from ..types import Block
from . import network
from .choosing import Choosing
from .network import Run
from .procedures import update_dekrr
from .ranks import RowsElsewhere, refuse_other_sites


class ForgottenRows(Rows):
    """Rows that were not kept: all that is known of them is how many there were.

    Parameters
    ----------
    n_rows, n_columns : int
    weights : Weighed, optional
        The sums of their weights, where they had some.
    """

    def __init__(self, n_rows: int, n_columns: int, weights: Weighed | None = None) -> None:
        self._n_rows = n_rows
        self.n_columns = n_columns
        self.weighted = weights is not None
        self._weights = weights

    @property
    def n_rows(self) -> int:
        """How many rows there were."""
        return self._n_rows

    @property
    def weights(self) -> Weighed:
        """The sums of the rows' weights."""
        return Weighed(float(self._n_rows), float(self._n_rows)) if self._weights is None else self._weights

    def blocks(self, size: int) -> Iterator[Block]:
        """Refuse."""
        raise SettingsError("this needs the rows of the first fit, which were not kept: fit with store_rows=True")


@dataclass(frozen=True)
class Standing:
    """Where the training of a network stands: maps, sums and coefficients, but no rows.

    Parameters
    ----------
    graph : networkx.Graph
    seed : int
        The run's.
    names : mapping of label to str
        What the run calls its sites.
    outcomes : mapping of label to Outcome
        Of the sites that are driven in this process.
    n_rows : mapping of label to int
        How many rows are in the sums.
    rows : mapping of label to Rows, or None
        The rows themselves, where they were kept.
    weights : mapping of label to Weighed, or None
        The sums of the rows' weights, where they had some.
    """

    graph: Any
    seed: int
    names: Mapping[Hashable, str]
    outcomes: Mapping[Hashable, Outcome]
    n_rows: Mapping[Hashable, int]
    rows: Mapping[Hashable, Rows] | None
    weights: Mapping[Hashable, Weighed] | None = None

    def graph_with(self, edges: Any, new: Mapping[Hashable, Rows]) -> Any:
        """Return the graph with more edges, and with the sites of new rows."""
        graph: Any = nx.Graph(self.graph)
        topologies.add_edges(graph, edges)
        return topologies.build(graph, [*self.n_rows, *(label for label in new if label not in self.n_rows)])

    def graph_without(self, label: Hashable) -> Any:
        """Return the graph without a site."""
        graph: Any = nx.Graph(self.graph)
        graph.remove_node(label)
        return topologies.build(graph, [other for other in self.n_rows if other != label])

    def all_rows(self, graph: Any, new: Mapping[Hashable, Rows]) -> dict[Hashable, Rows]:
        """Return all rows of each site of a graph, as far as they were kept."""
        self._refuse_new_edges(graph)
        rows: dict[Hashable, Rows] = {}
        n_columns = next(iter(self.outcomes.values())).feature_map.n_columns
        weighted = self.weights is not None or any(part.weighted for part in new.values())
        for label in graph:
            if label in self.n_rows and label not in self.outcomes:
                rows[label] = RowsElsewhere(n_columns, weighted=weighted)
                continue
            parts = [every[label] for every in (self.rows or {}, new) if label in every]
            if self.rows is None and label in self.n_rows:
                n_new = sum(part.n_rows for part in parts)
                weights = None if self.weights is None else self.weights[label]
                if weights is not None or any(part.weighted for part in parts):
                    weights = weights or Weighed(float(self.n_rows[label]), float(self.n_rows[label]))
                    for part in parts:
                        weights = weights.plus(part.weights)
                parts = [ForgottenRows(self.n_rows[label] + n_new, n_columns, weights)]
            rows[label] = ChainedRows(parts) if len(parts) > 1 else parts[0]
        return rows

    def refuse_new_edges_with_parts(self) -> None:
        """Refuse sites that join, and new edges, where models have more parts than the agreed one."""
        if any(outcome.sigma is not None for outcome in self.outcomes.values()):
            raise SettingsError(
                "a site cannot join, and an edge cannot be added, where models have a shared or a local part or "
                "learnt column scales: fit again, or fit with shared=None, local=None and column_scales=None"
            )

    def _refuse_new_edges(self, graph: Any) -> None:
        added = [edge for edge in graph.edges if not self.graph.has_edge(*edge)]
        if added and self.rows is None:
            a, b = added[0]
            raise SettingsError(
                f"the edge from {a!r} to {b!r} is new: over a new edge sites send sums over all their rows, and those "
                "of the first fit were not kept. Fit with store_rows=True to let sites join later"
            )


def go_on(
    standing: Standing,
    graph: Any,
    rows: Mapping[Hashable, Rows],
    new: Mapping[Hashable, Rows],
    choosing: Choosing,
    sigma: float,
    settings: DeKRRSettings,
    connect: Connect | None,
) -> Run:
    """Bring all sites of a graph up to date.

    Parameters
    ----------
    standing : Standing
    graph : networkx.Graph
    rows : mapping of label to Rows
        All rows, from `Standing.all_rows`.
    new : mapping of label to Rows
        Those that are new.
    choosing : Choosing
        For sites that join.
    sigma : float
    settings : DeKRRSettings
    connect : Connect or None
    """
    labels = list(rows)
    refuse_other_sites(connect, standing.n_rows, labels)
    sites = network.sites_of(rows, graph, seed=standing.seed, names=names_with(standing.names, labels))

    def procedure(label: Hashable, site: Any) -> Any:
        before = standing.outcomes.get(label)
        size = before.feature_map.n_features if before else choosing.sizes(labels)[label]
        outputs = next(iter(standing.outcomes.values())).coefficients.shape[1:]
        nothing = ArrayRows(np.empty((0, site.rows.n_columns)), np.empty((0, *outputs)))
        return update_dekrr(site, before, new.get(label, nothing), choosing.chooser(size, sigma), settings)

    return network.run(sites, procedure, connect)
