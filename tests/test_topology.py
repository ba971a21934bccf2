import math

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dekrr import topology
from dekrr.errors import TopologyError


@given(
    name=st.sampled_from(topology.TOPOLOGIES),
    n_sites=st.integers(1, 30),
    n_neighbors=st.sampled_from([2, 4, 6]),
    seed=st.integers(0, 1000),
)
def test_every_named_topology_is_connected(name, n_sites, n_neighbors, seed):
    sites = [f"site {j}" for j in range(n_sites)]
    graph = topology.build(name, sites, n_neighbors, seed)
    assert set(graph) == set(sites)
    assert nx.is_connected(graph)
    assert nx.utils.graphs_equal(graph, topology.build(name, sites, n_neighbors, seed))
    if name in ("ring", "random_regular") and n_sites > n_neighbors:
        assert {degree for _, degree in graph.degree} == {n_neighbors}


def test_ring_is_the_papers():
    graph = topology.build("ring", range(10), 4)
    assert all(set(graph[j]) == {(j + s) % 10 for s in (-2, -1, 1, 2)} for j in range(10))


def test_grid_star_complete():
    assert nx.is_isomorphic(topology.build("grid", range(12)), nx.grid_2d_graph(3, 4))
    assert nx.is_isomorphic(topology.build("star", range(5)), nx.star_graph(4))
    assert nx.is_isomorphic(topology.build("complete", range(5)), nx.complete_graph(5))


def test_edges_and_graphs():
    edges = [("a", "b"), ("b", "c")]
    assert topology.build(edges, ["a", "b", "c"]).edges == nx.Graph(edges).edges
    assert topology.build(nx.Graph(edges), ["a", "b", "c"]).edges == nx.Graph(edges).edges


def test_disconnected_graph_names_its_components():
    with pytest.raises(TopologyError, match=r"2 parts: \{'a', 'b'\} and \{'c'\}"):
        topology.build([("a", "b")], ["a", "b", "c"])


def test_sites_without_data():
    with pytest.raises(TopologyError, match="sites without data: 'd'"):
        topology.build([("a", "b"), ("b", "d")], ["a", "b"])


def test_loops_are_refused():
    with pytest.raises(TopologyError, match="to themselves: 'a'"):
        topology.build([("a", "b"), ("a", "a")], ["a", "b"])


@pytest.mark.parametrize("n_neighbors", [1, 3])
def test_odd_rings(n_neighbors):
    with pytest.raises(TopologyError, match="even number of neighbours"):
        topology.build("ring", range(10), n_neighbors)


def test_impossible_regular_graph():
    with pytest.raises(TopologyError, match="no graph of 7 sites with 3 neighbours"):
        topology.build("random_regular", range(7), 3)


def test_unknown_name():
    with pytest.raises(TopologyError, match="unknown topology 'torus'"):
        topology.build("torus", range(4))


@pytest.mark.parametrize("edges", [[("a", "b", 1.0)], [("a",)], ["ab"], [3]])
def test_an_edge_is_a_pair(edges):
    with pytest.raises(TopologyError, match="an edge is a pair of sites"):
        topology.build(edges, ["a", "b"])


def test_a_multigraph_is_a_graph():
    assert set(topology.build(nx.MultiGraph([("a", "b"), ("a", "b"), ("b", "c")]), ["a", "b", "c"]).edges) == {
        ("a", "b"),
        ("b", "c"),
    }


def test_a_small_world_of_one_neighbour():
    with pytest.raises(TopologyError, match="n_neighbors=2 or more"):
        topology.build("watts_strogatz", list(range(8)), 1)


def test_without_a_name_few_sites_are_on_the_papers_ring_and_many_are_few_hops_apart():
    assert nx.utils.graphs_equal(topology.build("auto", range(20)), topology.ring(20))
    for n_sites in (21, 100, 1000):
        graph = topology.build("auto", range(n_sites), seed=3)
        assert nx.diameter(graph) <= 1.1 * math.log2(n_sites)
        degrees = [degree for _, degree in graph.degree]
        assert max(degrees) == 4
        assert sum(degrees) > 3.9 * n_sites - 10  # rings may share an edge
        assert all(graph.has_edge(j, (j + 1) % n_sites) for j in range(n_sites))  # the order of sites counts


def test_rings_on_top_of_each_other_need_an_even_number_of_neighbours():
    with pytest.raises(TopologyError, match="even number of neighbours"):
        topology.build("auto", range(30), 3)
