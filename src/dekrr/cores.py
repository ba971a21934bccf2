"""The cores of a process, and how sites that are threads of it share them.

Only one thread runs Python at a time. Threads that pass that right to and fro between small array operations lose more
by waking each other than they gain, so that they take turns: a thread that has the turn keeps it for all of its site's
step, but for long computations, for which it lets others in. Whoever waits longer than a millisecond goes on
without it, since what takes so long does not run Python all the time.
"""

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Iterator

_PATIENCE = 1e-3  # seconds
_mine = threading.local()


def free_cores() -> int:
    """Return the cores of this process; one in a child process, whose siblings have the others."""
    if multiprocessing.parent_process() is not None:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def turn(lock: threading.Lock) -> Iterator[None]:
    """Take the turn that `lock` stands for, if it comes soon, and leave it at the end."""
    _mine.turn, _mine.has_it = lock, lock.acquire(timeout=_PATIENCE)
    try:
        yield
    finally:
        if _mine.has_it:
            lock.release()
        _mine.turn = None


@contextlib.contextmanager
def letting_others_in() -> Iterator[None]:
    """Leave the turn, if this thread has one, for the time of a long computation."""
    lock: threading.Lock | None = getattr(_mine, "turn", None)
    if lock is None:
        yield
        return
    if _mine.has_it:
        lock.release()
    try:
        yield
    finally:
        _mine.has_it = lock.acquire(timeout=_PATIENCE)
