import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import OpenBLASController, threadpool_info, threadpool_limits

from dekrr.errors import MessageError
from dekrr.messages import Total, encode
from dekrr.networks.local import LocalNetwork
from dekrr.protocols.site import Quiet, passed

PATH = {"a": ["b"], "b": ["a", "c"], "c": ["b"]}
MESSAGE = Total(np.arange(3.0))


def say(outbox, exchanges=1):
    inbox = {}
    for _ in range(exchanges):
        inbox = yield outbox
    return inbox


def test_observers_are_told_of_every_message_in_order():
    told, counted = [], []
    network = LocalNetwork(PATH, observers=[told.append, lambda delivery: counted.append(delivery.n_bytes)])
    inboxes = network.run({"a": say({"b": MESSAGE}, 2), "b": say({"a": MESSAGE, "c": MESSAGE}, 2), "c": say({}, 2)})
    edges = [("a", "b"), ("b", "a"), ("b", "c")]
    assert [tuple(delivery[:3]) for delivery in told] == [(exchange, *edge) for exchange in (0, 1) for edge in edges]
    assert told[-1].message is inboxes["c"]["b"]
    assert counted == [len(encode(MESSAGE))] * 6


def resumed(*outboxes):
    """Yield outboxes one after another; return how many exchanges each inbox is after, and whom it is from."""
    found = []
    for outbox in outboxes:
        inbox = yield outbox
        found.append((passed(inbox), sorted(inbox)))
    return found


def test_a_quiet_site_is_resumed_when_its_exchanges_have_passed_or_a_message_arrives():
    told = []
    procedures = {
        "a": resumed(Quiet(4), {}),
        "b": resumed(Quiet(2), {"c": MESSAGE}, Quiet(2)),
        "c": resumed(Quiet(5)),  # which a message cuts short
    }

    def longer(procedure):
        found = yield from procedure
        return found, (yield from resumed(Quiet(2)))

    procedures["c"] = longer(procedures["c"])
    found = LocalNetwork(PATH, observers=[told.append]).run(procedures)
    assert found["a"] == [(4, []), (1, [])]
    assert found["b"] == [(2, []), (1, []), (2, [])]
    assert found["c"] == ([(3, ["b"])], [(2, [])])
    assert [delivery[:3] for delivery in told] == [(2, "b", "c")]


def test_a_site_that_ends_while_others_are_quiet_is_named():
    with pytest.raises(MessageError, match=r"sites \['a'\] ended after 1 exchanges while \['b', 'c'\] go on"):
        LocalNetwork(PATH).run({"a": say({}), "b": resumed(Quiet(3)), "c": resumed(Quiet(2), {})})


def test_an_observer_is_not_told_of_what_is_refused():
    told = []
    with pytest.raises(MessageError, match="not its neighbour"):
        LocalNetwork(PATH, observers=[told.append]).run({"a": say({"c": MESSAGE}), "b": say({}), "c": say({})})
    assert told == []


def blas_threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture
def two_blas_threads():
    """Set BLAS to two threads, in a way that lets any thread change it."""
    limiter = threadpool_limits(2, "blas")
    OpenBLASController.clear_controlling_thread()
    assert blas_threads() == {2}
    yield
    limiter.restore_original_limits()
    OpenBLASController.clear_controlling_thread()


@pytest.mark.usefixtures("two_blas_threads")
@pytest.mark.parametrize("first_to_end", ["one", "other"])
def test_runs_that_overlap_leave_blas_threads_as_they_were(first_to_end):
    """One run begins, then another; they end in either order, and their threads live on."""
    begun = {name: threading.Event() for name in ("one", "other")}
    may_end = {name: threading.Event() for name in begun}

    def wait(name):
        yield {}
        begun[name].set()
        assert may_end[name].wait(30)
        return blas_threads()

    def run(name):
        return LocalNetwork({"a": ["b"], "b": ["a"]}, n_threads=1).run({"a": wait(name), "b": say({})})

    with ThreadPoolExecutor(2) as pool:
        runs = {}
        for name in begun:
            runs[name] = pool.submit(run, name)
            assert begun[name].wait(30)
        for name in sorted(runs, key=lambda name: name != first_to_end):
            may_end[name].set()
            assert runs[name].result(30)["a"] == {1}
        assert blas_threads() == {2}


@pytest.mark.usefixtures("two_blas_threads")
def test_a_run_that_fails_gives_blas_threads_back():
    def fail():
        assert blas_threads() == {1}
        yield {}
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        LocalNetwork(PATH).run({name: fail() for name in PATH})
    assert blas_threads() == {2}


@pytest.fixture
def hasty_threads(monkeypatch):
    """Let helpers look as often as they can, and threads take turns as often as they can."""
    monkeypatch.setattr("dekrr.networks.local._SLOW", 0.0)
    monkeypatch.setattr("dekrr.networks.local._GLANCES", (1e-6, 1e-6))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_threads")
@pytest.mark.parametrize("pause", [0.0, 0.002])
def test_every_step_is_taken_once_whenever_helpers_look(pause):
    names = [f"site {i}" for i in range(12)]
    neighbors = {name: [names[i - 1], names[(i + 1) % 12]] for i, name in enumerate(names)}

    def add_up(name, exchanges):
        total = 0.0
        for number in range(exchanges):
            inbox = yield {p: Total(np.array([float(number)])) for p in neighbors[name]}
            total += sum(message.values[0] for message in inbox.values())
            if number % 20 == 19:
                time.sleep(pause)
        return total

    network = LocalNetwork(neighbors, n_threads=3)
    assert network.run({name: add_up(name, 200) for name in names}) == dict.fromkeys(names, 2.0 * sum(range(200)))


def test_whatever_ends_a_step_in_a_helper_ends_the_run():
    def leave(name):
        yield {}
        time.sleep(0.01)
        raise SystemExit(name)

    with pytest.raises(SystemExit, match="a"):
        LocalNetwork(PATH, n_threads=3).run({name: leave(name) for name in PATH})


def test_no_thread_is_left_over_when_one_cannot_start(monkeypatch):
    before, start = threading.active_count(), threading.Thread.start
    started = []

    def start_one(thread):
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(RuntimeError, match="can't start"):
        LocalNetwork(PATH, n_threads=3).run({name: say({}) for name in PATH})
    assert threading.active_count() == before


def test_helpers_come_when_the_first_site_is_quick_and_others_are_not():
    threads = set()

    def work(name):
        for _ in range(3):
            yield {}
            if name != "a":
                threads.add(threading.current_thread())
                time.sleep(0.01)

    path = {"a": ["b"], "b": "ac", "c": "bd", "d": "ce", "e": "df", "f": "e"}
    LocalNetwork(path, n_threads=2).run({name: work(name) for name in path})
    assert len(threads) == 2


def test_threads_end_with_a_run_that_fails():
    def fail(name):
        yield {}
        raise ValueError(name)

    before = threading.active_count()
    with pytest.raises(ValueError, match="a"):
        LocalNetwork(PATH, n_threads=3).run({name: fail(name) for name in PATH})
    assert threading.active_count() == before
