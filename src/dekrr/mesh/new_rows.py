"""How many rows the sources of a standing site have now, counted beside its main loop."""

import threading
from contextlib import suppress
from pathlib import Path

from ..errors import DekrrError
from .clock import Clock
from .config import StandingFile, StudyFile
from .site_rows import open_rows

_EVERY = 10.0  # seconds between two looks at a file that has changed
_ANYWAY = 600.0  # seconds between two looks at one that looks unchanged: a folder or a database may not show it


class RowCounts:
    """The numbers of rows of the sources, each from a pass over its table in a thread of its own."""

    def __init__(self, config: StandingFile, folder: Path, clock: Clock) -> None:
        self._config = config
        self._folder = folder
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._looks: dict[str, tuple[float, tuple[int, int]]] = {}
        self._threads: dict[str, threading.Thread] = {}

    def latest(self, study: StudyFile) -> int:
        """Return the rows of a study's source when they were last counted; 0 before that, or if they cannot be read."""
        source = study.source
        thread = self._threads.get(source)
        if thread is None or not thread.is_alive():
            path, now = self._folder / self._config.sources[source], self._clock.monotonic()
            looked, seen = self._looks.get(source, (float("-inf"), (-1, -1)))
            if now - looked > (_EVERY if _state_of(path) != seen else _ANYWAY):
                self._looks[source] = now, _state_of(path)
                self._threads[source] = threading.Thread(target=self._count, args=(study,), daemon=True)
                self._threads[source].start()
        return self._counts.get(source, 0)

    def _count(self, study: StudyFile) -> None:
        n_rows = 0
        with suppress(DekrrError, OSError):
            n_rows = open_rows(self._config.run_of(study, "count", self._folder), self._folder).n_rows
        self._counts[study.source] = n_rows


def _state_of(path: Path) -> tuple[int, int]:
    """Return what changes when a file does."""
    with suppress(OSError):
        found = path.stat()
        return found.st_mtime_ns, found.st_size
    return 0, 0
