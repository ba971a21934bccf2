"""From rows to outcomes: sites of rows, a network that runs their procedures, and what came of it."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from ..errors import WarnOnce
from ..labels import names_of
from ..networks.base import Connect, Network
from ..networks.local import LocalNetwork
from ..networks.traffic import Traffic
from ..protocols.outcome import Outcome
from ..protocols.site import Procedure, Site
from ..rows import Rows
from ..rows.survey import Weighed
from .progress import Watch
from .ranks import driven, tell

Graph = Mapping[Hashable, Iterable[Hashable]]


@dataclass(frozen=True)
class Run:
    """What came of a run, by the labels of its sites.

    Parameters
    ----------
    sites : dict of label to Site
    outcomes : dict of label to Outcome
        Of the sites that were driven in this process.
    traffic : Traffic
    network : Network
    """

    sites: dict[Hashable, Site]
    outcomes: dict[Hashable, Outcome]
    traffic: Traffic
    network: Network

    @property
    def names(self) -> dict[Hashable, str]:
        """The names that the run gave its sites."""
        return {label: site.name for label, site in self.sites.items()}

    @property
    def n_columns(self) -> int:
        """How many columns the rows have."""
        return next(iter(self.sites.values())).rows.n_columns

    @property
    def n_rows(self) -> dict[Hashable, int]:
        """How many rows each site has."""
        return {label: site.n_rows for label, site in self.sites.items()}

    @property
    def weights(self) -> dict[Hashable, Weighed] | None:
        """The sums of the weights of each site's rows, where rows have some."""
        if not are_weighted({label: site.rows for label, site in self.sites.items()}):
            return None
        return {label: site.rows.weights for label, site in self.sites.items()}


def are_weighted(rows: Mapping[Hashable, Rows]) -> bool:
    """Return whether rows of any site have weights: what all sites of a run must know."""
    return any(own_rows.weighted for own_rows in rows.values())


def seed_of(random_state: Any) -> int:
    """Return the seed of a run of an estimator with this `random_state`."""
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def sites_of(
    rows: Mapping[Hashable, Rows], graph: Graph, *, seed: int = 0, names: Mapping[Hashable, str] | None = None
) -> dict[Hashable, Site]:
    """Return a site for each label, with its neighbours and its rows.

    Parameters
    ----------
    rows : mapping of label to Rows
    graph : mapping of label to its neighbours
        For instance a networkx graph.
    seed : int, default=0
        The run's.
    names : mapping of label to str, optional
        What to call the sites; by default as `dekrr.labels.names_of` does.

    Examples
    --------
    >>> import numpy as np
    >>> from dekrr.rows import ArrayRows
    >>> rows = dict.fromkeys([1, 2], ArrayRows(np.zeros((3, 1)), np.zeros(3)))
    >>> sites = sites_of(rows, {1: [2], 2: [1]})
    >>> sites[1].name, sites[1].neighbors
    ('1', ('2',))
    """
    labels = list(rows)
    names = names or dict(zip(labels, names_of(labels), strict=True))
    once = WarnOnce()
    return {
        label: Site(names[label], tuple(names[p] for p in graph[label]), own_rows, seed=seed, tell=once)
        for label, own_rows in rows.items()
    }


def run(
    sites: Mapping[Hashable, Site],
    procedure: Callable[[Hashable, Site], Procedure[Outcome]],
    connect: Connect | None = None,
    watch: Watch | None = None,
) -> Run:
    """Have a network run a procedure for each site.

    Parameters
    ----------
    sites : mapping of label to Site
    procedure : callable
        Makes a site's procedure of its label and the site.
    connect : Connect, optional
        Makes the network of the graph; by default all sites are in this process.
    watch : Watch, optional
        Follows the first site, and so all of them.
    """
    network = (connect or LocalNetwork)({site.name: site.neighbors for site in sites.values()})
    here = driven(network, sites)
    procedures = {site.name: procedure(label, site) for label, site in here.items()}
    if watch is not None:
        first = next(iter(procedures))
        procedures[first] = watch.follow(procedures[first])
    outcomes = network.run(procedures)
    return Run(
        sites=dict(sites),
        outcomes={label: outcomes[site.name] for label, site in here.items()},
        traffic=tell(network, sites).relabelled({site.name: label for label, site in sites.items()}),
        network=network,
    )
