"""Estimators whose sites are driven in several processes: which rows are read where, and what all are told after a run.

Every process calls `fit` with the same sites and settings. It reads the rows of its own sites only. Afterwards the
processes tell each other numbers of rows, shares of the objective and, where they are gathered, models and traffic.
"""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence, Set
from typing import Any

import msgspec
import numpy as np

from ..errors import SettingsError
from ..model import SiteModel
from ..model_file import from_bytes
from ..networks.base import Network, PartialNetwork
from ..networks.traffic import Traffic
from ..protocols.site import Site
from ..rows import Rows
from ..rows.survey import Weighed
from ..types import Array, Block

Here = Callable[[Sequence[Hashable]], Set[Hashable]]
"""A function that says which of all sites are driven in this process."""


class RowsElsewhere(Rows):
    """The rows of a site that another process drives; after a run their number is known.

    Parameters
    ----------
    n_columns : int
    weighted : bool
        Whether the rows have weights.
    """

    streamed = True

    def __init__(self, n_columns: int, *, weighted: bool) -> None:
        self.n_columns = n_columns
        self.weighted = weighted
        self.counted: tuple[int, Weighed] | None = None

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return self._counted()[0]

    @property
    def weights(self) -> Weighed:
        """The sums over the rows' weights."""
        return self._counted()[1]

    def _counted(self) -> tuple[int, Weighed]:
        if self.counted is None:
            raise SettingsError("rows of a site of another process are not counted before the end of a run")
        return self.counted

    def blocks(self, size: int) -> Iterator[Block]:
        """Refuse."""
        raise SettingsError("these are the rows of a site that another process drives; this one does not have them")


class _Told(msgspec.Struct, frozen=True, array_like=True):
    """What a process tells the others about its sites after a run, by their names."""

    counts: dict[str, tuple[int, Weighed]]
    traffic: list[tuple[str, str, str, int, int]]


class _Results(msgspec.Struct, frozen=True, array_like=True):
    """The models of a process' sites, by name, and its share of the objective in each round."""

    models: dict[str, bytes]
    objective: list[float]


def here_of(network: Any, graph_of: Callable[[Sequence[Hashable]], Any]) -> Here | None:
    """Return the function that says which sites are driven in this process; None where all are."""
    if not hasattr(network, "sites_here") or network.n_ranks == 1:
        return None

    def here(labels: Sequence[Hashable]) -> Set[Hashable]:
        graph = graph_of(labels)
        return frozenset(network.sites_here({label: list(graph[label]) for label in labels}))

    return here


def only_here(rows: Mapping[Hashable, Rows], here: Here | None) -> dict[Hashable, Rows]:
    """Return the rows of each site, without those of sites that are driven elsewhere."""
    if here is None:
        return dict(rows)
    own = here(list(rows))
    return {
        label: given if label in own else RowsElsewhere(given.n_columns, weighted=given.weighted)
        for label, given in rows.items()
    }


def refuse_other_sites(network: Any, before: Collection[Hashable], now: Collection[Hashable]) -> None:
    """Refuse to go on with other sites in several processes: those that stay could be driven by other processes."""
    if here_of(network, dict.fromkeys) is not None and set(before) != set(now):
        raise SettingsError("sites cannot join or leave a network on several ranks: fit again, or go on in one process")


def driven(network: Network, sites: Mapping[Hashable, Site]) -> dict[Hashable, Site]:
    """Return the sites that are driven in this process."""
    if not isinstance(network, PartialNetwork):
        return dict(sites)
    return {label: site for label, site in sites.items() if site.name in network.here}


def tell(network: Network, sites: Mapping[Hashable, Site]) -> Traffic:
    """Return the traffic of a run, by the names of its sites; tell others the numbers of rows, and hear theirs."""
    if not isinstance(network, PartialNetwork):
        return network.traffic
    counts = {}
    for site in driven(network, sites).values():
        same = Weighed(float(site.n_rows), float(site.n_rows))
        counts[site.name] = site.n_rows, site.rows.weights if site.rows.weighted else same
    own = _Told(counts, network.traffic.rows() if network.gathers else [])
    told = [msgspec.msgpack.decode(data, type=_Told) for data in network.share(msgspec.msgpack.encode(own))]
    counted = {name: count for each in told for name, count in each.counts.items()}
    for site in sites.values():
        if isinstance(site.rows, RowsElsewhere):
            site.rows.counted = counted[site.name]
    return Traffic.of_rows(row for each in told for row in each.traffic) if network.gathers else network.traffic


def gathered(
    network: Network, names: Mapping[Hashable, str], models: dict[Hashable, SiteModel], objective: Array
) -> tuple[dict[Hashable, SiteModel], Array]:
    """Return the models of all sites, where they are gathered, and the objective of all sites in each round.

    Parameters
    ----------
    network : Network
    names : mapping of label to str
        Of all sites.
    models : dict of label to SiteModel
        Of the sites of this process.
    objective : ndarray of shape (n_rounds + 1,)
        Their share.
    """
    if not isinstance(network, PartialNetwork):
        return models, objective
    encoded = {names[label]: model.to_bytes() for label, model in models.items()} if network.gathers else {}
    shared = network.share(msgspec.msgpack.encode(_Results(encoded, objective.tolist())))
    results = [msgspec.msgpack.decode(data, type=_Results) for data in shared]
    total = np.sum([result.objective for result in results], axis=0)
    if not network.gathers:
        return models, total
    files = {name: data for result in results for name, data in result.models.items()}
    return {label: models.get(label) or from_bytes(files[name]) for label, name in names.items()}, total
