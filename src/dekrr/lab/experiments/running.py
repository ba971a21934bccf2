"""Fits in parallel; the result of each is saved as soon as it is done.

The results are one Parquet file with one row per fit. It is replaced atomically after every fit, and the order of its
rows depends on the tasks only. So the file can be read during a run, and a killed run loses only the fits that are not
finished: started again, it ends with the same file. Times are not reproducible, and are in a second file.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from joblib import Parallel, delayed
from joblib.parallel import get_active_backend

from ...disk import lock, replacing
from ...errors import DataError, SettingsError
from .fits import FitTask, fit_task, versions

RESULTS, TIMINGS, COMMANDS = "results.parquet", "timings.parquet", "commands.json"

_TASK = {field.name: field.type for field in msgspec.structs.fields(FitTask)}
_COLUMNS: dict[str, Any] = {
    **_TASK,
    **dict.fromkeys(("sigma", "alpha", "consensus"), float),
    **dict.fromkeys(("n_train", "n_test"), int),
    **dict.fromkeys(("own_rse", "union_rse", "own_mse", "union_mse", "objective"), float),
    **dict.fromkeys(("rounds", "bytes"), int),
    **dict.fromkeys(("best_objective", "authors_rse", "authors_std"), float),
    **dict.fromkeys(("site_rows", "site_features"), list[int]),
    **dict.fromkeys(("site_rse", "site_mse", "site_union_rse"), list[float]),
    **dict.fromkeys(("edge_from", "edge_to", "edge_bytes", "curve_round", "curve_bytes"), list[int]),
    **dict.fromkeys(("curve_objective", "curve_own_rse", "curve_union_rse"), list[float]),
    **dict.fromkeys(("python", "dekrr", "numpy", "scipy"), str),
}


class Results:
    """The results in a folder, which is made if it does not exist."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._versions = versions()
        seconds = {task_of(row): row["seconds"] for row in _read(self.folder / TIMINGS)}
        tasks = {task_of(row): row for row in _read(self.folder / RESULTS)}
        self._rows = {task: {**row, "seconds": seconds.get(task)} for task, row in tasks.items()}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, in order, each with the `seconds` of its fit (None where they are not known)."""
        return [self._rows[task] for task in sorted(self._rows)]

    def take_over(self, tasks: Iterable[FitTask]) -> None:
        """Copy the rows of fits that another experiment has done to those of `tasks` that need the same fit."""
        done = {_identity(task): row for task, row in self._rows.items() if self._is_current(row)}
        for task in tasks:
            if task not in self._rows and (twin := done.get(_identity(task))):
                self._rows[task] = {**twin, "experiment": task.experiment}

    def waiting(self, tasks: Iterable[FitTask]) -> list[FitTask]:
        """Return the tasks that are not done, or were done with other versions of the software."""
        return [task for task in tasks if task not in self._rows or not self._is_current(self._rows[task])]

    def _is_current(self, row: dict[str, Any]) -> bool:
        return all(row[name] == value for name, value in self._versions.items())

    def add(self, task: FitTask, row: dict[str, Any], seconds: float) -> None:
        self._rows[task] = {**dict.fromkeys(_COLUMNS), **row, "seconds": seconds}
        self.save()

    def save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        _write(self.folder / RESULTS, self.rows, _COLUMNS)
        timed = [row for row in self.rows if row["seconds"] is not None]
        _write(self.folder / TIMINGS, timed, {**_TASK, "seconds": float})

    @property
    def commands(self) -> dict[str, str]:
        """The last command of each run, by its name; see `dekrr.lab.experiments.plans.run_name`."""
        path = self.folder / COMMANDS
        return json.loads(path.read_text()) if path.exists() else {}

    def note_command(self, run: str, command: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        commands = dict(sorted({**self.commands, run: command}.items()))
        replace_file(self.folder / COMMANDS, json.dumps(commands, indent=1).encode() + b"\n")


def _identity(task: FitTask) -> tuple[Any, ...]:
    """Return the fields that two tasks with the same row share; rows of "convergence" are apart: they have curves."""
    return (task.experiment == "convergence", *task.key)


def task_of(row: dict[str, Any]) -> FitTask:
    return msgspec.convert({name: row[name] for name in _TASK}, FitTask)


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError("results are Parquet files and need pyarrow: pip install 'dekrr[cli]'") from None
    return pyarrow


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    pa = _pyarrow()
    try:
        # One call reads the whole file, because a run may replace the file at any time.
        rows: list[dict[str, Any]] = pa.parquet.read_table(pa.BufferReader(path.read_bytes())).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is damaged, or has no results: {error}; move it away to start afresh") from None
    missing = [name for name in _TASK if rows and name not in rows[0]]
    if missing:
        raise DataError(f"{path} has no columns {missing}: it is from another version; give another folder")
    return rows


def _write(path: Path, rows: list[dict[str, Any]], columns: dict[str, Any]) -> None:
    pa = _pyarrow()
    whole, number = pa.int64(), pa.float64()
    kinds = {str: pa.string(), int: whole, float: number, list[int]: pa.list_(whole), list[float]: pa.list_(number)}
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.Table.from_pylist(rows, schema=schema), sink)
    replace_file(path, sink.getvalue().to_pybytes())


def replace_file(path: Path, data: bytes) -> None:
    with replacing(path, private=False) as temporary:
        temporary.write_bytes(data)


_Fitted = tuple[FitTask, dict[str, Any], float]


def execute(
    tasks: Sequence[FitTask],
    results: Results,
    *,
    directory: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    after_each: Callable[[FitTask, int], None] = lambda task, waiting: None,
) -> int:
    """Do the tasks that `results` does not have yet, so many at a time, and return their number.

    The backend is joblib's, so that ``joblib.parallel_config`` can send them to a cluster. `after_each` is told of each
    task and how many are left.
    """
    with _alone(results.folder):
        results.take_over(tasks)
        results.save()
        waiting = results.waiting(tasks)
        left = len(waiting)
        for task, row, seconds in _in_parallel(waiting, directory, jobs):
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


def _in_parallel(tasks: Sequence[FitTask], directory: str | os.PathLike[str] | None, jobs: int) -> Iterator[_Fitted]:
    calls = [delayed(_run)(task, directory) for task in tasks]
    backend, _ = get_active_backend()
    if backend.supports_return_generator:
        yield from Parallel(n_jobs=jobs, batch_size=1, return_as="generator_unordered")(calls)
        return
    size = 4 * backend.effective_n_jobs(jobs)
    for start in range(0, len(calls), size):
        yield from Parallel(n_jobs=jobs, batch_size=1)(calls[start : start + size])


def _run(task: FitTask, directory: str | os.PathLike[str] | None) -> _Fitted:
    return (task, *fit_task(task, directory))
