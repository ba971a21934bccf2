"""A site's audit trail: every decision and everything that left the site, in lines that are chained and signed.

Each line has the SHA-256 of the line before it. Lines are signed in groups: a line `seal` has a signature, by the
site's key, of the chain up to it. A line that is changed, left out, added or moved breaks the chain. The end of the
file could be cut off unseen; therefore the reports of runs, which other sites keep, name the line that was last.
"""

import hashlib
import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..disk import LockedFile
from ..errors import DataError, KeysError
from .identity import Identity, Trust, is_signed

TRAIL = "audit.jsonl"
_SECONDS = 2.0


class AuditTrail:
    """Appends to a site's audit trail.

    Parameters
    ----------
    path : Path
    identity : Identity
        Signs.

    Attributes
    ----------
    n_lines : int
    head : str
        The hash of the last line.
    statements : set of str
        The ids of the statements, and of people's choices of a version, that are in the trail.

    Raises
    ------
    DataError
        When the lines that are there are not a chain.
    """

    def __init__(self, path: Path, identity: Identity) -> None:
        self.identity = identity
        self._lock = threading.RLock()
        self._file = _opened(path)
        self._waiting: list[bytes] = []
        self._sealed = time.monotonic()
        data = self._file.read(self._file.size, at=0)
        self._end = data.rfind(b"\n") + 1
        self._file.truncate(self._end)  # a line that a crash has cut short
        self.n_lines, self._n_sealed, self.head = 0, 0, ""
        self.statements: set[str] = set()
        for line in _lines(data[: self._end], path):
            self.n_lines, self.head = self.n_lines + 1, line.hash
            if "id" in line.entry:
                self.statements.add(line.entry["id"])
        if self.n_lines:
            self.add("opened", site=identity.site)
        else:
            self.add("begun", site=identity.site, certificate=identity.pem)
        with suppress(OSError):  # the lines wait until there is space
            self.seal()

    def add(self, kind: str, **details: Any) -> None:
        """Add a line, which `write` writes; it is signed with those that follow within two seconds."""
        with self._lock:
            self._append({"line": self.n_lines + 1, "time": time.time(), "kind": kind, **details})
            if time.monotonic() - self._sealed > _SECONDS:
                self.seal()

    def write(self) -> None:
        """Write the lines that were added, so that they outlive the process."""
        with self._lock:
            data = b"".join(self._waiting)
            try:
                self._file.write(data, at=self._end)
            except OSError:  # the lines wait until there is space again
                with suppress(OSError):
                    self._file.truncate(self._end)
                raise
            self._end += len(data)
            self._waiting.clear()

    def decide(self, kind: str, **details: Any) -> None:
        """Add a line, signed and on the disk when this returns."""
        with self._lock:
            self.add(kind, **details)
            self.seal()

    def seal(self) -> None:
        """Sign the chain up to here, and write it to the disk."""
        with self._lock:
            self._sealed = time.monotonic()
            if self.n_lines > self._n_sealed:
                signature = self.identity.sign(self.head.encode())
                seal = {"line": self.n_lines + 1, "time": time.time(), "kind": "seal", "signature": signature}
                self._append({**seal, "certificate": self.identity.pem})
                self._n_sealed = self.n_lines
            if self._waiting:
                self.write()
                self._file.synchronise()

    def close(self) -> None:
        """Sign and close the file."""
        with self._lock:
            with suppress(OSError):
                self.seal()
            self._file.close()

    def _append(self, entry: dict[str, Any]) -> None:
        text = json.dumps({**entry, "before": self.head}, sort_keys=True).encode()
        self._waiting.append(text + b"\n")
        self.n_lines, self.head = self.n_lines + 1, hashlib.sha256(text).hexdigest()


class Line:
    """One line of an audit trail: its contents, and the hash of its text."""

    def __init__(self, entry: dict[str, Any], text: bytes) -> None:
        self.entry = entry
        self.hash = hashlib.sha256(text).hexdigest()


def verify(
    path: Path, trust: Trust, site: str, heads: Iterable[tuple[int, str]] = ()
) -> tuple[list[dict[str, Any]], int]:
    """Return the entries of an audit trail if it is whole; otherwise raise `DataError`, which names the line.

    The number of lines at the end that are not signed is returned, too. A site that runs signs every two seconds. One
    that was killed signs when it starts again.

    Parameters
    ----------
    path : Path
    trust : Trust
        Checks the certificates.
    site : str
        Whose trail it is.
    heads : iterable of (line, hash)
        What this site's reports of runs said; other sites have these, too.
    """
    entries, hashes, unsigned = [], {0: ""}, 0
    for line in _lines(path.read_bytes(), path):
        entry = line.entry
        if entry["kind"] == "seal":
            try:
                certificate = trust.issued(str(entry.get("certificate")), site)  # clocks may have been wrong
            except KeysError as error:
                raise DataError(f"{path}, line {entry['line']}: {error}") from None
            if not is_signed(certificate, str(entry["before"]).encode(), str(entry.get("signature"))):
                raise DataError(f"{path}, line {entry['line']}: the signature is not that of {site!r}")
            unsigned = 0
        else:
            unsigned += 1
        hashes[entry["line"]] = line.hash
        entries.append(entry)
    for number, head in heads:
        if hashes.get(number) != head:
            raise DataError(f"{path}: a report of this site names line {number}, which is missing or differs")
    return entries, unsigned


def _opened(path: Path) -> LockedFile:
    try:
        return LockedFile(path)
    except BlockingIOError:
        raise DataError(f"{path} is in use: is this site running already?") from None


def _lines(data: bytes, path: Path) -> Iterator[Line]:
    before, texts = "", data.splitlines()
    for number, text in enumerate(texts, 1):
        entry = _entry(text)
        if entry is None or entry["before"] != before or entry["line"] != number:
            raise DataError(f"{path}, {_what_was_changed(texts, number)}: the trail was changed")
        line = Line(entry, text)
        before = line.hash
        yield line


def _entry(text: bytes) -> dict[str, Any] | None:
    """Return what a line says; None where it is no line of a trail."""
    try:
        entry = json.loads(text)
        is_line = {"before", "line"} <= entry.keys() and isinstance(entry["kind"], str)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return entry if is_line else None


def _what_was_changed(texts: list[bytes], number: int) -> str:
    """Return in words what is wrong at the first line that does not follow from the line before it.

    A line has the hash of the line before it. Where the next line confirms the one that does not follow, that one is as
    it was written, and the line before it is not.
    """
    entry = _entry(texts[number - 1])
    if entry is None:
        return f"line {number} is not a line of a trail"
    if entry["line"] != number:
        return f"line {number} has the number {entry['line']}: a line was added, left out or moved here"
    after = _entry(texts[number]) if number < len(texts) else None
    if after is None:
        return f"line {number - 1} or line {number} is not what was written"
    if after["before"] == hashlib.sha256(texts[number - 1]).hexdigest():
        return f"line {number - 1} is not what was written"
    return f"line {number} is not what was written"
