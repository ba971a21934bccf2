"""The models of a study, one for each run that ended well: `versions/NUMBER`, and the link `current` to one of them.

How runs stand, and which versions people chose, is in the site's store.
"""

import os
import secrets
import shutil
from pathlib import Path

import msgspec

from ...disk import synchronise
from ...errors import DataError
from ..clock import Clock
from ..node import MODEL
from ..store import Store

STUDIES, CURRENT, VERSIONS = "studies", "current", "versions"
HELD_BACK = "held back"  # a run that ended with a model, which is not taken into use
_COLUMNS = "number, state, reason, time, n_rows, told"


def place_of(folder: Path, label: str, number: int) -> Path:
    """Return the folder of a version of a study, in a site's folder."""
    return folder / STUDIES / label / VERSIONS / str(number)


class RunState(msgspec.Struct, frozen=True):
    """How a run stands at this site: running, done, or missed or failed for a reason; and the rows that it had.

    `told` is what other sites are told of a failure, the code of the reason and nothing of a row.
    """

    number: int
    state: str
    reason: str = ""
    time: float = 0.0
    n_rows: int = 0
    told: str = ""


class Versions:
    """The versions of one study's model; `folder` is `studies/NAME` of a site's folder."""

    def __init__(self, folder: Path, store: Store | None = None, clock: Clock | None = None) -> None:
        self.folder = folder
        self._store = store or Store(folder.parent.parent)
        self._clock = clock or Clock()

    def place(self, number: int) -> Path:
        """Return the folder of a version."""
        return self.folder / VERSIONS / str(number)

    @property
    def states(self) -> list[RunState]:
        """All runs that this site has begun and has not forgotten, in their order."""
        return self._runs("TRUE ORDER BY number")

    def last(self, count: int) -> list[RunState]:
        """Return the last runs, in their order."""
        return self._runs("TRUE ORDER BY number DESC LIMIT ?", count)[::-1]

    def get(self, number: int) -> RunState | None:
        """Return how a run stands; None if this site has not begun it."""
        return next(iter(self._runs("number = ?", number)), None)

    @property
    def running(self) -> RunState | None:
        """The first run that is under way."""
        return next(iter(self._runs("state = 'running' ORDER BY number LIMIT 1")), None)

    @property
    def unreported(self) -> list[RunState]:
        """The runs that have ended, and of which the other sites were not told."""
        return self._runs("state != 'running' AND NOT reported ORDER BY number")

    def last_done(self, before: int) -> RunState | None:
        """Return the last run before a number that gave a model."""
        return next(iter(self._runs("state = 'done' AND number < ? ORDER BY number DESC LIMIT 1", before)), None)

    @property
    def last_n_rows(self) -> int:
        """The rows of the last run that had read them; 0 if there is none."""
        return next((one.n_rows for one in self._runs("n_rows > 0 ORDER BY number DESC LIMIT 1")), 0)

    def note(self, number: int, state: str, reason: str = "", n_rows: int = 0, told: str = "") -> None:
        """Note how a run stands; the number of rows stays where none is given."""
        self.place(number).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._store.write(
            "INSERT INTO run (study, number, state, reason, time, n_rows, told) VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (study, number) DO UPDATE SET state = excluded.state, reason = excluded.reason, "
            "time = excluded.time, n_rows = max(n_rows, excluded.n_rows), told = excluded.told",
            *(self.folder.name, number, state, reason, self._clock.time(), n_rows, told),
        )

    def note_reported(self, number: int) -> None:
        """Note that the other sites were told how a run has ended."""
        self._store.write("UPDATE run SET reported = 1 WHERE study = ? AND number = ?", self.folder.name, number)

    def forget(self, keep: int) -> None:
        """Remove all but the last `keep` versions; that in use and those that people chose stay."""
        uses = self._store.rows("SELECT number FROM use WHERE study = ?", self.folder.name)
        stay = {self.current, *(number for (number,) in uses)}
        for one in self._runs("state != 'running' AND reported ORDER BY number DESC LIMIT -1 OFFSET ?", keep):
            if one.number not in stay:
                shutil.rmtree(self.place(one.number), ignore_errors=True)
                self._store.write("DELETE FROM run WHERE study = ? AND number = ?", self.folder.name, one.number)

    @property
    def current(self) -> int | None:
        """The number of the version that is in use."""
        try:
            return int(Path(os.readlink(self.folder / CURRENT)).name)
        except (OSError, ValueError):
            return None

    def choose(self, number: int, by: str, reason: str) -> None:
        """Use a version by a person's choice, which is noted first."""
        self._check(number)
        values = secrets.token_hex(16), self.folder.name, number, by, reason, self._clock.time()
        self._store.write("INSERT INTO use VALUES (?, ?, ?, ?, ?, ?, 0)", *values)
        self.use(number)

    def use(self, number: int) -> None:
        """Let `current` point to a version, at once and whole."""
        self._check(number)
        temporary = self.folder / f".{CURRENT}-{secrets.token_hex(4)}"
        temporary.symlink_to(Path(VERSIONS) / str(number))
        os.replace(temporary, self.folder / CURRENT)
        synchronise(self.place(number) / MODEL)

    def _check(self, number: int) -> None:
        if not (self.place(number) / MODEL).exists():
            there = ", ".join(str(one.number) for one in self.states if one.state in ("done", HELD_BACK)) or "none"
            raise DataError(f"{self.folder} has no version {number}; there are {there}")

    def _runs(self, condition: str, *values: int) -> list[RunState]:
        query = f"SELECT {_COLUMNS} FROM run WHERE study = ? AND {condition}"
        return [RunState(*row) for row in self._store.rows(query, self.folder.name, *values)]
