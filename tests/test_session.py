import ast
import contextlib
import os
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dekrr.errors import AbsenceError, AgreementError, DataError, DisconnectedError, GoneError, MessageError
from dekrr.mesh import session as sessions
from dekrr.mesh.reading import MessageReader
from dekrr.mesh.session import Plan, Session, peers, phases
from dekrr.mesh.session import journal as journals
from dekrr.mesh.session.events import Refused, Refusing
from dekrr.mesh.session.frames import Data, Hello, frame_decoder
from dekrr.mesh.session.greeting import disagreement
from dekrr.mesh.session.journal import FileJournal, Opening, Received
from dekrr.mesh.session.peers import WINDOW
from dekrr.messages import (
    Bounds,
    Branch,
    Census,
    Chosen,
    Coefficients,
    Features,
    Masked,
    Message,
    Roll,
    Sums,
    Tally,
    Total,
    Unchanged,
    decode,
    encode,
)
from dekrr.networks.local import LocalNetwork
from dekrr.privacy.admission import AskedMaps
from dekrr.protocols import dekrr
from dekrr.protocols.run import Tuning
from dekrr.protocols.site import Site
from dekrr.selection import Greedy, Plain
from dekrr.settings import DeKRRSettings
from dekrr.tables.rows import ArrayRows
from faulty import Crash, Faults, FaultyNetwork, MemoryJournal, Outage
from soak import PATIENCE, SETTINGS, Problem, run_seed


class Fixed(Problem):
    """A DeKRR problem on a given graph."""

    def __init__(self, graph, method="dekrr"):
        super().__init__(7)
        self.graph = nx.relabel_nodes(graph, {node: f"s{node}" for node in graph})
        self.names = sorted(self.graph)
        self.method, self.selector, self.settings = method, Plain(4), SETTINGS
        rng = np.random.default_rng(3)
        self.rows = {name: (rng.uniform(size=(8, 2)), rng.uniform(-1, 1, size=8)) for name in self.names}

    def run(self, faults=None, seed=0):
        network = FaultyNetwork(self.graph, self.open_session, faults or Faults(), seed)
        network.run()
        assert not network.hung
        return network

    def reference(self, without=(), offers=None):
        graph = self.graph.subgraph([name for name in self.names if name not in without])
        offers = offers or {}
        return LocalNetwork(graph).run({n: self.make(n, sorted(graph[n]), offers.get(n)) for n in sorted(graph)})


@pytest.fixture
def many(monkeypatch):
    """Let two sites be too many to know each other by name."""
    monkeypatch.setattr("dekrr.protocols.roll_call._MOST_NAMED", 1)


@pytest.mark.parametrize("seed", range(200))
def test_seeded_faults(seed):
    run_seed(seed)


@pytest.mark.parametrize("method", ["dekrr", "dkla", "allreduce"])
def test_an_undisturbed_run_equals_the_local_network_to_the_last_bit(method):
    problem = Fixed(nx.cycle_graph(5), method)
    endings = problem.run().endings
    for name, outcome in problem.reference().items():
        np.testing.assert_array_equal(endings[name].outcome.coefficients, outcome.coefficients)


def test_a_site_that_dies_leaves_the_problem_and_the_features_stay():
    problem = Fixed(nx.circulant_graph(6, [1, 2]))
    network = problem.run(Faults(delay=0.3, crashes=(Crash("s2", at=9.0, back=None),)))
    assert set(network.endings) == set(problem.names) - {"s2"}
    chosen = {name: offer for (gone, name), offer in network.offers.items() if not gone}
    assert set(chosen) == set(problem.names), "it died before features were chosen; choose a later time"
    reference = problem.reference({"s2"}, chosen)
    for name, ending in network.endings.items():
        assert ending.gone == {"s2"}
        np.testing.assert_allclose(ending.outcome.coefficients, reference[name].coefficients, atol=1e-12)
        assert set(ending.outcome.roster.rows) == set(problem.names) - {"s2"}


@pytest.mark.parametrize(
    ("seed", "at", "delay", "drop"),
    [(0, 2.0, 0.3, 0.0), (0, 2.25, 0.3, 0.0), (25, 3.5, 0.1, 0.2), (28, 1.5, 0.1, 0.2), (39, 2.0, 0.1, 0.2)],
)
def test_a_shortlist_is_not_taken_for_a_choice_and_nobody_falls_out_of_step(seed, at, delay, drop):
    problem = Fixed(nx.complete_graph(5))
    problem.selector = Greedy(3)
    network = problem.run(Faults(drop=drop, delay=delay, crashes=(Crash("s2", at=at, back=None),)), seed)
    assert {ending.gone for ending in network.endings.values()} == {frozenset({"s2"})}
    told = {name: offer for (gone, name), offer in network.offers.items() if gone}
    reference = problem.reference({"s2"}, told)
    for name, ending in network.endings.items():
        assert ending.outcome.feature_map.n_features == 3
        np.testing.assert_allclose(ending.outcome.coefficients, reference[name].coefficients, atol=1e-12)


def test_a_graph_that_falls_apart_is_told():
    problem = Fixed(nx.path_graph(5))
    network = problem.run(Faults(delay=0.05, crashes=(Crash("s2", at=1.0, back=None),)))
    assert {type(ending.error) for ending in network.endings.values()} == {DisconnectedError}
    assert "is left with s0, s1" in str(network.endings["s0"].error)


def test_a_graph_of_many_that_falls_apart_is_told(many):
    problem = Fixed(nx.path_graph(7))
    network = problem.run(Faults(delay=0.05, crashes=(Crash("s3", at=1.0, back=None),)))
    assert {type(ending.error) for ending in network.endings.values()} == {DisconnectedError}
    assert "is left with s0, s1, s2" in str(network.endings["s0"].error)


def test_where_the_graph_falls_apart_the_majority_goes_on():
    problem = Fixed(nx.path_graph(7))
    network = problem.run(Faults(delay=0.05, crashes=(Crash("s1", at=1.0, back=None),)))
    assert isinstance(network.endings.pop("s0").error, DisconnectedError)
    reference = problem.reference({"s0", "s1"}, {n: o for (lost, n), o in network.offers.items() if lost})
    assert set(network.endings) == {"s2", "s3", "s4", "s5", "s6"}
    for name, ending in network.endings.items():
        assert ending.gone == {"s0", "s1"}
        np.testing.assert_allclose(ending.outcome.coefficients, reference[name].coefficients, atol=1e-12)


def test_a_link_that_breaks_for_good_costs_the_link_and_no_site():
    problem = Fixed(nx.circulant_graph(6, [1, 2]))
    network = problem.run(Faults(delay=0.3, outages=(Outage(("s0", "s1"), 3.0, 1e6),)))
    assert {(ending.gone, ending.lost) for ending in network.endings.values()} == {(frozenset(), frozenset({"s0|s1"}))}
    problem.graph.remove_edge("s0", "s1")
    chosen = {name: offer for (lost, name), offer in network.offers.items() if lost}
    for name, outcome in problem.reference(offers=chosen).items():
        np.testing.assert_allclose(network.endings[name].outcome.coefficients, outcome.coefficients, atol=1e-12)


def test_after_a_blackout_sites_come_back_one_by_one_later_than_the_patience():
    problem = Fixed(nx.cycle_graph(4))
    crashes = tuple(Crash(name, at=2.0, back=2.0 + 2 * k * PATIENCE) for k, name in enumerate(problem.names, 1))
    network = problem.run(Faults(delay=0.3, crashes=crashes))
    assert network.injected["crash"] == 4
    for name, outcome in problem.reference().items():
        assert not network.endings[name].lost
        np.testing.assert_array_equal(network.endings[name].outcome.coefficients, outcome.coefficients)


def test_a_site_that_told_of_its_result_finishes_from_its_checkpoint_alone(tmp_path):
    problem = Fixed(nx.path_graph(2))
    path = tmp_path / "checkpoint"
    alive = problem.open_session("s0", MemoryJournal(), None)
    dies = problem.open_session("s1", FileJournal(path), None)
    for session in (alive, dies):
        session.start(0.0)
    for _ in range(1000):
        for one, other in ((alive, dies), (dies, alive)):
            if one.out and dies.phase != "closing":
                other.receive([(one.plan.name, one.out.pop(0)[1])], 0.0)
    assert dies.phase == "closing"
    left = FileJournal(tmp_path / "copy")  # what is on the disk when the process is killed
    left._file.write(path.read_bytes(), at=0)
    left._file.close()
    back = problem.open_session("s1", FileJournal(tmp_path / "copy"), None)
    back.start(100.0)
    assert back.phase == "closing"
    back.tick(101.0 + PATIENCE)
    assert back.phase == "finished"
    np.testing.assert_array_equal(back.result.coefficients, problem.reference()["s1"].coefficients)


@pytest.mark.parametrize("delay", [0.01, 7.0])
def test_frames_on_a_slow_link_are_sent_once(delay):
    problem = Fixed(nx.complete_graph(3))
    sent = Counter()
    sessions = {name: problem.open_session(name, MemoryJournal(), None) for name in problem.names}
    waiting, now = [], 0.0  # frames in their order, each with the time at which it comes
    for session in sessions.values():
        session.start(now)
    while not all(session.phase == "finished" for session in sessions.values()):
        for name, session in sessions.items():
            for receiver, frame in session.out:
                sent.update([(name, receiver, frame)] if isinstance(frame_decoder.decode(frame), Data) else [])
                waiting.append((now + delay, name, receiver, frame))
            session.out.clear()
        now += 0.25
        assert now < 2000
        due = [item for item in waiting if item[0] <= now]
        waiting = [item for item in waiting if item[0] > now]
        for _, name, receiver, frame in due:
            sessions[receiver].receive([(name, frame)], now)
        for name, session in sessions.items():
            session.learn(next(p for p in sessions if p != name), now, up=True)
            session.tick(now)
    assert set(sent.values()) == {1}


@pytest.mark.parametrize(
    ("census", "exchange"),
    [
        (Census("z", 0, None), 5),
        (Census("a", 2, "a"), 5),
        (Census("a", 1, "a"), 0),  # at a distance that no name can have come
        (Census("a", 1, "a", Branch(Tally(3, 8, 2.0, (8, "b"), (8, "b"), 0), [])), 5),
        (Census("a", 1, "a", Branch(Tally(1, 8, 2.0, (8, "b"), (8, "b"), 0), [("b", "z")])), 5),
        (Census("a", 1, "a", Branch(Tally(1, 8, 2.0, (8, "b"), (8, "b"), 0), [("a", "b"), ("a", "b")])), 5),
        (Census("a", 1, "a", None, Tally(2, 8, 2.0, (8, "z"), (8, "b"), 0), 1), 5),
        (Census("a", 1, "a", None, Tally(2, 8, 2.0, (8, "b"), (8, "z"), 0), 1), 5),
        (Census("a", 1, "a", None, Tally(2, 8, 2.0, (8, "b"), (8, "b"), 2), 1), 5),
        (Census("a", 1, "a", None, Tally(2, 8, 2.0, (8, "b"), (8, "b"), 1), 2), 5),
        (Census("a", 1, "a"), 13),
    ],
)
def test_a_census_of_other_sites_or_without_end_is_refused(many, census, exchange):
    session, told = lonely()
    session.receive([("b", hello("b"))], 0.0)
    session.receive([("b", data("b", exchange, census))], 0.0)
    (refused,) = [event for event in told if isinstance(event, Refused)]
    assert "census" in refused.reason
    assert not session.peers["b"].frames


def test_a_site_that_comes_back_too_late_is_told_that_it_is_gone():
    problem = Fixed(nx.complete_graph(4))
    faults = Faults(delay=0.3, crashes=(Crash("s1", at=2.0, back=2.0 + PATIENCE + 4),))
    network = problem.run(faults)
    assert isinstance(network.endings["s1"].error, GoneError)
    assert all(network.endings[name].gone == {"s1"} for name in ("s0", "s2", "s3"))


def test_a_link_that_drops_and_returns_changes_nothing():
    problem = Fixed(nx.cycle_graph(4))
    outages = tuple(Outage(edge, 1.0, 1.0 + PATIENCE * 0.8) for edge in problem.graph.edges)
    network = problem.run(Faults(delay=0.05, outages=outages))
    reference = problem.reference()
    for name, ending in network.endings.items():
        assert not ending.gone
        np.testing.assert_array_equal(ending.outcome.coefficients, reference[name].coefficients)


def test_a_site_without_its_checkpoint_goes_through_the_run_again():
    problem = Fixed(nx.cycle_graph(4))
    network = problem.run(Faults(delay=0.05, crashes=(Crash("s3", at=1.0, back=3.0, forgets=True),)))
    assert network.injected["crash"] == 1
    reference = problem.reference()
    for name, ending in network.endings.items():
        np.testing.assert_array_equal(ending.outcome.coefficients, reference[name].coefficients)


@pytest.mark.parametrize("method", ["dekrr", "dkla", "allreduce"])
def test_a_neighbour_that_sends_wrong_shapes_is_declared_gone_and_the_rest_is_right(method):
    problem = Fixed(nx.complete_graph(4), method)

    def open_session(name, journal, observe):
        session = problem.open_session(name, journal, observe)
        if name == "s2":
            make = session.course._make
            session.course._make = lambda neighbors, offer: with_wrong_shapes(make(neighbors, offer))
        return session

    network = FaultyNetwork(problem.graph, open_session, Faults(), 0)
    network.run()
    assert isinstance(network.endings.pop("s2").error, GoneError)
    chosen = {name: offer for (gone, name), offer in network.offers.items() if not gone}
    reference = problem.reference({"s2"}, chosen)
    for name, ending in network.endings.items():
        assert ending.gone == {"s2"}
        np.testing.assert_allclose(ending.outcome.coefficients, reference[name].coefficients, atol=1e-12)


def with_wrong_shapes(procedure):
    inbox = None
    while True:
        outbox = next(procedure) if inbox is None else procedure.send(inbox)
        inbox = yield {p: wrong(message) for p, message in outbox.items()}


def wrong(message):
    match message:
        case Sums(gram, cross):
            return Sums(gram[:-1], cross)
        case Coefficients(values, progress):
            return Coefficients(values[:-1], progress)
        case Masked(words):
            return Masked(words[:-1])
        case Total(values):
            return Total(values[:-1])
    return message


def lonely(name="a", neighbors=("b",), journal=None, **options):
    """Return a session that has started and agreed with its neighbours, and what it was told."""
    told = []
    sites = frozenset({name, *neighbors})
    plan = Plan(run="r", name=name, neighbors=neighbors, sites=sites, terms={"alpha": "1"}, patience=10.0, **options)
    problem = Fixed(nx.complete_graph(2))
    problem.rows[name] = problem.rows["s0"]
    make = partial(problem.make, name)
    session = Session(plan, make, MessageReader(), journal, observe=told.append)
    session.start(0.0)
    return session, told


def hello(sender, **changes):
    plain = {"run": "r", "sender": sender, "gone": (), "exchange": -1, "terms": {"alpha": "1"}}
    plain |= {"agreed": {sender: ("a",)}, "asks": 0, "answers": 0, "lacks": False, "finished": False}
    plain |= {"refusal": "", "origin": f"rows of {sender}"}
    return msgspec.msgpack.encode(Hello(**{**plain, **changes}))


def data(sender, exchange, message, **changes):
    body = encode(message) if isinstance(message, Message) else message
    plain = {"run": "r", "sender": sender, "gone": (), "exchange": exchange}
    return msgspec.msgpack.encode(["data", *{**plain, **changes}.values(), msgspec.Raw(body)])


ROLL = Roll({"b": 8}, 0, 0)
NAN = encode(Coefficients(np.full(2, np.nan), (0.0, 0.0)))


@pytest.mark.parametrize(
    ("sender", "frame", "reason"),
    [
        ("b", b"", "not a frame"),
        ("b", b"\x93" * 5000, "not a frame"),
        ("b", msgspec.msgpack.encode(["data", 1, 2]), "not a frame"),
        ("b", data("c", 0, ROLL), "in the name of 'c'"),
        ("c", data("c", 0, ROLL), "not a neighbour"),
        ("b", data("b", 0, ROLL, run="other"), "run 'other'"),
        ("b", data("b", -1, ROLL), "exchange -1"),
        ("b", data("b", 0, ROLL, gone=("nobody",)), "declares"),
        ("b", data("b", 0, ROLL, gone=("b",)), "declares"),
        ("b", data("b", 0, b"\x00"), "not a frame: Expected `array | null`, got `int`"),
        ("b", data("b", 0, NAN), "NaN"),
        ("b", data("b", 0, Roll({}, 10**9, 0)), "is impossible"),
        ("b", data("b", 0, Roll({"z": 8}, 0, 0)), "cannot exist"),
        ("b", data("b", 0, Roll({"b": -1}, 0, 0)), "cannot exist"),
        ("b", data("b", 0, Census("b", 0, None)), "a census that cannot be"),
        ("b", data("b", 0, Unchanged((float("nan"), 1.0))), "NaN"),
        ("b", data("b", 0, Features(np.zeros((2, 3)), np.zeros(2), np.zeros(3), 1)), "do not fit"),
    ],
)
def test_a_bad_frame_is_refused_told_once_and_changes_nothing(sender, frame, reason):
    session, told = lonely()
    session.receive([("b", hello("b"))], 0.0)
    assert session.phase == "running"
    for _ in range(3):
        session.receive([(sender, frame)], 0.0)
    refused = [event for event in told if isinstance(event, Refused)]
    assert len(refused) == 1
    assert reason in refused[0].reason
    assert session.exchange == 0
    assert not session.peers["b"].frames
    session.receive([("b", data("b", 0, ROLL))], 0.0)
    assert session.exchange == 1


def test_frames_that_come_together_are_taken_as_if_they_came_one_by_one():
    frames = [("b", hello("b")), ("b", data("b", 0, ROLL)), ("b", b"no frame"), ("b", data("b", 1, ROLL))]
    together, told = lonely()
    together.receive(frames, 0.0)
    alone, told_alone = lonely()
    for frame in frames:
        alone.receive([frame], 0.0)
    assert together.exchange == alone.exchange == 2
    assert [type(event) for event in told].count(Refused) == [type(event) for event in told_alone].count(Refused) == 1
    assert together.out == alone.out


def test_early_frames_are_buffered_within_bounds_and_late_ones_and_repeats_ignored():
    session, _ = lonely()
    session.receive([("b", hello("b"))], 0.0)
    session.receive([("b", data("b", 1, ROLL))], 0.0)
    session.receive([("b", data("b", WINDOW, ROLL))], 0.0)
    assert set(session.peers["b"].frames) == {1}
    assert session.exchange == 0
    session.receive([("b", data("b", 0, ROLL))], 0.0)
    assert session.exchange == 2
    session.receive([("b", data("b", 0, ROLL))], 0.0)
    session.receive([("b", data("b", 1, ROLL))], 0.0)
    assert session.exchange == 2
    assert not session.peers["b"].frames


def test_nothing_that_depends_on_rows_is_sent_before_all_agree():
    session, _ = lonely(neighbors=("b", "c"))
    session.receive([("b", data("b", 0, ROLL))], 0.0)
    session.receive([("b", hello("b", asks=1, exchange=0))], 0.0)
    frames = [msgspec.msgpack.decode(frame) for _, frame in session.out]
    assert {frame[0] for frame in frames} == {"hello"}
    session.receive([("c", hello("c"))], 0.0)
    assert session.phase == "running"


def test_a_refusal_is_passed_on_and_ends_the_run():
    session, told = lonely(neighbors=("b", "c"))
    session.receive([("b", hello("b", terms={"alpha": "2"}))], 0.0)
    assert Refusing(reason="sites 'a' and 'b' do not agree: alpha is 1 at 'a' and 2 at 'b'") in told
    refusals = {receiver: msgspec.msgpack.decode(frame)[-2] for receiver, frame in session.out}
    assert set(refusals) == {"b", "c"}
    assert all("do not agree" in text for text in refusals.values())
    session.receive([("b", hello("b", refusal="no"))], 1.0)
    with pytest.raises(AgreementError, match="alpha is 1"):
        session.receive([("c", hello("c", refusal="no"))], 1.0)
    other, _ = lonely(neighbors=("b", "c"))
    other.receive([("b", hello("b", refusal="somebody disagrees"))], 0.0)
    with pytest.raises(AgreementError, match="somebody"):
        other.tick(6.0)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"b": ("a", "c"), "c": ("a",)}, "site 'b' names 'c' as its neighbour, but 'c' does not name 'b'"),
        ({"b": ("a", "d"), "c": ("a",)}, "neighbours of 'b' are a, d, but a was heard before: somebody tells"),
        ({"b": ("a",), "a": ("b",)}, "neighbours of 'a' are b, but b, c was heard before"),
        ({"c": ("a",), "d": ("e",), "e": ("d",)}, "by what the sites say d, e cannot be reached over any links"),
    ],
)
def test_sites_that_tell_different_neighbors_do_not_start(told, reason):
    """Masks rest on the graph: a centre that hides a neighbour from another one would learn a sum over fewer sites."""
    plan = Plan("r", "a", ("b", "c"), frozenset("abcde"), {"alpha": "1"})
    events = []
    session = Session(plan, partial(Fixed(nx.complete_graph(2)).make, "a"), MessageReader(), observe=events.append)
    session.start(0.0)
    first = {"b": ("a",)} if "d" in str(told) else {}
    session.receive([("b", hello("b", agreed=first))], 0.0)
    assert session.phase == "greeting"
    session.receive([("c", hello("c", agreed=told))], 0.0)
    assert session.phase == "refusing"
    assert reason in next(event.reason for event in events if isinstance(event, Refusing))


@pytest.mark.parametrize(
    "said",
    [
        [Features(np.full((2, 3), value), np.zeros(3), np.zeros(3), 1) for value in (1.0, 2.0)],
        [Chosen(0, 2, indices, np.empty(0), np.empty(0), 1) for indices in ([3, 4], [3, 5])],
        [Bounds(np.zeros(3), np.full(3, value)) for value in (1.0, 2.0)],
        [Roll({"b": rows}, 0, 0) for rows in (8, 9)],
    ],
    ids=lambda said: type(said[0]).__name__,
)
def test_a_neighbour_that_comes_back_with_other_rows_or_features_is_declared_gone(said):
    session, told = lonely(neighbors=("b", "c"))
    session.receive([("b", hello("b")), ("c", hello("c"))], 0.0)
    session.receive([("b", data("b", 5, said[0]))], 0.0)
    session.receive([("b", data("b", 5, said[0]))], 0.0)
    assert not session.gone
    session.receive([("b", data("b", 5, said[1]))], 0.0)
    assert session.gone == {"b"}
    assert Refused(sender="b", reason="site 'b' came back with other rows or features than it had") in told


def all_linked():
    """Return a session whose neighbours b, c and d are up, and linked to each other."""
    session, _ = lonely(neighbors=("b", "c", "d"))
    names = {"a", "b", "c", "d"}
    agreed = {name: tuple(sorted(names - {name})) for name in names}
    for name in "bcd":
        session.learn(name, 0.0, up=True)
    session.receive([(name, hello(name, agreed={name: agreed[name]})) for name in "bcd"], 0.0)
    assert session.phase == "running"
    return session


def test_one_accuser_costs_a_link_and_two_put_a_site_out():
    session = all_linked()
    session.receive([("b", hello("b", gone=("b>c",), exchange=0))], 0.0)
    assert (session.lost, session.gone) == ({"b>c"}, set())
    assert session.course.epoch.present == ("b", "c", "d")
    session.receive([("d", hello("d", gone=("b>c", "d>c"), exchange=0))], 0.0)
    assert session.gone == {"c"}


@pytest.mark.parametrize("claims", [("d>c", "b>c"), ("b>c", "c|d", "a|c"), ("d>a", "c>a")])
def test_what_others_know_first_is_believed_from_them_alone_as_long_as_they_can_be_reached(claims):
    session = all_linked()
    session.receive([("b", hello("b", gone=claims, exchange=0))], 0.0)
    assert session.lost == {claim for claim in claims if claim.startswith("b>")}
    assert not session.gone
    session.learn("d", 1.0, up=False)
    session.receive([("b", hello("b", gone=claims, exchange=0))], 2.0)
    assert session.lost == {claim for claim in claims if claim[0] in "bd"}


def test_a_site_that_accuses_another_one_of_four_neighbours_costs_their_link_alone():
    problem = Fixed(nx.complete_graph(5))
    network = FaultyNetwork(problem.graph, problem.open_session, Faults(delay=0.3), 0)

    def accuse():
        network._sessions["s0"]._give_up("s2", "a lie", network._now)

    network._at(9.0, accuse)
    network.run()
    chosen = {name: offer for (lost, name), offer in network.offers.items() if lost}
    problem.graph.remove_edge("s0", "s2")
    reference = problem.reference((), chosen)
    assert {(ending.gone, ending.lost) for ending in network.endings.values()} == {(frozenset(), frozenset({"s0>s2"}))}
    for name, ending in network.endings.items():
        np.testing.assert_allclose(ending.outcome.coefficients, reference[name].coefficients, atol=1e-12)


def test_a_liar_about_losses_is_left_out_itself():
    problem = Fixed(nx.complete_graph(5))

    class Lying(FaultyNetwork):
        def _post(self, name, session):
            if name == "s0" and session.phase == "running":
                frames = [(to, msgspec.msgpack.decode(frame)) for to, frame in session.out]
                claims = ["s1>s2", "s3>s2"]
                session.out[:] = [(to, msgspec.msgpack.encode([*f[:3], claims, *f[4:]])) for to, f in frames]
            super()._post(name, session)

    network = Lying(problem.graph, problem.open_session, Faults(), 0)
    network.run()
    assert not network.hung
    assert {network.endings[name].gone for name in problem.names[1:]} == {frozenset({"s0"})}
    assert all(network.endings[name].outcome is not None for name in problem.names[1:])


def test_a_roll_call_with_somebody_who_is_gone_is_refused():
    session, told = lonely(neighbors=("b", "c", "d"))
    session.receive([(name, hello(name)) for name in "bcd"], 0.0)
    for exchange, name in enumerate("cd"):
        session.receive([("b", data("b", exchange, Roll({name: 3}, 0, 0), gone=("b>d", "c>d")))], 0.0)
    assert session.gone == {"d"}
    assert set(session.peers["b"].frames) == {0}
    assert Refused(sender="b", reason="site 'b' names a site 'd' that cannot exist") in told


def test_what_was_said_is_known_after_it_was_used_and_after_resuming():
    journal = MemoryJournal()
    session, _ = lonely(journal=journal)
    session.receive([("b", hello("b"))], 0.0)
    session.receive([("b", data("b", 0, ROLL))], 0.0)
    assert session.exchange == 1
    resumed, _ = lonely(journal=journal)
    assert resumed.exchange == 1
    for each in (session, resumed):
        each.receive([("b", data("b", 0, ROLL))], 0.0)
        with pytest.raises(DisconnectedError, match="other rows or features"):
            each.receive([("b", data("b", 0, Roll({"b": 9}, 0, 0)))], 0.0)


def test_a_site_whose_rows_changed_under_a_lost_checkpoint_is_out_and_the_rest_is_right():
    problem = Fixed(nx.complete_graph(5))
    problem.rows["s3"] = tuple(np.concatenate([values, values[:1]]) for values in problem.rows["s3"])
    lives = Counter()

    def open_session(name, journal, observe):
        lives[name] += 1
        if lives["s3"] == 2:
            problem.rows["s3"] = tuple(values[:-1] for values in problem.rows["s3"])
        return problem.open_session(name, journal, observe)

    faults = Faults(delay=0.05, crashes=(Crash("s3", at=1.0, back=3.0, forgets=True),))
    network = FaultyNetwork(problem.graph, open_session, faults, 0)
    network.run()
    assert lives["s3"] == 2
    error = network.endings.pop("s3").error
    assert isinstance(error, GoneError)
    assert "other rows or features" in str(error)
    told = {name: offer for (gone, name), offer in network.offers.items() if gone}
    reference = problem.reference({"s3"}, told)
    for name, ending in network.endings.items():
        assert ending.gone == {"s3"}
        np.testing.assert_allclose(ending.outcome.coefficients, reference[name].coefficients, atol=1e-12)


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("allocation", ["equal", "sqrt"])
def test_greedy_features_stay_when_a_site_dies_also_where_they_are_proved(verify, allocation):
    problem = Fixed(nx.complete_graph(5))
    problem.rows["s0"] = tuple(np.concatenate([values, values]) for values in problem.rows["s0"])
    problem.selector = Greedy(4)
    problem.settings = msgspec.structs.replace(SETTINGS, verify_features=verify, allocation=allocation)
    network = problem.run(Faults(delay=0.3, crashes=(Crash("s2", at=8.0, back=None),)))
    offers = {name: [o for (_, who), o in network.offers.items() if who == name] for name in network.endings}
    assert {len(each) for each in offers.values()} == {2}, "it died before features were chosen; choose a later time"
    for before, after in offers.values():
        assert type(before) is (Chosen if verify else Features)
        assert encode(msgspec.structs.replace(after, n_neighbors=before.n_neighbors)) == encode(before)
    assert all(ending.outcome is not None for ending in network.endings.values())


def test_what_was_said_in_another_epoch_is_forgotten():
    session, _ = lonely(neighbors=("b", "c", "d"))
    offer = Features(np.zeros((2, 3)), np.zeros(3), np.zeros(3), 1)
    session.receive([("b", data("b", 6, offer))], 0.0)
    later = data("b", 6, Total(np.zeros(2)), gone=("b>d", "c>d"))
    session.receive([("b", later), ("b", later)], 0.0)
    assert session.gone == {"d"}


def test_what_was_said_before_the_start_is_remembered():
    session, _ = lonely(neighbors=("b", "c"))
    session.receive([("b", data("b", 0, ROLL))], 0.0)
    session.receive([("b", hello("b")), ("c", hello("c"))], 0.0)
    assert session.phase == "running"
    session.receive([("b", data("b", 0, Roll({"b": 9}, 0, 0)))], 0.0)
    assert session.gone == {"b"}


def test_a_live_neighbour_that_only_sends_what_cannot_be_read_is_not_waited_for_without_end():
    session, _ = lonely(neighbors=("b", "c"))
    session.receive([("b", hello("b")), ("c", hello("c"))], 0.0)
    for name in "bc":
        session.learn(name, 0.0, up=True)
    session.receive([("c", data("c", 0, Roll({"c": 8}, 0, 0)))], 0.0)
    for second in range(1, 13):
        session.receive([("b", data("b", 0, NAN)), ("b", hello("b", exchange=0))], float(second))
        session.tick(float(second))
        assert session.gone == (set() if second <= 10 else {"b"})


def test_a_neighbour_without_a_message_where_one_is_due_is_declared_gone():
    session, told = lonely(neighbors=("b", "c"))
    session.receive([("b", hello("b")), ("c", hello("c"))], 0.0)
    session.receive([("c", data("c", 0, Roll({"c": 8}, 0, 0)))], 0.0)
    session.receive([("b", msgspec.msgpack.encode(["data", "r", "b", (), 0, None]))], 0.0)
    assert session.gone == {"b"}
    assert any("'b' sent nothing where a message is due" in str(event) for event in told)


def test_large_frames_ahead_are_kept_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(peers, "BUFFER_BYTES", 64_000)
    monkeypatch.setattr(peers, "SMALL_FRAME", 1_000)
    session, _ = lonely()
    session.receive([("b", hello("b"))], 0.0)
    for exchange in range(1, 6):
        session.receive([("b", data("b", exchange, Total(np.zeros(2_500))))], 0.0)
    assert set(session.peers["b"].frames) == {1, 2, 3}
    session.receive([("b", data("b", 6, Total(np.zeros(2))))], 0.0)
    assert set(session.peers["b"].frames) == {1, 2, 3, 6}


def test_terms_that_differ_are_all_named():
    text = disagreement("a", {"x": "1", "y": "2"}, "b", {"x": "1", "y": "3", "z": "4"})
    assert "y is 2 at 'a' and 3 at 'b'" in text
    assert "z is not there at 'a' and 4 at 'b'" in text
    assert "x is" not in text


RECORDS = [Opening("r", "a", "d", (), None, {}), Received(0, {"b": b"xyz"}), Received(1, {})]


def written(folder):
    path = folder / "checkpoint"
    journal = FileJournal(path)
    for record in RECORDS:
        journal.append(record)
    journal.close()
    return path


def test_a_journal_keeps_whole_records_and_drops_one_cut_short(tmp_path):
    path = written(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    whole = path.read_bytes()
    for end in range(len(whole) + 1):
        path.write_bytes(whole[:end])
        journal = FileJournal(path)
        kept = list(journal.records())
        assert kept == RECORDS[: len(kept)]
        journal.append(RECORDS[1])
        journal.flush()
        assert list(journal.records()) == [*kept, RECORDS[1]]
        journal.close()
    path.write_bytes(b"something else")
    with pytest.raises(DataError, match="not a checkpoint"):
        FileJournal(path)
    assert path.read_bytes() == b"something else"


def test_what_a_power_cut_left_is_dropped(tmp_path):
    path = written(tmp_path)
    whole = path.read_bytes()
    for place in range(20, len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        journal = FileJournal(path)
        kept = list(journal.records())
        assert kept == RECORDS[: len(kept)]
        assert len(kept) < len(RECORDS)
        journal.close()
    path.write_bytes(whole + b"\0" * 100)
    journal = FileJournal(path)
    assert list(journal.records()) == RECORDS
    journal.close()


def test_a_checkpoint_is_synchronised_and_a_failure_of_it_is_told(tmp_path, monkeypatch):
    synchronised = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synchronised.append(os.fstat(descriptor).st_ino))
    path = tmp_path / "checkpoint"
    journal = FileJournal(path)
    journal.append(RECORDS[0])
    journal._wait()
    assert synchronised == [path.stat().st_ino, tmp_path.stat().st_ino]

    def broken(_):
        raise OSError("the disk is broken")

    monkeypatch.setattr(journals, "_SYNCHRONISE_EVERY", 0.0)
    monkeypatch.setattr(os, "fdatasync", broken)
    journal.append(RECORDS[1])
    journal.flush()
    journal._wait()
    journal.append(RECORDS[2])
    with pytest.raises(OSError, match="broken"):
        journal.flush()
    journal.close()


def test_a_checkpoint_of_other_rows_is_refused():
    problem = Fixed(nx.complete_graph(2))
    journal = MemoryJournal()
    journal.append(Opening("run 7", "s0", "other rows", (), None, {}))
    with pytest.raises(AgreementError, match="other rows"):
        problem.open_session("s0", journal, None).start(0.0)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_the_decoder_takes_any_bytes(noise):
    with contextlib.suppress(MessageError):
        assert isinstance(decode(noise, "b"), Message)


SOME = [ROLL, Coefficients(np.arange(3.0), (1.0, 2.0)), Total(np.zeros(4)), Sums(np.ones(3), np.ones((2, 2)))]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SOME), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8))
def test_the_decoder_takes_damaged_messages(message, damage):
    body = bytearray(encode(message))
    for place, value in damage:
        body[place % len(body)] = value
    try:
        decoded = decode(bytes(body), "b")
    except MessageError:
        return
    arrays = [value for value in msgspec.structs.astuple(decoded) if isinstance(value, np.ndarray)]
    assert all(np.isfinite(array).all() and array.ndim <= 2 for array in arrays)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
kinds = st.sampled_from(["roll", "bounds", "features", "sums", "rows", "theta", "same", "total", "hello", "data"])


@settings(max_examples=300, deadline=None)
@given(st.builds(lambda kind, rest: [kind, *rest], kinds, st.lists(values, max_size=9)))
def test_decoder_and_session_take_any_structure(frame):
    noise = msgspec.msgpack.encode(frame)
    with contextlib.suppress(MessageError):
        decode(noise, "b")
    session, _ = lonely()
    session.receive([("b", hello("b"))], 0.0)
    session.receive([("b", noise)], 0.0)
    with contextlib.suppress(DisconnectedError):  # where the noise is a message, of a kind that is not due, or this one
        session.receive([("b", data("b", 0, noise))], 0.0)
        session.receive([("b", data("b", 0, ROLL))], 0.0)
    assert session.exchange in (0, 1)


@pytest.mark.parametrize("position", [0, 10**6])
def test_hellos_alone_do_not_keep_a_run_waiting(position):
    session, _ = lonely(neighbors=("b", "c", "d"))
    session.receive([(name, hello(name)) for name in "bcd"], 0.0)
    session.receive([(name, data(name, 0, Roll({name: 8}, 0, 0))) for name in "cd"], 0.0)
    session.learn("b", 0.0, up=True)
    limit = 10 * 10.0
    for now in range(0, int(limit), 5):
        session.receive([("b", hello("b", exchange=position))], float(now))
        session.tick(float(now))
    assert not session.gone
    session.receive([("b", hello("b", exchange=position))], limit + 1)
    session.tick(limit + 1)
    assert session.gone == {"b"}


def test_a_neighbour_that_waits_itself_is_waited_for_as_long_as_a_chain_may_take():
    session, _ = lonely(neighbors=("b", "c", "d"))
    session.receive([(name, hello(name)) for name in "bcd"], 0.0)
    session.receive([(name, data(name, 0, Roll({name: 8}, 0, 0))) for name in "bcd"], 0.0)
    assert session.exchange == 1
    session.learn("b", 0.0, up=True)
    session.receive([(name, data(name, 1, Roll({}, 0, 0))) for name in "cd"], 0.0)
    limit = 4 * 10 * 10.0
    for now in range(0, int(limit), 5):
        session.receive([("b", hello("b", exchange=0))], float(now))
        session.tick(float(now))
    assert not session.gone
    session.tick(limit + 1)
    assert session.gone == {"b"}


def test_a_run_does_not_start_before_every_neighbour_was_heard():
    session, _ = lonely(neighbors=("b", "c"), start_patience=20.0)
    session.receive([("b", hello("b", agreed={"a": ("b", "c"), "b": ("a",), "c": ("a",)}))], 0.0)
    assert session.phase == "greeting"
    with pytest.raises(AbsenceError, match="not heard of: c"):
        session.tick(21.0)
    session.receive([("c", hello("c"))], 22.0)
    assert session.phase == "running"


def test_a_neighbour_that_starts_from_other_rows_is_known_by_its_hello():
    journal = MemoryJournal()
    session, told = lonely(neighbors=("b", "c"), journal=journal)
    session.receive([("b", hello("b", origin="first"))], 0.0)
    session.receive([("b", hello("b", origin="second")), ("c", hello("c"))], 0.0)
    assert session.phase == "running"
    assert not session.gone
    resumed, _ = lonely(neighbors=("b", "c"), journal=journal)
    for each in (session, resumed):
        each.receive([("b", hello("b", origin="second"))], 1.0)
        assert not each.gone
        each.receive([("b", hello("b", origin="third"))], 2.0)
        assert each.gone == {"b"}
    assert Refused(sender="b", reason="site 'b' came back with other rows or features than it had") in told


def test_what_is_told_of_a_bad_frame_is_short():
    session, told = lonely()
    session.receive([("b", data("b" * 10**6, 0, ROLL))], 0.0)
    (refused,) = [event for event in told if isinstance(event, Refused)]
    assert len(refused.reason) < 400


def test_sites_lost_while_tuning_leave_a_run_that_ends_well():
    names = [f"s{i}" for i in range(5)]
    graph = nx.relabel_nodes(nx.complete_graph(5), dict(enumerate(names)))
    rng = np.random.default_rng(0)
    rows = {name: ArrayRows(rng.uniform(size=(60, 2)), rng.uniform(size=60)) for name in names}
    grid = Tuning(sigmas=(0.5, 1.0), alphas=(1e-3,), consensuses=(1.0,), folds=3)
    ledgers = {name: AskedMaps() for name in names}

    def open_session(name, journal, observe):
        def make(present, offer):
            n_gone = len(names) - 1 - len(present)
            settings = DeKRRSettings(
                lone_neighbor="warn", max_maps=(1 + n_gone) * grid.n_maps, rows_per_feature=0, max_rounds=20
            )
            site = Site(name, tuple(present), rows[name], ledger=ledgers[name])
            return dekrr.train(site, Greedy(4), settings, grid)

        plan = Plan("r", name, tuple(sorted(graph[name])), frozenset(names), {}, patience=10.0)
        return Session(plan, make, MessageReader(), journal, observe)

    crashes = (Crash("s4", at=2.0, back=None), Crash("s3", at=14.5, back=None))
    network = FaultyNetwork(graph, open_session, Faults(delay=0.05, crashes=crashes), 0)
    endings = network.run()
    assert {ending.gone for ending in endings.values()} == {frozenset({"s3", "s4"})}
    assert all(ending.outcome is not None for ending in endings.values())
    assert max(len(maps) for maps in ledgers["s0"].maps.values()) > grid.n_maps


def test_a_site_that_starts_again_while_another_is_dead_does_not_wait_for_it():
    problem = Fixed(nx.complete_graph(5))
    crashes = (Crash("s4", at=1.0, back=2.0, forgets=True), Crash("s0", at=1.5, back=None))
    network = problem.run(Faults(delay=0.2, crashes=crashes))
    assert {ending.gone for ending in network.endings.values()} == {frozenset({"s0"})}
    assert all(ending.outcome is not None for ending in network.endings.values())
    assert set(network.endings) == {"s1", "s2", "s3", "s4"}


def test_the_page_has_the_table_of_the_phases():
    text = (Path(__file__).parents[1] / "docs" / "protocol.md").read_text()
    assert f"\n\n{phases.as_markdown()}\n\n" in text


def test_every_row_of_the_phase_table_happens_and_nothing_else(monkeypatch):
    taken = set()

    class Watched(dict):
        def __getitem__(self, row):
            taken.add(row)
            return super().__getitem__(row)

        def __contains__(self, row):
            found = super().__contains__(row)
            taken.update({row} if found else ())
            return found

    watched = Watched(phases.TABLE)
    monkeypatch.setattr(phases, "TABLE", watched)
    monkeypatch.setattr("dekrr.mesh.session.session.TABLE", watched)
    for seed in range(60):
        run_seed(seed)
    session, _ = lonely(neighbors=("b", "c"))
    session.receive([("b", hello("b", terms={"alpha": "2"}))], 0.0)
    with pytest.raises(AgreementError):
        session.tick(6.0)
    cut_off_before_the_start()
    gone_before_the_start()
    lost_when_closing()
    cut_off_when_closing()
    gone_when_closing()
    unconfirmed_when_closing()
    assert taken == set(phases.TABLE)


def cut_off_before_the_start():
    session, _ = lonely(neighbors=("b", "c", "d"))
    session.receive([("b", hello("b", gone=("b>c", "d>c")))], 0.0)
    assert session.phase == "greeting"
    with pytest.raises(DisconnectedError):
        session.receive([("b", hello("b", gone=("b>c", "b>d", "c>d", "d>c")))], 0.0)


def gone_before_the_start():
    session, _ = lonely()
    with pytest.raises(GoneError):
        session.receive([("b", hello("b", gone=("b>a",)))], 0.0)


def closing():
    """Return a session of four that has its result, and waits for the others' word."""
    session, _ = lonely(neighbors=("b", "c", "d"))

    def procedure(neighbors, offer):
        yield {}
        return SimpleNamespace(roster=SimpleNamespace(n_sites=4, diameter=2))

    session.course._make = procedure
    session.receive([(name, hello(name)) for name in "bcd"], 0.0)
    session.receive([(name, msgspec.msgpack.encode(["data", "r", name, (), 0, None])) for name in "bcd"], 0.0)
    assert session.phase == "closing"
    return session


def cut_off_when_closing():
    session = closing()
    with pytest.raises(DisconnectedError):
        session.receive([("b", hello("b", gone=("b>c", "b>d"), exchange=0))], 0.0)


def lost_when_closing():
    session = closing()
    session.receive([("b", hello("b", gone=("b>c",), exchange=0))], 0.0)
    assert (session.phase, session.exchange, session.result) == ("running", 0, None)


def unconfirmed_when_closing():
    session = closing()
    for name in "bcd":
        session.learn(name, 0.0, up=False)
    session.tick(100.0)
    assert session.phase == "finished"


def gone_when_closing():
    with pytest.raises(GoneError):
        closing().receive([("b", hello("b", gone=("a|b", "a|c", "a|d")))], 0.0)


def test_a_session_does_not_know_the_messages_of_the_application():
    known = {"AnyMessage", "MAX_BYTES", "Message", "check", "decode", "decoder_of", "encode"}
    for path in Path(sessions.__file__).parent.glob("*.py"):
        for statement in ast.walk(ast.parse(path.read_text())):
            if isinstance(statement, ast.ImportFrom):
                assert "protocols" not in (statement.module or ""), path
                if statement.module == "messages":
                    assert {name.name for name in statement.names} <= known, path


def test_a_refusal_is_named_however_short_the_patience_of_the_start_is():
    session, _ = lonely(neighbors=("b", "c"), start_patience=1.0)
    session.receive([("b", hello("b", terms={"alpha": "2"}))], 0.0)
    session.tick(2.0)
    with pytest.raises(AgreementError, match="alpha is 1"):
        session.tick(6.0)


def test_what_an_observer_gets_is_what_a_record_keeps():
    assert msgspec.json.decode(msgspec.json.encode(Refused(sender="b", reason="no"))) == {
        "event": "refused",
        "sender": "b",
        "reason": "no",
    }
