"""Looking before a fit: which sites' rows look wrong, and which the others are better off without."""

import copy
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import networkx as nx

from .. import topology as topologies
from ..errors import SettingsError, TopologyError, warn
from ..networks.base import Traffic
from ..protocols.looking import FEWEST_SITES, Contribution, Finding, Looked, look
from ..protocols.roll_call import are_named
from ..protocols.site import Limits
from ..settings import DeKRRSettings
from ..tables.rows import Rows
from . import network
from .network import Here, Training

_MOST_LEFT_OUT = 1 / 3  # of the sites


@dataclass
class Sifted:
    """The sites that train together, and those that are left out.

    Parameters
    ----------
    graph : networkx.Graph
        Of the sites that train together.
    apart : dict of label to str
        The sites that are left out, and what their rows look like.
    limits : pair of ndarray, optional
        See `dekrr.protocols.looking.Looked`.
    """

    rows: Mapping[Hashable, Rows]
    graph: Any
    apart: dict[Hashable, str] = field(default_factory=dict)
    contributions: dict[Hashable, Contribution] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    limits: Limits | None = None

    def limiting(self, training: Training) -> Training:
        """Return a training in which each site moves values to the limits."""
        if self.limits is None:
            return training
        return lambda site, chooser: training(replace(site, limits=self.limits), chooser)


def sift(
    regressor: Any, rows: Mapping[Hashable, Rows], graph: Any, seed: int, settings: DeKRRSettings, here: Here | None
) -> Sifted:
    """Look at the rows of all sites, leave out those that harm the others, and warn of what looks wrong.

    The worst is left out first, and then the others look again; at most a third of the sites.

    Parameters
    ----------
    regressor : estimator
        Its topology is that of the graph, which is built again without the sites that are left out.
    here : callable or None
        Where sites are driven in several processes, they are named and stay in, because the rows of those that are left
        are where the graph of all sites has them.
    """
    sifted = Sifted(rows, graph)
    if not len(rows) >= FEWEST_SITES or not are_named(len(rows)):
        return sifted
    most = int(_MOST_LEFT_OUT * len(rows))
    names, told = regressor.get_feature_names_out(), set()
    procedure: Any = lambda label, site: look(site, settings)  # noqa: E731
    while True:
        run = network.run(network.sites_of(sifted.rows, sifted.graph, seed=seed), procedure, regressor.network)
        sifted.traffic = sifted.traffic.plus(run.traffic)
        labels = {name: label for label, name in run.names.items()}
        looks: Mapping[Hashable, Any] = run.outcomes
        looked: Looked = next(iter(looks.values()))
        sifted.contributions |= {labels[name]: one for name, one in looked.contributions.items()}
        sifted.limits = looked.limits
        harmful = None if looked.harmful is None else labels[looked.harmful]
        for label, found in looks.items():
            if label not in told and label != harmful and found.findings:
                told.add(label)
                warn(_in_words(label, found.findings, names))
        if harmful is None:
            return sifted
        words = _in_words(harmful, looks[harmful].findings if harmful in looks else (), names)
        one = sifted.contributions[harmful]
        harm = (
            f"{words} The others' error on held-out rows of a small model is {one.with_site:.3g} with the sums of "
            f"{harmful!r}, and {one.without_site:.3g} without"
        )
        rest = {label: own for label, own in sifted.rows.items() if label != harmful}
        stays = here is not None or len(sifted.apart) == most
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
