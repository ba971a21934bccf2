import sys
import threading
import time

import numpy as np
import pytest

from dekrr.errors import MessageError
from dekrr.messages import Total, encode
from dekrr.networks.local import LocalNetwork

PATH = {"a": ["b"], "b": ["a", "c"], "c": ["b"]}
MESSAGE = Total(np.arange(3.0))


def say(outbox, exchanges=1):
    inbox = {}
    for _ in range(exchanges):
        inbox = yield outbox
    return inbox


def test_messages_reach_neighbours_and_are_counted():
    network = LocalNetwork(PATH)
    inboxes = network.run({"a": say({"b": MESSAGE}), "b": say({"a": MESSAGE, "c": MESSAGE}), "c": say({})})
    assert set(inboxes["b"]) == {"a"}
    assert set(inboxes["c"]) == {"b"}
    np.testing.assert_array_equal(inboxes["c"]["b"].values, MESSAGE.values)
    size = len(encode(MESSAGE))
    assert network.traffic.bytes == {("a", "b"): size, ("b", "a"): size, ("b", "c"): size}
    assert network.traffic.total_bytes == 3 * size
    assert network.traffic.sent_by("b") == 2 * size
    assert network.traffic.messages_by_kind == {"Total": 3}


def test_received_arrays_are_copies():
    network = LocalNetwork(PATH)
    inbox = network.run({"a": say({"b": MESSAGE}), "b": say({}), "c": say({})})["b"]
    assert not np.shares_memory(inbox["a"].values, MESSAGE.values)
    assert not inbox["a"].values.flags.writeable


def test_message_to_a_stranger_is_refused():
    with pytest.raises(MessageError, match=r"'a' wants to send Total to 'c', which is not its neighbour.*'b'"):
        LocalNetwork(PATH).run({"a": say({"c": MESSAGE}), "b": say({}), "c": say({})})


def test_sites_must_end_together():
    with pytest.raises(MessageError, match=r"\['a', 'b'\] ended after 1 exchanges while \['c'\] go on"):
        LocalNetwork(PATH).run({"a": say({}), "b": say({}), "c": say({}, exchanges=2)})


def test_an_error_says_at_which_site():
    def fail():
        yield {}
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as caught:
        LocalNetwork(PATH).run({"a": say({}), "b": fail(), "c": say({})})
    assert caught.value.__notes__ == ["at site 'b', after exchange 1"]


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
