"""Progress of long work: a bar on a terminal, a line a minute elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SECONDS = 60.0  # between two lines where the output is no terminal


@contextmanager
def progress_of(name: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """Yield a function that shows how many parts of some work, `total` in all, are done, and what was done last."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(console, name, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(name, total=total)
        yield lambda done, what: progress.update(bar, completed=done, description=f"{name} {what}")


class _Lines:
    """A line with what is done and an estimate, a minute after the last one; the first and the last part have one."""

    def __init__(self, console: Console, name: str, total: int) -> None:
        self.console, self.name, self.total = console, name, total
        self.began = time.monotonic()
        self.told = -SECONDS

    def __call__(self, done: int, what: str) -> None:
        passed = time.monotonic() - self.began
        if passed - self.told < SECONDS and done < self.total:
            return
        self.told = passed
        left = passed / max(done, 1) * (self.total - done)
        self.console.print(
            f"{self.name} {what}: {done} of {self.total} done in {_minutes(passed)}, about {_minutes(left)} left",
            soft_wrap=True,
            highlight=False,
        )


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
