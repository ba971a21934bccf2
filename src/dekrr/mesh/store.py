"""What a standing site remembers: one SQLite file for statements, runs and people's choices.

The node and the commands of the site's people use the file at the same time. What is written is on the disk when
`write` returns, whole or not at all. The file must be on a disk of this machine: SQLite's log, which lets all of them
read while one writes, needs memory that they share.
"""

import errno
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from ..disk import create
from ..errors import DataError

STORE = "site.sqlite"
_PATIENCE = 30.0  # seconds to wait for another process that writes
_SYNCHRONOUS = "FULL"  # a commit is on the disk when it returns
_VERSIONS = [
    """
    CREATE TABLE statement (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, item BLOB, audited INTEGER DEFAULT 0);
    CREATE TABLE run (study TEXT, number INTEGER, state TEXT, reason TEXT, time REAL, n_rows INTEGER DEFAULT 0,
                      reported INTEGER DEFAULT 0, told TEXT DEFAULT '', PRIMARY KEY (study, number)) WITHOUT ROWID;
    CREATE TABLE use (id TEXT PRIMARY KEY, study TEXT, number INTEGER, by TEXT, reason TEXT, time REAL,
                      audited INTEGER DEFAULT 0);
    """,
]  # entry i takes a file from version i to version i + 1


class Store:
    """A site's SQLite file. Threads may share it.

    `folder`: the site's folder. `lock`: held by whoever uses the file.

    Raises
    ------
    DataError
        When the file is damaged, or was written by a newer version of dekrr.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / STORE
        self.lock = threading.RLock()
        with suppress(FileExistsError):
            create(self.path, b"", private=True)
        with self._errors():
            connection = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
            self._closing = weakref.finalize(self, _close, connection, self.lock)
            self._connection = connection
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS}")
            if self._version != len(_VERSIONS):
                self._migrate(folder)

    @property
    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return what a query finds."""
        with self.lock, self._errors():
            return self._connection.execute(query, values).fetchall()

    def write(self, query: str, *values: Any) -> int:
        """Change something; return how many rows have changed."""
        with self.transaction(), self._errors():
            return self._connection.execute(query, values).rowcount

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Let all that the block writes be written together, or not at all."""
        with self.lock:
            if self._closing.alive and self._connection.in_transaction:  # part of one that is under way
                yield
                return
            with self._errors():
                self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                with self._errors():
                    self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file, when no other thread uses it; one that comes late gets an `OSError`."""
        self._closing()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError as error:  # it is closed
            raise OSError(errno.EBADF, f"{self.path}: {error}") from None
        except sqlite3.OperationalError as error:  # a full disk, a folder without permission, a lock
            full = "full" in str(error)
            raise OSError(errno.ENOSPC if full else errno.EIO, f"{self.path}: {error}") from None
        except sqlite3.DatabaseError as error:
            raise DataError(
                f"{self.path} cannot be read: {error}; restore it from a copy of the site's folder"
            ) from None

    def _migrate(self, folder: Path) -> None:
        with self.transaction():
            found = self._version
            if found > len(_VERSIONS):
                raise DataError(
                    f"{self.path} has version {found}, and this dekrr knows {len(_VERSIONS)}: a newer one wrote it"
                )
            for number in range(found, len(_VERSIONS)):
                for statement in filter(str.strip, _VERSIONS[number].split(";")):
                    self._connection.execute(statement)
            if found == 0:
                self._take_in(folder)
            self._connection.execute(f"PRAGMA user_version = {len(_VERSIONS)}")

    def _take_in(self, folder: Path) -> None:
        """Take in what a site has in files, of a dekrr that had no store."""
        put = self._connection.execute
        for path in sorted((folder / "statements").glob("*.json")):
            # They are in the audit trail, unless somebody made one while the site was down.
            put("INSERT OR IGNORE INTO statement (id, item, audited) VALUES (?, ?, 1)", (path.stem, path.read_bytes()))
        for path in (folder / "studies").glob("*/versions/*/state.json"):
            with suppress(ValueError, KeyError):
                one = msgspec.json.decode(path.read_bytes(), type=dict)
                values = path.parts[-4], *(one[key] for key in ("number", "state", "reason", "time"))
                names = "study, number, state, reason, time, reported"
                put(
                    f"INSERT OR IGNORE INTO run ({names}) VALUES (?, ?, ?, ?, ?, ?)",
                    (*values, one["state"] != "running"),
                )


def _close(connection: sqlite3.Connection, lock: threading.RLock) -> None:
    """Close a connection between two uses: SQLite crashes the process where another thread is using it."""
    with lock:
        connection.close()
