"""How sites pass statements about studies on: each tells its neighbours what it has, and gets what it lacks.

What is new goes to all neighbours at once. A beat has the digest of the ids alone. Where it differs from the
receiver's, for instance because a link was down, the receiver answers with all ids.
"""

import hashlib
from collections.abc import Callable

import msgspec

from ...errors import DekrrError
from .book import Book
from .items import MAX_BYTES, EarlyError, Item

CHANNEL = "studies"
_MOST_AT_ONCE = 100
_MOST_IDS = 100_000


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat", forbid_unknown_fields=True):
    """The digest of the ids of all statements that the sender has."""

    digest: bytes


class Have(msgspec.Struct, frozen=True, array_like=True, tag="have", forbid_unknown_fields=True):
    """The ids of all statements that the sender has, or does not want."""

    ids: list[str]


class Items(msgspec.Struct, frozen=True, array_like=True, tag="items", forbid_unknown_fields=True):
    """Statements that the receiver lacks."""

    items: list[Item]


_decoder: msgspec.msgpack.Decoder[Beat | Have | Items] = msgspec.msgpack.Decoder(Beat | Have | Items)


class Gossip:
    """One site's part in passing statements on; it does no I/O."""

    def __init__(self, book: Book, refuse: Callable[[str, str], None]) -> None:
        self._book = book
        self._refuse = refuse

    def tell(self) -> bytes:
        """Return the frame by which a neighbour can tell whether it lacks something that this site has."""
        return msgspec.msgpack.encode(Beat(self._digest()))

    def news(self) -> list[bytes]:
        """Return frames with the statements that have come since the last ones."""
        return [msgspec.msgpack.encode(Items([item])) for item in self._book.fresh()]

    def _digest(self) -> bytes:
        return hashlib.sha256("".join(sorted(self._book.ids)).encode()).digest()

    def _have(self) -> bytes:
        return msgspec.msgpack.encode(Have(sorted(self._book.ids | self._book.declined)))

    def take(self, sender: str, data: bytes) -> tuple[list[bytes], list[Item]]:
        """Take in a frame; return the frames to answer with, and the statements that are new."""
        try:
            frame = _decoder.decode(data)
        except msgspec.MsgspecError as error:
            self._refuse(sender, f"no statements: {error}")
            return [], []
        if isinstance(frame, Beat):
            return [] if frame.digest == self._digest() else [self._have()], []
        if isinstance(frame, Have):
            theirs = frozenset(frame.ids[:_MOST_IDS])
            lacking = self._book.ids - theirs
            answers = [self._have()] if theirs - self._book.ids - self._book.declined else []
            return [*answers, *self._batches(lacking)], []
        news = []
        for item in frame.items[:_MOST_AT_ONCE]:
            try:
                news += [item] if self._book.add(item) else []
            except EarlyError as error:
                self._refuse(sender, str(error))
            except DekrrError as error:
                self._book.decline(item.id)
                self._refuse(sender, str(error))
        return [], news

    def _batches(self, lacking: frozenset[str]) -> list[bytes]:
        items = self._book.get(lacking)[:_MOST_AT_ONCE]
        assert all(len(item.said) <= MAX_BYTES for item in items)
        return [msgspec.msgpack.encode(Items([item])) for item in items]
