"""All sites in this process, in lockstep: the default network, and the one that checks the others' honesty.

Every message is really encoded and decoded, so that its bytes are those that would travel and a procedure
cannot reach into its neighbour's memory. An outbox addressed to anybody but a neighbour is refused.

Between two exchanges sites do not depend on each other, so that they share out the processor's cores; the result is
the same whatever their number.
"""

import contextlib
import math
import multiprocessing
import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

from ..errors import MessageError
from ..messages import AnyMessage, decode, encode
from ..protocols.site import Outbox, Procedure, Result

Edge = tuple[Any, Any]
_SLOW = 5e-4  # seconds of one site's step, from which threads gain more than they cost
_GLANCES = 3e-4, 0.02  # seconds between two looks at how long a step takes: at first, and at most


class Traffic:
    """What went over each directed edge: encoded messages, without a network's framing.

    Examples
    --------
    >>> traffic = Traffic()
    >>> traffic.count("a", "b", "Sums", 100)
    >>> traffic.count("a", "b", "Coefficients", 10)
    >>> traffic.bytes
    Counter({('a', 'b'): 110})
    >>> traffic.messages_by_kind
    Counter({'Sums': 1, 'Coefficients': 1})
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[Any, Any, str], list[int]] = {}  # messages and bytes

    def count(self, sender: Any, receiver: Any, kind: str, size: int) -> None:
        """Add one message of `size` bytes."""
        key = sender, receiver, kind
        counted = self._counts.get(key)
        if counted is None:
            counted = self._counts[key] = [0, 0]
        counted[0] += 1
        counted[1] += size

    @property
    def bytes(self) -> Counter[Edge]:
        """Bytes by (sender, receiver)."""
        return self._total(by=slice(2), what=1)

    @property
    def messages(self) -> Counter[Edge]:
        """Messages by (sender, receiver)."""
        return self._total(by=slice(2), what=0)

    @property
    def bytes_by_kind(self) -> Counter[str]:
        """Bytes by kind of message."""
        return self._total(by=2, what=1)

    @property
    def messages_by_kind(self) -> Counter[str]:
        """Messages by their kind."""
        return self._total(by=2, what=0)

    def __repr__(self) -> str:
        return f"Traffic({self.messages.total()} messages, {self.total_bytes} bytes, {len(self.bytes)} directed edges)"

    def _items(self) -> list[tuple[tuple[Any, Any, str], list[int]]]:
        return list(self._counts.items())  # a copy, as another thread may be adding to it

    def _total(self, by: slice | int, what: int) -> Counter[Any]:
        total: Counter[Any] = Counter()
        for key, counted in self._items():
            total[key[by]] += counted[what]
        return total

    @property
    def total_bytes(self) -> int:
        """Bytes over all edges."""
        return sum(size for _, (_, size) in self._items())

    def relabelled(self, labels: Mapping[str, Any]) -> "Traffic":
        """Return the same with each site's name replaced by its label."""
        traffic = Traffic()
        traffic._counts = {(labels[a], labels[b], kind): [*counted] for (a, b, kind), counted in self._items()}
        return traffic

    def sent_by(self, site: Any) -> int:
        """Bytes that one site sent."""
        return sum(size for (sender, _, _), (_, size) in self._items() if sender == site)


class LocalNetwork:
    """Runs one procedure per site, exchange by exchange.

    Parameters
    ----------
    neighbors : mapping of site to its neighbours
        The graph; for instance a networkx graph.
    n_threads : int, optional
        How many sites may compute at the same time; one a core by default.

    Examples
    --------
    >>> import numpy as np
    >>> from dekrr.protocols.consensus import roll_call
    >>> from dekrr.protocols.site import Site
    >>> from dekrr.rows import ArrayRows
    >>> rows = ArrayRows(np.zeros((3, 1)), np.zeros(3))
    >>> network = LocalNetwork({"a": ["b"], "b": ["a", "c"], "c": ["b"]})
    >>> sites = [Site(name, tuple(network.neighbors[name]), rows) for name in "abc"]
    >>> rosters = network.run({site.name: roll_call(site) for site in sites})
    >>> rosters["a"].n_rows, rosters["c"].diameter
    (9, 2)
    """

    def __init__(self, neighbors: Mapping[str, Any], n_threads: int | None = None) -> None:
        self.neighbors = {site: frozenset(neighbors[site]) for site in neighbors}
        self.traffic = Traffic()
        self._n_threads = max(1, min(len(self.neighbors), n_threads or free_cores()))

    def run(self, procedures: Mapping[str, Procedure[Result]]) -> dict[str, Result]:
        """Drive all procedures to their end and return what each returned."""
        results: dict[str, Result] = {}
        inboxes: dict[str, dict[str, AnyMessage]] | None = None
        exchange = 0
        with contextlib.ExitStack() as stack:
            for procedure in procedures.values():
                stack.callback(procedure.close)
            advance = stack.enter_context(_sharing_out(self._n_threads, alone=len(procedures) == 1))
            while len(results) < len(procedures):
                steps = [_Step(name, procedures[name], inboxes, exchange) for name in procedures]
                advance(steps)
                outboxes: dict[str, Outbox] = {}
                for step in steps:
                    if step.error is not None:  # the first site's, whichever thread was faster
                        raise step.error
                    if step.ended:
                        results[step.name] = step.result
                    else:
                        outboxes[step.name] = step.outbox
                del steps, step
                if results and outboxes:
                    raise MessageError(
                        f"sites {sorted(results)} ended after {exchange} exchanges while {sorted(outboxes)} go on"
                    )
                inboxes = self._carry(outboxes)
                exchange += 1
        return results

    def _carry(self, outboxes: dict[str, Outbox]) -> dict[str, dict[str, AnyMessage]]:
        """Return what arrives, and empty the outboxes one by one, so that messages are in memory once."""
        inboxes: dict[str, dict[str, AnyMessage]] = {name: {} for name in outboxes}
        for sender in list(outboxes):
            outbox = outboxes.pop(sender)
            if not self.neighbors[sender].issuperset(outbox):
                self._refuse(sender, outbox)
            carried: dict[int, tuple[str, int, AnyMessage]] = {}  # what is the same for all is decoded once
            for receiver, message in outbox.items():
                known = carried.get(id(message))
                if known is None:
                    data = encode(message)
                    known = carried[id(message)] = type(message).__name__, len(data), decode(data, sender)
                kind, size, arrived = known
                self.traffic.count(sender, receiver, kind, size)
                inboxes[receiver][sender] = arrived
        return inboxes

    def _refuse(self, sender: str, outbox: Outbox) -> None:
        receiver, message = next((to, what) for to, what in outbox.items() if to not in self.neighbors[sender])
        raise MessageError(
            f"site {sender!r} wants to send {type(message).__name__} to {receiver!r}, which is not its neighbour; "
            f"its neighbours are {sorted(self.neighbors[sender])}"
        )


class _Step:
    """One site's way from an inbox to its next outbox, or to its result."""

    def __init__(self, name: str, procedure: Procedure[Any], inboxes: Mapping[str, Any] | None, exchange: int) -> None:
        self.name = name
        self.ended = False
        self.outbox: Outbox = {}
        self.result: Any = None
        self.error: BaseException | None = None
        self._procedure = procedure
        self._inbox = inboxes[name] if inboxes is not None else None
        self._exchange = exchange

    def take(self) -> None:
        try:
            self.outbox = next(self._procedure) if self._inbox is None else self._procedure.send(self._inbox)
        except StopIteration as stop:
            self.ended, self.result = True, stop.value
        except BaseException as error:
            error.add_note(f"at site {self.name!r}, after exchange {self._exchange}")
            self.error = error
            if isinstance(error, KeyboardInterrupt):
                raise


def _take(steps: deque[_Step]) -> None:
    with contextlib.suppress(IndexError):
        while True:
            steps.popleft().take()


class _Crew:
    """Threads that take steps beside the one that asks for it, once a step lasts.

    They are called after a step that has lasted; and one of them looks meanwhile, the less often the longer it has
    not been needed, since every look takes the lock of Python from whoever has it. Where it finds a step that might
    last it comes back when it would have.
    """

    def __init__(self, n_helpers: int) -> None:
        self._left: deque[_Step] = deque()
        self._since = math.inf
        self._called = self._over = False
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._busy = [threading.Lock() for _ in range(n_helpers)]
        self._helpers = [
            threading.Thread(target=self._help, args=(busy, busy is self._busy[0]), daemon=True) for busy in self._busy
        ]

    def __enter__(self) -> "_Crew":
        try:
            for helper in self._helpers:
                helper.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._over = True
        self._left.clear()
        self._call()
        for helper in self._helpers:
            if helper.ident is not None:
                helper.join()

    def take_all(self, steps: list[_Step]) -> None:
        """Take all steps and return when the last is taken."""
        self._left = left = deque(steps)
        self._called = False
        with contextlib.suppress(IndexError):
            while True:
                step = left.popleft()
                self._since = time.perf_counter()
                step.take()
                self._call_where_slow()
        self._since = math.inf
        for busy in self._busy:
            with busy:
                pass

    def _call_where_slow(self) -> None:
        if not self._called and time.perf_counter() - self._since >= _SLOW:
            self._called = True
            self._call()

    def _call(self) -> None:
        for _ in self._helpers:
            self._calls.put(None)

    def _help(self, busy: threading.Lock, looks: bool) -> None:
        shortest, longest = _GLANCES
        pause = until_look = shortest
        while not self._over:
            try:
                self._calls.get(timeout=until_look if looks else None)
            except queue.Empty:
                self._call_where_slow()
                lasted = time.perf_counter() - self._since
                pause = min(2 * pause, longest)
                until_look = min(pause, _SLOW - lasted) if _SLOW / 10 < lasted < _SLOW else pause
                continue
            pause = until_look = shortest
            with busy:
                _take(self._left)


@contextlib.contextmanager
def _sharing_out(n_threads: int, *, alone: bool) -> Iterator[Callable[[list[_Step]], None]]:
    """Give a function that takes all steps.

    Threads of other libraries would fight ours, and results differ in their last digits: a site that is alone has them.
    """
    if alone:
        yield lambda steps: _take(deque(steps))
        return
    with _controller().limit(limits=1, user_api="blas"), _Crew(n_threads - 1) as crew:
        yield crew.take_all


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def free_cores() -> int:
    """Return the cores of this process; one in a child process, whose siblings have the others."""
    if multiprocessing.parent_process() is not None:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
