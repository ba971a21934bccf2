import itertools
import math
from unittest import mock

import msgspec
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import tampered
from dekrr.errors import MessageError
from dekrr.messages import Branch, Census, Roll, Tally, Total
from dekrr.networks.local import LocalNetwork
from dekrr.protocols.dekrr import StoppingRule
from dekrr.protocols.preparation import agree_on_scaling
from dekrr.protocols.roll_call import roll_call
from dekrr.protocols.site import Site
from dekrr.protocols.spanning_tree import Tree
from dekrr.tables.rows import ArrayRows


@st.composite
def networks(draw):
    """A random connected graph whose sites have a few random rows."""
    n_sites = draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    graph = nx.random_labeled_tree(n_sites, seed=int(rng.integers(1 << 30))) if n_sites > 1 else nx.empty_graph(1)
    graph.add_edges_from(e for e in nx.gnp_random_graph(n_sites, draw(st.floats(0, 0.6)), seed=1).edges)
    graph = nx.relabel_nodes(graph, {j: f"s{j}" for j in graph})
    sites = []
    for name in graph:
        X = rng.normal(size=(int(rng.integers(1, 6)), 2))
        sites.append(Site(name, tuple(graph[name]), ArrayRows(X, rng.normal(size=len(X)))))
    return graph, sites


def named_at_most(most):
    """Let networks of more sites than these count by a census."""
    return mock.patch("dekrr.protocols.roll_call._MOST_NAMED", most)


FEW_OR_MANY = st.integers(0, 9)


@settings(deadline=None)
@given(networks(), FEW_OR_MANY)
def test_roll_call(network, most):
    graph, sites = network
    with named_at_most(most):
        rosters = LocalNetwork(graph).run({site.name: roll_call(site) for site in sites})
    every = {other.name: other.n_rows for other in sites}
    entries = [(n_rows, name) for name, n_rows in every.items()]
    for site in sites:
        roster = rosters[site.name]
        around = {name: every[name] for name in (site.name, *site.neighbors)}
        assert roster.rows == (every if len(sites) <= most else around)
        assert roster.diameter == nx.diameter(graph)
        assert roster.n_sites == len(sites)
        assert roster.n_rows == sum(every.values())
        assert (roster.whole.fewest, roster.whole.most) == (min(entries), max(entries))
        assert roster.whole.roots == pytest.approx(sum(map(math.sqrt, every.values())))
        assert roster.root == min(graph)
        assert roster.height == nx.eccentricity(graph, roster.root)
        assert roster.depth == nx.shortest_path_length(graph, site.name, roster.root)
        if site.name != roster.root:
            assert rosters[roster.parent].depth == roster.depth - 1


def after_roll_call(procedure):
    def run(site):
        roster = yield from roll_call(site)
        return (yield from procedure(site, roster))

    return run


@settings(deadline=None)
@given(networks(), FEW_OR_MANY)
def test_bounds_are_those_of_all_rows(network, most):
    graph, sites = network
    run = after_roll_call(agree_on_scaling)
    with named_at_most(most):
        scalings = LocalNetwork(graph).run({site.name: run(site) for site in sites})
    X, y = np.vstack([s.X for s in sites]), np.concatenate([s.y for s in sites])
    for scaling in scalings.values():
        np.testing.assert_array_equal(scaling.lower, [*X.min(axis=0), y.min()])
        np.testing.assert_array_equal(scaling.upper, [*X.max(axis=0), y.max()])


@settings(deadline=None)
@given(networks(), FEW_OR_MANY, st.booleans())
def test_tree_sum_is_the_sum(network, most, later):
    """Also of vectors that each site makes when it is its turn."""
    graph, sites = network

    def of_rows(site, roster):
        if not later:
            return Tree(roster).sum(site.X.sum(axis=0))
        return Tree(roster).result(lambda: site.X.sum(axis=0), lambda total: total, site.X.shape[1])

    run = after_roll_call(of_rows)
    local = LocalNetwork(graph)
    with named_at_most(most):
        sums = local.run({site.name: run(site) for site in sites})
    for total in sums.values():
        np.testing.assert_allclose(total, np.vstack([s.X for s in sites]).sum(axis=0), atol=1e-12)
    assert local.traffic.messages_by_kind["Total"] == 2 * (len(sites) - 1)


@settings(deadline=None)
@given(networks(), st.integers(0, 2**31))
def test_all_sites_stop_together_on_the_largest_residual(network, seed):
    graph, _ = network
    diameter = nx.diameter(graph)
    rng = np.random.default_rng(seed)
    residuals = {name: np.abs(rng.normal(size=60)) * np.exp(-0.2 * np.arange(60)) for name in graph}
    progress = {name: StoppingRule(diameter, tol=0.01) for name in graph}
    for k in range(60):
        shares = {name: progress[name].share for name in graph}
        for name in graph:
            progress[name].after_exchange((residuals[name][k], 1.0), {p: shares[p] for p in graph[name]})
        assert len({p.settled for p in progress.values()}) == 1
        assert len({p.relative for p in progress.values()}) == 1
        if k >= diameter and (k - diameter) % max(1, math.ceil(diameter / 2)) == 0:
            largest = max(residuals[name][k - diameter] for name in graph)
            assert progress[min(graph)].relative == largest
            assert progress[min(graph)].settled == (largest <= 0.01)
        assert len(progress[min(graph)].share) <= 4
        if progress[min(graph)].settled:
            break
    else:
        raise AssertionError("never settled")
    assert largest <= 0.01


def test_a_share_of_another_length_is_refused():
    progress = StoppingRule(2, tol=0.1)
    progress.after_exchange((1.0, 1.0), {"b": ()})
    with pytest.raises(MessageError, match="site 'b' sent 4 numbers about progress, expected 2") as caught:
        progress.after_exchange((1.0, 1.0), {"b": (0.0, 1.0, 0.0, 1.0)})
    assert caught.value.sender == "b"


def test_progress_with_tol_zero_never_settles():
    progress = StoppingRule(0, tol=0.0)
    progress.after_exchange((0.0, 1.0), {})
    assert not progress.settled


@pytest.mark.parametrize("rows", [{}, {"a": 5}, {"a": 5, "b": 8}, {"c": 3}])
def test_a_neighbour_begins_with_its_own_rows(rows):
    procedure = roll_call(Site("c", ("b",), ArrayRows(np.zeros((3, 1)), np.zeros(3))))
    next(procedure)
    with pytest.raises(MessageError, match="'b' did not begin with its own rows") as caught:
        procedure.send({"b": Roll(rows, 0, 0)})
    assert caught.value.sender == "b"


@pytest.mark.parametrize("lie", [(1, 0), (0, 1), (-1, 0), (1, -1), (10**9, 0)])
@pytest.mark.parametrize("exchange", [1, 2])
def test_a_neighbour_cannot_tell_of_distances_that_it_cannot_know(lie, exchange):
    procedure = roll_call(Site("c", ("b",), ArrayRows(np.zeros((3, 1)), np.zeros(3))))
    next(procedure)
    if exchange == 2:
        procedure.send({"b": Roll({"b": 8}, 0, 0)})
    with pytest.raises(MessageError, match=r"'b' reports a distance that it cannot know yet") as caught:
        procedure.send({"b": Roll({"b": 8} if exchange == 1 else {}, *lie)})
    assert caught.value.sender == "b"


def in_a_census(name, neighbors):
    """Return the roll call of a site that has just gone over to a census, since more sites are there than are named."""
    procedure = roll_call(Site(name, neighbors, ArrayRows(np.zeros((3, 1)), np.zeros(3))))
    next(procedure)
    with named_at_most(1):
        sent = procedure.send({p: Roll({p: 8}, 0, 0) for p in neighbors})
    assert list(sent.values()) == [Census(name, 0, None)] * len(neighbors)
    return procedure


ONE = Tally(1, 8, 2.0, (8, "b"), (8, "b"), 0)


def changed(tally, **changes):
    return msgspec.structs.replace(tally, **changes)


@pytest.mark.parametrize(
    "lie",
    [
        Census("c", 1, "a"),  # sorts behind its own name
        Census("b", 1, None),
        Census("b", 0, "a"),
        Census("a", 0, "a"),
        Census("a", -1, "a"),
        Census("a", 1, None),
        Census("a", 1, "a", Branch(changed(ONE, sites=0), [])),
        Census("a", 1, "a", Branch(changed(ONE, rows=-1), [])),
        Census("a", 1, "a", Branch(changed(ONE, rows=1 << 62), [])),
        Census("a", 1, "a", Branch(changed(ONE, height=1), [])),
        Census("a", 1, "a", Branch(changed(ONE, roots=-1.0), [])),
        Census("a", 1, "a", Branch(changed(ONE, roots=math.nan), [])),
    ],
)
def test_a_census_that_cannot_be_is_refused(lie):
    procedure = in_a_census("c", ("b",))
    with pytest.raises(MessageError, match="'b' describes a tree that cannot exist") as caught:
        procedure.send({"b": lie})
    assert caught.value.sender == "b"


WHOLE = Tally(5, 40, 9.0, (2, "a"), (8, "b"), 3)


def told_the_whole(whole, diameter=4, branch_told=True):
    """Let a site with nobody behind it, two hops from the root, be told the whole."""
    procedure = in_a_census("c", ("b",))
    if branch_told:
        sent = procedure.send({"b": Census("a", 1, "a")})
        assert sent["b"].branch == Branch(Tally(1, 3, math.sqrt(3), (3, "c"), (3, "c"), 0), [])
    return procedure.send({"b": Census("a", 1, "a", None, whole, diameter)})


@pytest.mark.parametrize(
    ("changes", "diameter", "branch_told"),
    [
        ({"height": 1}, 4, True),  # but this site is two hops away
        ({"height": -1}, 4, True),
        ({}, 2, True),
        ({}, 5, True),
        ({"sites": 2, "height": 1}, 1, True),
        ({"rows": 2, "roots": 2.0}, 4, True),
        ({"roots": 1.0}, 4, True),
        ({"fewest": (4, "a")}, 4, True),
        ({"most": (2, "b")}, 4, True),
        ({}, 4, False),
    ],
)
def test_a_whole_without_this_site_is_refused(changes, diameter, branch_told):
    assert told_the_whole(WHOLE)["b"] == Census("a", 2, "b", None, WHOLE, 4)
    with pytest.raises(MessageError, match="'b' describes a tree that cannot exist") as caught:
        told_the_whole(changed(WHOLE, **changes), diameter, branch_told)
    assert caught.value.sender == "b"


def test_nobody_begins_with_a_census_or_goes_back_to_the_roll():
    procedure = roll_call(Site("c", ("b",), ArrayRows(np.zeros((3, 1)), np.zeros(3))))
    next(procedure)
    with pytest.raises(MessageError, match="'b' sent Census where Roll is due"):
        procedure.send({"b": Census("b", 0, None)})
    procedure = in_a_census("c", ("b", "d"))
    procedure.send({"b": Census("b", 0, None), "d": Roll({}, 0, 0)})
    with pytest.raises(MessageError, match="'b' sent Roll where Census is due"):
        procedure.send({"b": Roll({}, 0, 0), "d": Roll({}, 0, 0)})


def test_a_root_once_told_is_not_taken_back():
    procedure = in_a_census("c", ("b",))
    procedure.send({"b": Census("a", 1, "a")})
    with pytest.raises(MessageError, match="'b' describes a tree that cannot exist"):
        procedure.send({"b": Census("b", 0, None)})


@pytest.mark.parametrize(
    "edges",
    [[], [("a", "b")], [("a", "b"), ("x", "y")], [("a", "b"), ("c", "c")], [("a", "c"), ("b", "c")]],
)
def test_where_edges_do_not_fit_the_tree_twice_the_height_stands_for_the_diameter(edges):
    procedure = in_a_census("a", ("b",))
    branch = Branch(Tally(2, 16, 4.0, (8, "b"), (8, "c"), 1), edges)
    sent = procedure.send({"b": Census("a", 1, "a", branch)})
    assert sent["b"].whole == Tally(3, 19, 4.0 + math.sqrt(3), (3, "a"), (8, "c"), 2)
    assert sent["b"].diameter == 2


def test_many_sites_know_their_neighbours_only():
    graph = nx.relabel_nodes(nx.random_regular_graph(4, 300, seed=0), str)
    rows = ArrayRows(np.zeros((3, 1)), np.zeros(3))
    rosters = LocalNetwork(graph).run({name: roll_call(Site(name, tuple(graph[name]), rows)) for name in graph})
    assert {(roster.n_sites, roster.n_rows, len(roster.rows)) for roster in rosters.values()} == {(300, 900, 5)}
    assert {roster.diameter for roster in rosters.values()} == {nx.diameter(graph)}


PATH = {"a": ("b",), "b": ("a", "c"), "c": ("b",)}


def summed(name):
    site = Site(name, PATH[name], ArrayRows(np.ones((2, 1)), np.ones(2)))
    return after_roll_call(lambda site, roster: Tree(roster).sum(np.ones(3)))(site)


def test_a_total_that_is_due_and_does_not_come_is_missed():
    deaf = tampered(summed("b"), lambda to, message: None if to == "c" and isinstance(message, Total) else message)
    with pytest.raises(MessageError, match="'b' sent nothing where a message is due"):
        LocalNetwork(PATH).run({"a": summed("a"), "b": deaf, "c": summed("c")})


@pytest.mark.parametrize("exchange", [8, 9, 10])
def test_a_total_from_somebody_who_owes_none_is_refused(exchange):
    def liar(procedure):
        outbox = next(procedure)
        for exchanges in itertools.count(1):
            inbox = yield {"b": Total(np.full(3, 99.0))} if exchanges == exchange and not outbox else outbox
            try:
                outbox = procedure.send(inbox)
            except StopIteration as stop:
                return stop.value

    with pytest.raises(MessageError, match=r"'c' sent a (partial sum out of turn|message where none is due)"):
        LocalNetwork(PATH).run({"a": summed("a"), "b": summed("b"), "c": liar(summed("c"))})
