"""What `dekrr.networks.base` promises, of every network. A new network is one line in `NETWORKS`.

mpiexec -n 4 python -m pytest tests/test_conformance.py -k mpi     # the same with several ranks
"""

import contextlib
import threading
import time
from functools import partial

import numpy as np
import pytest

from conftest import make_problem
from dekrr.errors import DekrrError, MessageError
from dekrr.mesh.session import Plan, Session
from dekrr.messages import Total, decode, encode
from dekrr.networks.base import Traffic
from dekrr.networks.local import LocalNetwork
from dekrr.protocols import dekrr
from dekrr.selection import Greedy, Plain
from dekrr.settings import DeKRRSettings
from faulty import Faults, FaultyNetwork
from meshes import free_ports

PATH = {"a": ["b"], "b": ["a", "c"], "c": ["b", "d"], "d": ["c"]}
MESSAGE = Total(np.arange(3.0))


class Postman:
    """A made-up network with nothing but what `dekrr.networks.base.Network` asks for: no threads, no observers."""

    def __init__(self, neighbors):
        self.neighbors, self.traffic = neighbors, Traffic()

    def run(self, procedures):
        inboxes, results, exchange = dict.fromkeys(procedures), {}, 0
        try:
            while True:
                outboxes = {}
                for name, procedure in procedures.items():
                    try:
                        outboxes[name] = procedure.send(inboxes[name])
                    except StopIteration as stop:
                        results[name] = stop.value
                    except Exception as error:
                        error.add_note(f"at site {name!r}, after exchange {exchange}")
                        raise
                if not outboxes:
                    return results
                if results:
                    raise MessageError(
                        f"{sorted(results)} ended after {exchange} exchanges while {sorted(outboxes)} go on"
                    )
                inboxes = self.deliver(outboxes)
                exchange += 1
        finally:
            for procedure in procedures.values():
                procedure.close()

    def deliver(self, outboxes):
        inboxes = {name: {} for name in outboxes}
        for sender, outbox in outboxes.items():
            for receiver, message in outbox.items():
                kind, data = type(message).__name__, encode(message)
                if receiver not in self.neighbors[sender]:
                    known = sorted(self.neighbors[sender])
                    raise MessageError(
                        f"{sender!r} wants to send {kind} to {receiver!r}, which is not its neighbour, as {known} are"
                    )
                self.traffic.count(sender, receiver, kind, len(data))
                inboxes[receiver][sender] = decode(data, sender)
        return inboxes


class Reader:
    """Knows nothing about the messages of a session."""

    def check(self, message, sender, exchange, sites):
        pass

    def is_exact(self, message):
        return False

    is_choice = is_exact

    def residual(self, message):
        return None

    def absent(self, result, sites):
        return ""

    def diameter(self, result):
        return 3


class Sessions:
    """Sites as the sessions of a deployment; a subclass carries their frames."""

    def __init__(self, neighbors):
        self.neighbors, self.traffic, self.runs = neighbors, Traffic(), 0

    def run(self, procedures):
        self.runs += 1
        try:
            return self.drive({name: partial(self.session, name, made) for name, made in procedures.items()})
        finally:
            for procedure in procedures.values():
                procedure.close()

    def session(self, name, procedure, *options):
        plan = Plan(
            run=f"run {self.runs}",
            name=name,
            neighbors=tuple(sorted(self.neighbors[name])),
            sites=frozenset(self.neighbors),
            terms={},
            digest=name,
            patience=1.0,
        )
        made = iter([procedure])  # once; where a site has failed, the others begin again without it
        session = Session(plan, lambda neighbors, offer: next(made, say({})), Reader(), *options)
        session.course.progress.traffic = self.traffic
        return session


class Faulty(Sessions):
    """Under a schedule of faults that sessions cope with: frames are lost, doubled and late."""

    def drive(self, opening):
        faults = Faults(drop=0.1, double=0.1, delay=0.05)
        network = FaultyNetwork(self.neighbors, lambda name, *options: opening[name](*options), faults, self.runs)
        endings = network.run()
        assert not network.hung
        for name, ending in endings.items():
            if ending.error is not None:
                ending.error.add_note(f"at site {name!r}")
                raise ending.error
        return {name: ending.outcome for name, ending in endings.items()}


class OnLoopback(Sessions):
    """Over Zenoh, on loopback; each site has a thread."""

    def drive(self, opening):
        carrier, mesh = pytest.importorskip("dekrr.mesh.carrier"), pytest.importorskip("dekrr.mesh.driving")
        addresses = pytest.importorskip("dekrr.mesh.addresses")
        ports = dict(zip(opening, free_ports(len(opening)), strict=True))
        results, errors = {}, {}

        def run(name):
            around = {p: f"127.0.0.1:{ports[p]}" for p in self.neighbors[name]}
            try:
                link = addresses.Link(name, f"127.0.0.1:{ports[name]}", around, None)
                with contextlib.closing(carrier.Carrier(addresses.Ways(link))) as links:
                    results[name] = mesh.MeshNetwork(links).run(opening[name]())
            except Exception as error:
                error.add_note(f"at site {name!r}")
                errors[name] = error

        threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in opening]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a site hangs"
        for error in errors.values():
            raise error
        return results


def over_ranks(neighbors):
    """Sites on the ranks of this program: one, or as many as mpiexec has started."""
    return pytest.importorskip("dekrr.networks.mpi").MPINetwork(patience=60)(neighbors)


NETWORKS = {
    "local": LocalNetwork,
    "threads": partial(LocalNetwork, n_threads=3),
    "made-up": Postman,
    "faulty": Faulty,
    "mesh": OnLoopback,
    "mpi": over_ranks,
}
SESSIONS = ("faulty", "mesh")  # a site that fails or ends early has no part in others' runs: tests/test_session.py
every_network = pytest.mark.parametrize("name", NETWORKS)
every_lockstep = pytest.mark.parametrize("name", [name for name in NETWORKS if name not in SESSIONS])


def say(outbox, exchanges=1):
    inbox = {}
    for _ in range(exchanges):
        inbox = yield outbox
    return inbox


def silence(**others):
    return {name: say({}) for name in PATH} | others


def sent_by(results, traffic):
    """Return the expected traffic of the sites whose results are here."""
    return {edge: size for edge, size in traffic.items() if edge[0] in results}


@every_network
def test_messages_reach_neighbours_and_nobody_else_and_are_counted(name):
    network = NETWORKS[name](PATH)
    results = network.run(silence(a=say({"b": MESSAGE}), b=say({"a": MESSAGE, "c": MESSAGE})))
    assert results
    for site, inbox in results.items():
        assert set(inbox) == {"a": {"b"}, "b": {"a"}, "c": {"b"}, "d": set()}[site]
        for message in inbox.values():
            np.testing.assert_array_equal(message.values, MESSAGE.values)
    size = len(encode(MESSAGE))
    expected = sent_by(results, {("a", "b"): size, ("b", "a"): size, ("b", "c"): size})
    assert network.traffic.bytes == expected
    assert network.traffic.total_bytes == sum(expected.values())
    assert network.traffic.messages_by_kind == ({"Total": len(expected)} if expected else {})


@every_network
def test_inboxes_are_in_the_order_of_sites_and_of_this_exchange(name):
    names = [f"s{i}" for i in range(5)]
    complete = {name: [p for p in names if p != name] for name in names}

    def check(own):
        for exchange in range(8):
            if exchange % 3 == 0:
                time.sleep(0.002 * (5 - names.index(own)))  # the last site is the first to send
            inbox = yield {p: Total(np.array([exchange, names.index(own)], float)) for p in reversed(complete[own])}
            assert list(inbox) == complete[own]
            assert [tuple(inbox[p].values) for p in inbox] == [(exchange, names.index(p)) for p in inbox]
        return own

    results = NETWORKS[name](complete).run({own: check(own) for own in names})
    assert results == {own: own for own in results}


@every_network
@pytest.mark.parametrize("size", [3, 5000])
def test_nobody_can_change_what_has_been_sent(name, size):
    def change(values):
        yield {"b": Total(values)}
        try:
            values[:] = 7.0  # the message has been delivered
        except ValueError:
            assert not values.flags.writeable
        yield {}
        return "done"

    def keep():
        inbox = yield {}
        yield {}
        return inbox

    silent = {"c": say({}, 2), "d": say({}, 2)}
    results = NETWORKS[name](PATH).run({"a": change(np.ones(size)), "b": keep(), **silent})
    if "b" in results:
        received = results["b"]["a"].values
        assert (received == 1).all()
        assert not received.flags.writeable


@every_network
def test_a_message_to_a_stranger_is_refused(name):
    with pytest.raises(MessageError, match=r"'a'.*'c'"):
        NETWORKS[name](PATH).run(silence(a=say({"c": MESSAGE})))


@every_lockstep
def test_sites_must_end_together(name):
    with pytest.raises(MessageError, match=r"\['a', 'b', 'd'\] ended after 1 exchanges while \['c'\] go on"):
        NETWORKS[name](PATH).run(silence(c=say({}, exchanges=2)))


@every_lockstep
def test_what_no_site_may_send_is_refused(name):
    with pytest.raises(MessageError, match="'a' sent something that is not a message: an array has NaN"):
        NETWORKS[name](PATH).run(silence(a=say({"b": Total(np.array([np.nan]))})))


@every_network
def test_an_error_says_at_which_site_and_ends_all(name):
    closed = set()

    def fail():
        yield {}
        raise ValueError("broken")

    def go_on(own):
        try:
            for _ in range(1 if name in SESSIONS else 50):
                yield {}
        finally:
            closed.add(own)
        return "done"

    with pytest.raises((ValueError, DekrrError), match="broken") as caught:
        NETWORKS[name](PATH).run({"a": go_on("a"), "b": fail(), "c": go_on("c"), "d": go_on("d")})
    if name != "faulty":  # a simulation raises where it is
        assert "at site 'b'" in caught.value.__notes__[0]
    assert closed <= {"a", "c", "d"}
    if name not in (*SESSIONS, "mpi"):
        assert closed == {"a", "c", "d"}


@every_network
def test_a_network_runs_several_times_and_also_after_an_error(name):
    network = NETWORKS[name](PATH)
    with pytest.raises(MessageError):
        network.run(silence(a=say({"c": MESSAGE})))
    assert network.traffic.total_bytes == 0
    for count in (1, 2):
        results = network.run(silence(a=say({"b": MESSAGE})))
        assert network.traffic.bytes == sent_by(results, {("a", "b"): count * len(encode(MESSAGE))})


@every_network
@pytest.mark.parametrize("chooser", [Plain(12, sigma=0.5), Greedy(60, sigma=0.5)], ids=["plain", "greedy"])
def test_models_are_those_of_the_local_network_to_the_last_bit(name, chooser):
    problem = make_problem(0)
    settings = DeKRRSettings(
        lone_neighbor="warn",
        scale=None,
        min_rows=1,
        rows_per_feature=0,
        max_leverage=1,
        verify_features=False,
        max_rounds=30,
    )

    def trained(connect):
        network = connect(problem.graph)
        results = network.run({n: dekrr.train(site, chooser, settings) for n, site in problem.sites.items()})
        return results, network.traffic

    expected, expected_traffic = trained(LocalNetwork)
    outcomes, traffic = trained(NETWORKS[name])
    assert outcomes
    for site, outcome in outcomes.items():
        np.testing.assert_array_equal(outcome.coefficients, expected[site].coefficients)
    assert traffic.bytes == sent_by(outcomes, expected_traffic.bytes)
