"""All sites in this process, in lockstep: the default network, and the reference for the others.

Every message is encoded and decoded. So the bytes counted are those that would travel, and a procedure cannot reach
into its neighbour's memory. An outbox with a message to a site that is not a neighbour is refused.

Between two exchanges sites do not depend on each other, so that they can compute in parallel. The result does not
depend on the number of threads. Exchanges in which a site says that it is `Quiet` cost it nothing.
"""

import contextlib
import math
import multiprocessing
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import cache
from typing import Any

from threadpoolctl import OpenBLASController, ThreadpoolController

from ..errors import MessageError
from ..messages import AnyMessage, decode, encode
from ..protocols.site import Inbox, Outbox, Passed, Procedure, Quiet, Result
from .base import Delivery, Neighbors, Observer, Traffic

_SLOW = 5e-4  # seconds; for steps that last longer, helper threads gain more than they cost
_GLANCES = 3e-4, 0.02  # seconds between two polls of the running step's duration: the first value, and the largest


class Step:
    """One step of a site's procedure: from an inbox to the next outbox, or to the result.

    The step takes the inbox out of `inboxes` and gives it up once it is read, so that of what a site does not keep of
    its messages nothing stays in memory while other sites compute.
    """

    def __init__(
        self, name: str, procedure: Procedure[Any], inboxes: MutableMapping[str, Any] | None, exchange: int
    ) -> None:
        self.name = name
        self.ended = False
        self.outbox: Outbox = {}
        self.result: Any = None
        self.error: BaseException | None = None
        self._procedure = procedure
        self._inbox = inboxes.pop(name) if inboxes is not None else None
        self._exchange = exchange

    def take(self) -> None:
        """Send the inbox to the procedure, and keep its outbox, its result or its error."""
        try:
            self.outbox = self._procedure.send(self._read())
        except StopIteration as stop:
            self.ended, self.result = True, stop.value
        except BaseException as error:
            error.add_note(f"at site {self.name!r}, after exchange {self._exchange}")
            self.error = error
            if isinstance(error, KeyboardInterrupt):
                raise

    def _read(self) -> Any:
        inbox, self._inbox = self._inbox, None
        return inbox


def _take(steps: deque[Step]) -> None:
    with contextlib.suppress(IndexError):
        while True:
            steps.popleft().take()


class _Crew:
    """Helper threads, which take steps beside the calling thread as soon as a step turns out to be slow.

    The calling thread wakes the helpers after a slow step. In addition, one helper polls the duration of the running
    step. Every poll takes Python's global lock from the thread that has it, so that the helper polls with exponential
    back-off while it is not needed. If a step is not yet slow but may become so, the helper polls again at the time at
    which it would be.
    """

    def __init__(self, n_helpers: int) -> None:
        self._left: deque[Step] = deque()
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

    def take_all(self, steps: list[Step]) -> None:
        """Take all steps, and return when the last one has ended."""
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
def sharing_out(n_threads: int, *, alone: bool) -> Iterator[Callable[[list[Step]], None]]:
    """Give a function that takes all steps of an exchange.

    BLAS has one thread meanwhile: its threads would compete with the helpers, and would change the last digits of the
    results. Only a site that is `alone` keeps all BLAS threads.
    """
    if alone:
        yield lambda steps: _take(deque(steps))
        return
    with one_blas_thread, _Crew(n_threads - 1) as crew:
        yield crew.take_all


class _OneBlasThread:
    """A limit of the whole process to one BLAS thread; any number of `with` blocks can hold it at the same time.

    The number of BLAS threads belongs to the process. If every block saved and restored it, the last of two overlapping
    blocks would restore the limit of the first. So the holders are counted: the first block to enter saves the number,
    and the last block to leave restores it. threadpoolctl lets only one thread control OpenBLAS, the first thread that
    sets a limit. The last block may leave in another thread than the first entered, so that each block gives this
    control back at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_holders = 0
        self._limiter: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._n_holders == 0:
                self._limiter = _controller().limit(limits=1, user_api="blas")
                OpenBLASController.clear_controlling_thread()
            self._n_holders += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._n_holders -= 1
            if self._n_holders == 0:
                self._limiter.restore_original_limits()
                OpenBLASController.clear_controlling_thread()


one_blas_thread = _OneBlasThread()


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def free_cores() -> int:
    """Return the number of cores for this process; a child process has one, because its siblings use the others."""
    if multiprocessing.parent_process() is not None:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


__all__ = ["LocalNetwork"]


class LocalNetwork:
    """Runs one procedure per site, exchange by exchange.

    Parameters
    ----------
    neighbors : mapping of site to its neighbours
        The graph; for instance a networkx graph.
    n_threads : int, optional
        The number of sites that may compute at the same time; by default the number of cores.
    observers : iterable of callables, optional
        Each is called with every `Delivery`, in the order in which messages are carried.

    Examples
    --------
    >>> from dekrr.networks.local import LocalNetwork
    >>> import numpy as np
    >>> from dekrr.protocols.roll_call import roll_call
    >>> from dekrr.protocols.site import Site
    >>> from dekrr.tables.rows import ArrayRows
    >>> rows = ArrayRows(np.zeros((3, 1)), np.zeros(3))
    >>> network = LocalNetwork({"a": ["b"], "b": ["a", "c"], "c": ["b"]})
    >>> sites = [Site(name, tuple(network.neighbors[name]), rows) for name in "abc"]
    >>> rosters = network.run({site.name: roll_call(site) for site in sites})
    >>> rosters["a"].n_rows, rosters["c"].diameter
    (9, 2)
    """

    def __init__(
        self, neighbors: Neighbors, n_threads: int | None = None, *, observers: Iterable[Observer] = ()
    ) -> None:
        self.neighbors = {site: frozenset(neighbors[site]) for site in neighbors}
        self.traffic = Traffic()
        self._observers = tuple(observers)
        self._n_threads = max(1, min(len(self.neighbors), n_threads or free_cores()))

    def run(self, procedures: Mapping[str, Procedure[Result]]) -> dict[str, Result]:
        """Drive all procedures to their end, and return the result of each site."""
        results: dict[str, Result] = {}
        inboxes: dict[str, Inbox] | None = None
        exchange = 0
        quiet: dict[str, tuple[int, int]] = {}  # the exchanges since and until which a site is not resumed
        with contextlib.ExitStack() as stack:
            for procedure in procedures.values():
                stack.callback(procedure.close)
            advance = stack.enter_context(sharing_out(self._n_threads, alone=len(procedures) == 1))
            while len(results) < len(procedures):
                steps = [Step(name, procedures[name], inboxes, exchange) for name in procedures if name not in quiet]
                advance(steps)
                outboxes: dict[str, Outbox] = {}
                for step in steps:
                    if step.error is not None:  # the first in the order of sites, not in the order of time
                        raise step.error
                    if step.ended:
                        results[step.name] = step.result
                        continue
                    outboxes[step.name] = step.outbox
                    if isinstance(step.outbox, Quiet) and step.outbox.exchanges > 1:
                        quiet[step.name] = exchange, exchange + step.outbox.exchanges
                del steps, step
                going_on = outboxes.keys() | quiet.keys()
                if results and going_on:
                    raise MessageError(
                        f"sites {sorted(results)} ended after {exchange} exchanges while {sorted(going_on)} go on"
                    )
                arrived = self._carry(exchange, outboxes)
                exchange += 1
                if len(quiet) == len(procedures):
                    exchange = max(exchange, min(until for _, until in quiet.values()))
                inboxes = _of_resumed(arrived, quiet, exchange)
                del arrived
        return results

    def _carry(self, exchange: int, outboxes: dict[str, Outbox]) -> dict[str, dict[str, AnyMessage]]:
        """Return the inboxes. The outboxes are emptied one by one, so that each message is in memory only once."""
        inboxes: dict[str, dict[str, AnyMessage]] = {name: {} for name in outboxes}
        for sender in list(outboxes):
            outbox = outboxes.pop(sender)
            if not self.neighbors[sender].issuperset(outbox):
                self._refuse(sender, outbox)
            carried: dict[int, tuple[str, int, AnyMessage]] = {}  # a message to several neighbours is decoded once
            for receiver, message in outbox.items():
                known = carried.get(id(message))
                if known is None:
                    data = encode(message)
                    known = carried[id(message)] = type(message).__name__, len(data), decode(data, sender)
                kind, size, arrived = known
                self.traffic.count(sender, receiver, kind, size)
                for observer in self._observers:
                    observer(Delivery(exchange, sender, receiver, arrived, size))
                inboxes.setdefault(receiver, {})[sender] = arrived
        return inboxes

    def _refuse(self, sender: str, outbox: Outbox) -> None:
        receiver, message = next((to, what) for to, what in outbox.items() if to not in self.neighbors[sender])
        raise MessageError(
            f"site {sender!r} wants to send {type(message).__name__} to {receiver!r}, which is not its neighbour; "
            f"its neighbours are {sorted(self.neighbors[sender])}"
        )


def _of_resumed(
    arrived: dict[str, dict[str, AnyMessage]], quiet: dict[str, tuple[int, int]], exchange: int
) -> dict[str, Inbox]:
    """Return the inboxes of the sites that are resumed, and take those that were quiet until now out of `quiet`."""
    inboxes: dict[str, Inbox] = dict(arrived)
    for name, (since, until) in list(quiet.items()):
        messages = inboxes.pop(name, {})
        if messages or until <= exchange:
            del quiet[name]
            inboxes[name] = Passed(messages, exchange - since)
    return inboxes
