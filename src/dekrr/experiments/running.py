"""Fits in parallel; the result of each is saved as soon as it is done."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed
from joblib.parallel import get_active_backend

from ..disk import lock
from ..errors import SettingsError
from .fits import run
from .ranks import hand_out
from .results import Results
from .tasks import Task

_Done = tuple[Task, dict[str, Any], float]


def execute(
    tasks: Sequence[Task],
    results: Results,
    *,
    directory: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    after_each: Callable[[Task, int], None] = lambda task, waiting: None,
    network: Any = None,
) -> int:
    """Do the tasks that `results` does not have yet, and return their number.

    Parameters
    ----------
    tasks : sequence of Task
    results : Results
    directory : path-like, optional
        The folder of the data.
    jobs : int
        The number of fits at a time. The backend is joblib's, so that ``joblib.parallel_config`` can send them to a
        cluster.
    after_each : callable
        Called after each task with the task and the number of tasks that are left.
    network : MPINetwork, optional
        Whose ranks do the tasks, instead of jobs of this machine.
    """
    with _alone(results.folder):
        results.take_over(tasks)
        results.save()
        waiting = results.waiting(tasks)
        left = len(waiting)
        on_ranks = network is not None and network.n_ranks > 1
        for task, row, seconds in hand_out(waiting, network) if on_ranks else _in_parallel(waiting, directory, jobs):
            results.add(task, row, seconds)
            left -= 1
            after_each(task, left)
    return len(waiting)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock the folder against a second run; the system releases the lock when the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            lock(file.fileno())
        except BlockingIOError:
            raise SettingsError(f"another run is writing to {folder}: wait for it, or give another folder") from None
        yield


def _in_parallel(tasks: Sequence[Task], directory: str | os.PathLike[str] | None, jobs: int) -> Iterator[_Done]:
    calls = [delayed(_run)(task, directory) for task in tasks]
    backend, _ = get_active_backend()
    if backend.supports_return_generator:
        yield from Parallel(n_jobs=jobs, batch_size=1, return_as="generator_unordered")(calls)
        return
    size = 4 * backend.effective_n_jobs(jobs)
    for start in range(0, len(calls), size):
        yield from Parallel(n_jobs=jobs, batch_size=1)(calls[start : start + size])


def _run(task: Task, directory: str | os.PathLike[str] | None) -> _Done:
    return (task, *run(task, directory))
