"""A site's checkpoint: the log (journal) of the frames that it received.

A node procedure is deterministic, so that a site restores its state by a replay of the log. Records are only appended.
A record that a crash has cut short is dropped. Every prefix of a log is a valid checkpoint.
"""

import contextlib
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from ...disk import LockedFile, synchronise
from ...errors import AgreementError, DataError
from .events import CheckpointLost, Listener
from .plan import Plan


class Opening(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """The beginning of an epoch.

    `run`, `site`, `digest`: they must be the same when the site resumes. The digest is that of the run's terms and of
    the site's rows.
    """

    run: str
    site: str
    digest: str
    lost: tuple[str, ...]  # the sites and links that are lost
    features: bytes | None  # the message that announced the site's features, if it had chosen them in an earlier epoch
    origins: dict[str, str]  # the origin code of each neighbour; see `Hello`
    graph: dict[str, tuple[str, ...]] = {}  # the neighbours of each site


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """The model of the run is written."""


class Received(msgspec.Struct, frozen=True, array_like=True, tag="inbox"):
    """The frames of one exchange, from all neighbours that sent a message."""

    exchange: int
    frames: dict[str, bytes]


Record = Opening | Received | Ended
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
_MAGIC = b"dekrr checkpoint 4\n"
_SYNCHRONISE_EVERY = 1.0  # seconds
_HEAD = struct.Struct(">QI")  # a record's length and checksum


class Journal(Protocol):
    """A store of records."""

    def append(self, record: Record) -> None:
        """Add a record; raise OSError if that is impossible."""

    def flush(self) -> None:
        """Write the records that were added; raise OSError if that is impossible."""

    def records(self) -> Iterator[Record]:
        """Yield all complete records."""

    def discard(self) -> None:
        """Erase all records, and store none from now on."""


class NoJournal:
    """A journal that stores nothing."""

    def append(self, record: Record) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def records(self) -> Iterator[Record]:
        """Yield nothing."""
        return iter(())

    def discard(self) -> None:
        """Do nothing."""


class FileJournal:
    """A journal in a file that only its owner can read.

    Flushed records survive the death of the process. A background thread synchronises them to the disk, so that they
    also survive a power cut. Rounds do not wait for the synchronisation, which can take seconds on a busy disk: after a
    crash the neighbours retransmit the frames that are missing. A header with the length and a checksum precedes each
    record. A record that a power cut left half-written is thereby found, and dropped with all that follows it.

    `fresh`: erase the records in an existing file.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self._path = path
        self._off = False
        self._pending = bytearray()
        self._synchroniser = threading.Thread()
        self._synchronised = float("-inf")
        self._in_folder = False
        self._failure: OSError | None = None
        try:
            self._file = LockedFile(path)
        except BlockingIOError:
            raise DataError(f"{path} is in use: is this site running already?") from None
        if fresh:
            self._file.truncate(0)
        beginning = self._file.read(len(_MAGIC), at=0)
        if not _MAGIC.startswith(beginning):
            self._file.close()
            raise DataError(f"{path} is not a checkpoint of this version; move it away to start afresh")
        self._end = 0
        if beginning == _MAGIC:
            self._end = len(_MAGIC) + sum(_HEAD.size + len(data) for data in self._frames())
        self._file.truncate(self._end)

    def append(self, record: Record) -> None:
        """Add a record; the beginning of an epoch is written at once."""
        data = _encoder.encode(record)
        self._pending += _HEAD.pack(len(data), zlib.crc32(data))
        self._pending += data
        if type(record) is Opening:
            self.flush()

    def flush(self) -> None:
        """Write the records that were added; if that fails, undo a partial write."""
        if self._off or not self._pending:
            return
        if self._failure is not None:
            raise self._failure
        data = self._pending if self._end else _MAGIC + self._pending
        try:
            self._file.write(data, at=self._end)
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
            raise
        # One statement, so that no signal handler runs between the two assignments.
        self._pending, self._end = bytearray(), self._end + len(data)
        if not self._synchroniser.is_alive() and time.monotonic() - self._synchronised > _SYNCHRONISE_EVERY:
            self._synchronised = time.monotonic()
            self._synchroniser = threading.Thread(target=self._synchronise, daemon=True)
            self._synchroniser.start()

    def records(self) -> Iterator[Record]:
        """Yield all records; raise `DataError` for those of another version."""
        for data in self._frames():
            try:
                yield _decoder.decode(data)
            except msgspec.MsgspecError as error:
                raise DataError(f"{self._path} is not a checkpoint: {error}; move it away to start afresh") from None

    def discard(self) -> None:
        """Remove the file."""
        if not self._off:
            self._off = True
            self._wait()
            self._file.close()
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file, and keep it for the next start."""
        if not self._off:
            with contextlib.suppress(OSError):
                self.flush()
            self._wait()
            with contextlib.suppress(OSError):
                self._file.synchronise()
            self._off = True
            self._file.close()

    def _synchronise(self) -> None:
        try:
            self._file.synchronise()
            if not self._in_folder:
                synchronise(self._path)
                self._in_folder = True
        except OSError as error:
            self._failure = error

    def _wait(self) -> None:
        if self._synchroniser.is_alive():
            self._synchroniser.join()

    def _frames(self) -> Iterator[bytes]:
        """Yield the bytes of each record, up to the first that is not complete."""
        position, end = len(_MAGIC), self._file.size
        while position + _HEAD.size <= end:
            size, checksum = _HEAD.unpack(self._file.read(_HEAD.size, position))
            position += _HEAD.size
            if position + size > end:
                return
            data = self._file.read(size, position)
            if not data or zlib.crc32(data) != checksum:
                return
            yield data
            position += size


class Checkpoint:
    """A journal whose failure does not end the run: the first failure is reported, and then nothing more is stored.

    `listen`: gets a `CheckpointLost`.
    """

    def __init__(self, journal: Journal, listen: Listener) -> None:
        self._journal = journal
        self._listen = listen

    def keep(self, record: Record) -> None:
        """Add a record."""
        try:
            self._journal.append(record)
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        """Write the records that were added."""
        try:
            self._journal.flush()
        except OSError as error:
            self._give_up(error)

    def last_epoch(self, plan: Plan) -> tuple[Opening, list[Received]] | None:
        """Return the last epoch in the journal, or None if it has none.

        An epoch of another run, site or set of rows raises `AgreementError`.
        """
        records = list(self._journal.records())
        openings = [i for i, record in enumerate(records) if isinstance(record, Opening)]
        if not openings:
            return None
        opening = records[openings[-1]]
        assert isinstance(opening, Opening)
        if (opening.run, opening.site) != (plan.run, plan.name):
            raise AgreementError(
                f"the checkpoint is of run {opening.run!r} at site {opening.site!r}, not of run {plan.run!r} at "
                f"site {plan.name!r}; move it away, or start afresh (--fresh)"
            )
        if opening.digest != plan.digest:
            raise AgreementError(
                f"the checkpoint of site {plan.name!r} was made with other rows, settings or neighbours than the site "
                "has now; put them back, or start afresh (--fresh): sites that are already running then go on without "
                "it"
            )
        return opening, [record for record in records[openings[-1] + 1 :] if isinstance(record, Received)]

    def _give_up(self, error: OSError) -> None:
        self._listen(CheckpointLost(reason=str(error)))
        self._journal.discard()
        self._journal = NoJournal()
