import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dekrr.protocols import roll_call
from dekrr.protocols.roll_call import diameter_at_most

GRAPHS = {
    "path": nx.path_graph(90),
    "ring": nx.circulant_graph(601, [1, 2]),
    "grid": nx.convert_node_labels_to_integers(nx.grid_2d_graph(20, 31)),
    "star": nx.star_graph(700),
    "regular": nx.random_regular_graph(4, 1200, seed=0),
    "barbell": nx.barbell_graph(50, 40),
    "hubs": nx.barabasi_albert_graph(900, 2, seed=1),
    "pair": nx.path_graph(2),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_diameters_are_those_of_networkx(name):
    graph = GRAPHS[name]
    assert diameter_at_most(np.array(graph.edges), len(graph)) == nx.diameter(graph)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), n_sites=st.integers(1, 40), share=st.floats(0.02, 0.5))
def test_a_bound_is_never_too_low_and_parts_are_noticed(seed, n_sites, share):
    graph = nx.gnp_random_graph(n_sites, share, seed=seed)
    ends = np.array(graph.edges, dtype=int).reshape(-1, 2)
    if not nx.is_connected(graph):
        assert diameter_at_most(ends, n_sites) is None
        assert diameter_at_most(ends, n_sites, most_work=0) is None
        return
    diameter = nx.diameter(graph)
    assert diameter_at_most(ends, n_sites) == diameter
    assert diameter <= diameter_at_most(ends, n_sites, most_work=0) <= max(2 * diameter, 0)


def test_searches_in_several_batches_find_the_same(monkeypatch):
    monkeypatch.setattr(roll_call, "_AT_ONCE", 7)
    for graph in GRAPHS.values():
        assert diameter_at_most(np.array(graph.edges), len(graph)) == nx.diameter(graph)
