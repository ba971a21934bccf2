"""A site's audit trail: every decision and everything that left the site, in lines that are chained and signed.

Each line has the SHA-256 of the line before it. Lines are signed in groups: a line `seal` has a signature, by the
site's key, of the chain up to it. A line that is changed, left out, added or moved breaks the chain. The end of the
file could be cut off unseen; therefore the reports of runs, which other sites keep, name the line that was last.

A file that has grown long is packed into `audit-FIRST-LAST.jsonl.gz`, named by its lines, and the trail goes on in an
empty one. Whoever moves the oldest of these files elsewhere can still check the others.
"""

import gzip
import hashlib
import json
import re
import threading
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from ..disk import LockedFile, replacing
from ..errors import DataError, KeysError
from .clock import Clock
from .identity import SiteIdentity, Trust, is_signed

TRAIL = "audit.jsonl"
_SECONDS = 2.0
_LONGEST = 4 << 20  # bytes of a file until it is packed
_LONGEST_LINE = 4 << 20
_AT_ONCE = 1 << 16


class AuditTrail:
    """Appends to a site's audit trail.

    `identity`: signs. `head`: the hash of the last line.

    Raises
    ------
    DataError
        When the lines of the last file are not a chain; `verify` checks the others.
    """

    def __init__(self, path: Path, identity: SiteIdentity, clock: Clock | None = None) -> None:
        self.identity = identity
        self._clock = clock or Clock()
        self._lock = threading.RLock()
        self._file = _opened(path)
        self._waiting: list[bytes] = []
        self._sealed = self._clock.monotonic()
        self.n_lines, self.head = _last_packed(path)
        self._end = _end_of(self._file)
        if self.n_lines and self._first() <= self.n_lines:  # a crash came when it was packed, and not emptied
            self._end = 0
        self._file.truncate(self._end)  # a line that a crash has cut short
        for line in _lines(_texts(path), path, self.n_lines, self.head):
            self.n_lines, self.head = line.entry["line"], line.hash
        self._n_sealed = 0
        if self.n_lines:
            self.add("opened", site=identity.site)
        else:
            self.add("begun", site=identity.site, certificate=identity.pem)
        with suppress(OSError):  # the lines wait until there is space
            self.seal()

    def _first(self) -> int:
        """Return the number of the first line of the file; a large one if it has none."""
        entry = _entry(self._file.read(_LONGEST_LINE, at=0).partition(b"\n")[0])
        return 1 << 62 if entry is None else int(entry["line"])

    def add(self, kind: str, **details: Any) -> None:
        """Add a line, which `write` writes; it is signed with those that follow within two seconds."""
        with self._lock:
            self._append({"line": self.n_lines + 1, "time": self._clock.time(), "kind": kind, **details})
            if self._clock.monotonic() - self._sealed > _SECONDS:
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
            self._sealed = self._clock.monotonic()
            if self.n_lines > self._n_sealed:
                signature = self.identity.sign(self.head.encode())
                seal = {"line": self.n_lines + 1, "time": self._clock.time(), "kind": "seal", "signature": signature}
                self._append({**seal, "certificate": self.identity.pem})
                self._n_sealed = self.n_lines
            if self._waiting:
                self.write()
                self._file.synchronise()
                if self._end > _LONGEST:
                    self._pack()

    def _pack(self) -> None:
        """Pack the file and empty it; a crash in between leaves both, which the next start finds."""
        path, first = self._file.path, self._first()
        place = path.with_name(f"audit-{first}-{self.n_lines}.jsonl.gz")
        with replacing(place, durable=True) as temporary, gzip.open(temporary, "wb") as packed:
            for begin in range(0, self._end, _AT_ONCE):
                packed.write(self._file.read(min(_AT_ONCE, self._end - begin), at=begin))
        self._file.truncate(0)
        self._end = 0

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


def read(path: Path, trust: Trust, site: str, heads: Iterable[tuple[int, str]] = ()) -> Iterator[dict[str, Any]]:
    """Yield the entries of an audit trail as long as it is whole; otherwise raise `DataError`, which names the line.

    Lines at the end may not be signed. A site that runs signs every two seconds. One that was killed signs when it
    starts again.

    `path`: the file that the site writes to. The packed ones are beside it. `trust`: checks the certificates. `site`:
    whose trail it is. `heads`: what this site's reports of runs said; other sites have these, too.
    """
    named, first = dict(heads), None
    for line in _all_lines(path):
        entry = line.entry
        first = entry["line"] if first is None else first
        if entry["kind"] == "seal":
            try:
                certificate = trust.issued(str(entry.get("certificate")), site)  # clocks may have been wrong
            except KeysError as error:
                raise DataError(f"{path}, line {entry['line']}: {error}") from None
            if not is_signed(certificate, str(entry["before"]).encode(), str(entry.get("signature"))):
                raise DataError(f"{path}, line {entry['line']}: the signature is not that of {site!r}")
        if named.pop(entry["line"], line.hash) != line.hash:
            raise DataError(f"{path}: a report of this site names line {entry['line']}, which differs")
        yield entry
    for number in named:
        if number >= (first or 1):
            raise DataError(f"{path}: a report of this site names line {number}, which is missing")


def verify(path: Path, trust: Trust, site: str, heads: Iterable[tuple[int, str]] = ()) -> tuple[int, int, int]:
    """Return the first line of a trail, its last, and how many at the end are not signed, if it is whole (see `read`).

    One line is in memory at a time.
    """
    first = last = unsigned = 0
    for entry in read(path, trust, site, heads):
        last = entry["line"]
        first, unsigned = first or last, 0 if entry["kind"] == "seal" else unsigned + 1
    return first, last, unsigned


def _opened(path: Path) -> LockedFile:
    try:
        return LockedFile(path)
    except BlockingIOError:
        raise DataError(f"{path} is in use: is this site running already?") from None


def _packed(path: Path) -> list[tuple[int, int, Path]]:
    """Return the packed files of a trail in their order, with their first and last lines."""
    names = (re.fullmatch(r"audit-(\d+)-(\d+)\.jsonl\.gz", found.name) for found in path.parent.glob("audit-*.gz"))
    return sorted((int(name[1]), int(name[2]), path.parent / name[0]) for name in names if name)


def _last_packed(path: Path) -> tuple[int, str]:
    """Return the last packed line, and its hash."""
    packed = _packed(path)
    if not packed:
        return 0, ""
    (text,) = deque(_texts(packed[-1][2]), maxlen=1)
    return packed[-1][1], hashlib.sha256(text).hexdigest()


def _end_of(file: LockedFile) -> int:
    """Return where the last whole line ends."""
    end = file.size
    while end:
        begin = max(end - _AT_ONCE, 0)
        found = file.read(end - begin, at=begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def _texts(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, packed or not, one at a time."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while text := file.readline(_LONGEST_LINE):
                yield text.removesuffix(b"\n")
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{path} cannot be unpacked, so the trail was changed: {error}") from None


def _all_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of all files of a trail; the chain begins with the first that is there."""
    packed = _packed(path)
    last = packed[-1][1] if packed else 0
    current = _texts(path) if path.exists() else iter(())
    head = next(current, b"")
    entry = _entry(head)
    if entry is not None and entry["line"] <= last:  # it was packed, and a crash came before it was emptied
        head, current = b"", iter(())
    texts = chain.from_iterable(_texts(file) for _, _, file in packed)
    number, before = (packed[0][0] - 1, None) if packed and packed[0][0] > 1 else (0, "")
    return _lines(chain(texts, [head] if head else [], current), path, number, before)


def _lines(texts: Iterable[bytes], path: Path, number: int, before: str | None) -> Iterator[Line]:
    """Yield lines that follow each other, after line `number` with the hash `before`; None where that is not known."""
    texts = iter(texts)
    for text in texts:
        number += 1
        entry = _entry(text)
        if entry is None or (before is not None and entry["before"] != before) or entry["line"] != number:
            raise DataError(f"{path}, {_what_was_changed(text, next(texts, b''), number)}: the trail was changed")
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


def _what_was_changed(text: bytes, following: bytes, number: int) -> str:
    """Return in words what is wrong at the first line that does not follow from the line before it.

    A line has the hash of the line before it. Where the next line confirms the one that does not follow, that one is as
    it was written, and the line before it is not.
    """
    entry = _entry(text)
    if entry is None:
        return f"line {number} is not a line of a trail"
    if entry["line"] != number:
        return f"line {number} has the number {entry['line']}: a line was added, left out or moved here"
    after = _entry(following)
    if after is None:
        return f"line {number - 1} or line {number} is not what was written"
    if after["before"] == hashlib.sha256(text).hexdigest():
        return f"line {number - 1} is not what was written"
    return f"line {number} is not what was written"
