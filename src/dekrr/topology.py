"""Graphs of sites, on networkx.

A topology is given by name, as an edge list, or as a networkx graph whose nodes are the sites. The graph of a run must
be connected, because information travels from site to site over edges only.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import networkx as nx

from .errors import TopologyError
from .labels import listed
from .rules import TOPOLOGIES as TOPOLOGIES

__all__ = ["build", "cycles", "erdos_renyi", "grid", "random_regular", "ring", "watts_strogatz"]

Graph = Any  # networkx graphs are generic in stubs only

_TRIES = 100
_MOST_ON_RING = 20  # sites that are joined to a ring where nobody names a graph; with more, it takes too many rounds


def ring(n_sites: int, n_neighbors: int = 4) -> Graph:
    """Return a ring lattice, the paper's graph: each site is joined to the nearest `n_neighbors` / 2 on either side.

    It is an even number. With fewer than ``n_neighbors + 1`` sites the graph is complete.

    Examples
    --------
    >>> from dekrr.topology import ring
    >>> sorted(ring(10, 4)[0])
    [1, 2, 8, 9]
    """
    if n_neighbors < 2 or n_neighbors % 2:
        raise TopologyError(f"a ring needs an even number of neighbours, 2 or more; got n_neighbors={n_neighbors}")
    if n_sites <= n_neighbors:
        return nx.complete_graph(n_sites)
    return nx.circulant_graph(n_sites, list(range(1, n_neighbors // 2 + 1)))


def cycles(n_sites: int, n_neighbors: int = 4, seed: Any = None) -> Graph:
    """Return a ring, and random rings through all sites on top: `n_neighbors` / 2 in all, an even number.

    Its diameter grows with the logarithm of the number of sites (Bollobas and Chung, SIAM Journal on Discrete
    Mathematics 1, 1988), and half of a site's neighbours are still those beside it in the order of sites. Where two
    rings share an edge, its ends have a neighbour fewer.

    Examples
    --------
    >>> import networkx as nx
    >>> from dekrr.topology import cycles, ring
    >>> nx.diameter(ring(400)), nx.diameter(cycles(400, seed=0))
    (100, 8)
    """
    graph = ring(n_sites, n_neighbors)
    if n_sites <= n_neighbors:
        return graph
    graph, generator = ring(n_sites, 2), nx.utils.create_py_random_state(seed)
    for _ in range(n_neighbors // 2 - 1):
        nx.add_cycle(graph, generator.sample(range(n_sites), n_sites))
    return graph


def grid(n_sites: int) -> Graph:
    """Return the rectangular grid of `n_sites` that is closest to a square."""
    rows = next(rows for rows in range(int(n_sites**0.5), 0, -1) if n_sites % rows == 0)
    return nx.convert_node_labels_to_integers(nx.grid_2d_graph(rows, n_sites // rows), ordering="sorted")


def random_regular(n_sites: int, n_neighbors: int = 4, seed: Any = None) -> Graph:
    """Return a connected random regular graph: each site has `n_neighbors` neighbours."""
    if n_sites <= n_neighbors:
        return nx.complete_graph(n_sites)
    if n_sites * n_neighbors % 2:
        raise TopologyError(
            f"no graph of {n_sites} sites with {n_neighbors} neighbours each exists: the product of the two is odd"
        )
    generator = nx.utils.create_py_random_state(seed)
    for _ in range(_TRIES):
        graph = nx.random_regular_graph(n_neighbors, n_sites, seed=generator)
        if nx.is_connected(graph):
            return graph
    raise TopologyError(f"no connected random_regular graph in {_TRIES} tries; give each site more neighbours")


def watts_strogatz(n_sites: int, n_neighbors: int = 4, rewiring: float = 0.2, seed: Any = None) -> Graph:
    """Return a connected small-world graph: a ring lattice in which a share of the edges is rewired at random."""
    if n_sites <= n_neighbors:
        return nx.complete_graph(n_sites)
    if n_neighbors < 2:
        raise TopologyError("a small world needs n_neighbors=2 or more: with 1, no site is joined to another")
    return nx.connected_watts_strogatz_graph(n_sites, n_neighbors, rewiring, tries=1000, seed=seed)


def erdos_renyi(n_sites: int, n_neighbors: int = 4, seed: Any = None) -> Graph:
    """Return a connected random graph in which a site has `n_neighbors` neighbours on average.

    One random edge joins each further component to the others.
    """
    generator = nx.utils.create_py_random_state(seed)
    probability = min(1.0, n_neighbors / max(n_sites - 1, 1))
    graph = nx.gnp_random_graph(n_sites, probability, seed=generator)
    first, *others = [sorted(component) for component in nx.connected_components(graph)]
    for other in others:
        graph.add_edge(generator.choice(first), generator.choice(other))
        first = first + other
    return graph


def build(
    topology: str | Iterable[tuple[Hashable, Hashable]] | Graph,
    sites: Sequence[Hashable],
    n_neighbors: int = 4,
    seed: Any = None,
) -> Graph:
    """Return a connected graph whose nodes are `sites`.

    Parameters
    ----------
    topology : str, iterable of pairs, or networkx graph
        One of `TOPOLOGIES`, the edges, or the graph. "auto" is a ring of up to 20 sites, and `cycles` of more.
    sites : sequence of hashable
        The sites, in the order in which a named topology lays them out.
    n_neighbors : int, default=4
        For ring, cycles, random_regular, watts_strogatz; the mean for erdos_renyi.
    seed : int or None
        For the random topologies.

    Examples
    --------
    >>> from dekrr.topology import build
    >>> graph = build("star", ["hub", "north", "south"])
    >>> sorted(graph["hub"])
    ['north', 'south']
    >>> build([("a", "b"), ("c", "d")], ["a", "b", "c", "d"])
    Traceback (most recent call last):
    ...
    dekrr.errors.TopologyError: the graph falls into 2 parts: {'a', 'b'} and {'c', 'd'}; join them by an edge
    """
    if isinstance(topology, str):
        graph = _named(topology, len(sites), n_neighbors, seed)
        graph = nx.relabel_nodes(graph, dict(enumerate(sites)))
    else:
        graph = nx.Graph()
        graph.add_nodes_from(sites)
        add_edges(graph, topology.edges() if isinstance(topology, nx.Graph) else topology)
    _check(graph, sites)
    return graph


def add_edges(graph: Graph, edges: Iterable[Any]) -> None:
    """Add edges to a graph; each edge must be a pair of sites."""
    for edge in edges:
        pair = () if isinstance(edge, str) or not isinstance(edge, Iterable) else tuple(edge)
        if len(pair) != 2 and not (len(pair) == 3 and isinstance(pair[2], dict)):
            raise TopologyError(f"an edge is a pair of sites, not {edge!r}")
        graph.add_edge(*pair[:2])


def ends(graph: Graph) -> tuple[Hashable, Hashable, int]:
    """Return two sites that are far apart, and how many hops; in most graphs no others are farther.

    The second is farthest from the first, which is farthest from some site: exact on trees and rings.
    """

    def farthest(site: Hashable) -> tuple[Hashable, int]:
        hops: dict[Hashable, int] = nx.single_source_shortest_path_length(graph, site)
        other = max(hops, key=hops.__getitem__)
        return other, hops[other]

    first, _ = farthest(next(iter(graph)))
    return first, *farthest(first)


def shortcuts(graph: Graph, most: int) -> Iterator[tuple[tuple[Hashable, Hashable], int]]:
    """Yield edges to add, one after another, and the hops between the ends of the graph that has them.

    Each edge joins the ends of the graph with those before.

    Examples
    --------
    >>> import networkx as nx
    >>> from dekrr.topology import shortcuts
    >>> [(edge, n_hops) for edge, n_hops in shortcuts(nx.path_graph(30), 3)]
    [((29, 0), 15), ((15, 0), 15), ((8, 23), 8)]
    """
    graph = nx.Graph(graph)
    for _ in range(most):
        edge = ends(graph)[:2]
        graph.add_edge(*edge)
        yield edge, ends(graph)[2]


def _named(name: str, n_sites: int, n_neighbors: int, seed: Any) -> Graph:
    graphs = {
        "ring": lambda: ring(n_sites, n_neighbors),
        "cycles": lambda: cycles(n_sites, n_neighbors, seed=seed),
        "complete": lambda: nx.complete_graph(n_sites),
        "grid": lambda: grid(n_sites),
        "star": lambda: nx.star_graph(n_sites - 1),
        "random_regular": lambda: random_regular(n_sites, n_neighbors, seed=seed),
        "watts_strogatz": lambda: watts_strogatz(n_sites, n_neighbors, seed=seed),
        "erdos_renyi": lambda: erdos_renyi(n_sites, n_neighbors, seed=seed),
    }
    graphs["auto"] = graphs["ring" if n_sites <= _MOST_ON_RING else "cycles"]
    if name not in graphs:
        raise TopologyError(
            f"unknown topology {name!r}; choose one of {', '.join(TOPOLOGIES)}, or give edges or a graph"
        )
    return graphs[name]()


def _check(graph: Graph, sites: Sequence[Hashable]) -> None:
    strangers = set(graph) - set(sites)
    if strangers:
        raise TopologyError(f"the graph has sites without data: {_listed(strangers)}; known are {_listed(sites)}")
    loops = [site for site in graph if graph.has_edge(site, site)]
    if loops:
        raise TopologyError(f"the graph joins sites to themselves: {_listed(loops)}; remove those edges")
    components = list(nx.connected_components(graph))
    if len(components) > 1:
        parts = " and ".join("{" + _listed(component) + "}" for component in components[:4])
        parts += f" and {len(components) - 4} more" if len(components) > 4 else ""
        raise TopologyError(f"the graph falls into {len(components)} parts: {parts}; join them by an edge")


def _listed(sites: Iterable[Hashable]) -> str:
    return listed(sorted(sites, key=repr))
