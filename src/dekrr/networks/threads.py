"""The sites of one process share its cores: helper threads, with one BLAS thread each.

Sites do not depend on each other between two exchanges, so that threads can execute their steps in parallel. The result
does not depend on the number of threads.
"""

import contextlib
import math
import multiprocessing
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from functools import cache
from typing import Any

from threadpoolctl import OpenBLASController, ThreadpoolController

from ..protocols.site import Outbox, Procedure

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
