"""All messages from one rank to another in one exchange, as one parcel or a few."""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import msgspec
import numpy as np

from .ranks import PIECE, Ranks


class Entry(msgspec.Struct, frozen=True, array_like=True):
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
    entries: list[Entry]


class Parcels:
    """What one rank sends to others in one exchange: a parcel for each, or several where it is much."""

    def __init__(self, ranks: Ranks, exchange: int, peers: Collection[int]) -> None:
        self._ranks = ranks
        self._exchange = exchange
        self._waiting: dict[int, tuple[list[Entry], list[bytes]]] = {rank: ([], []) for rank in peers}
        self._sizes = Counter[int]()

    def add(self, rank: int, entry: Entry, data: bytes) -> None:
        """Put a message into the parcel for a rank."""
        entries, contents = self._waiting[rank]
        if entries and self._sizes[rank] + len(data) > PIECE // 2:
            self._post(rank, is_last=False)
            entries, contents = self._waiting[rank]
        entries.append(entry)
        contents.append(data)
        self._sizes[rank] += len(data)

    def close(self) -> None:
        """Send the last parcel to every rank."""
        for rank in list(self._waiting):
            self._post(rank, is_last=True)

    def _post(self, rank: int, *, is_last: bool) -> None:
        entries, contents = self._waiting[rank]
        self._ranks.send(rank, sealed(Label(self._exchange, True, is_last, entries), contents))
        self._waiting[rank], self._sizes[rank] = ([], []), 0


def sealed(label: Label, contents: list[bytes]) -> bytes:
    """Return a parcel: its label, and its messages one after another."""
    head = msgspec.msgpack.encode(label)
    return b"".join([len(head).to_bytes(8, "little"), head, *contents])


def opened(parcel: bytearray) -> tuple[Label, Iterator[Any]]:
    """Return the label of a parcel, and its messages one after another."""
    view = memoryview(parcel)
    start = 8 + int.from_bytes(view[:8], "little")
    label = msgspec.msgpack.decode(view[8:start], type=Label)
    ends = start + np.cumsum([entry.size for entry in label.entries], dtype=np.int64)
    return label, (view[end - entry.size : end] for entry, end in zip(label.entries, ends.tolist(), strict=True))
