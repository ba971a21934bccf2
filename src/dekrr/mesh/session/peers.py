"""A site's knowledge of a neighbour: is it alive, how far is it, its buffered frames, and how long to wait for it."""

import hashlib
from dataclasses import dataclass, field

from ...messages import AnyMessage
from .frames import Data
from .plan import Plan

WINDOW = 64  # exchanges: the number buffered ahead, and the number retransmitted at a time
BUFFER_BYTES = 1 << 28  # the buffer for one neighbour's frames; a frame that does not fit is dropped
SMALL_FRAME = 1 << 16  # bytes; frames up to this size are always buffered
SLOWNESS = 10  # a neighbour that is alive, but is silent or does not send a due frame, has this many times the patience

SUSPICION = 0.8  # the part of the patience that is left for a neighbour that another site has lost


@dataclass
class Peer:
    """A site's knowledge of a neighbour in the present epoch."""

    up: bool = False  # whether the neighbour is known to be alive
    changed: float = 0.0  # the time at which `up` last changed
    heard: float = 0.0  # the time at which its last frame came
    asked: float = float("-inf")  # the time at which it was last asked a question
    unanswered: float | None = None  # the time of the first question since it was last heard; None if it owes no answer
    n_asked: int = 0  # the number of questions to it
    lacked: int = 0  # the last question that said that frames of it were lost
    answered: int = 0  # the last question that it has answered
    question: int = 0  # the last question from it
    position: int = -1  # the last exchange for which it is known to have sent a frame
    met: bool = False  # whether it has said hello itself, with the same terms
    origin: str = ""  # the code of the rows and settings that it started from, as in its first hello
    finished: bool = False  # whether it knows that all sites have their models
    refused: bool = False  # whether it knows that the run cannot start
    # its frames that are not used yet, as they came, each with its message
    frames: dict[int, tuple[bytes, AnyMessage | None]] = field(default_factory=dict)
    # the digests of those frames that it would send again bit for bit
    said: dict[int, bytes] = field(default_factory=dict)
    garbled: bool = False  # whether a frame from it was refused
    # Whether this site has resumed from its checkpoint, and has not heard from the neighbour since. After a blackout
    # sites come back one by one.
    returning: bool = False

    @property
    def is_there(self) -> bool:
        """Whether the neighbour is alive as far as is known: it is up, or was heard since it went down."""
        return self.up or self.heard > self.changed

    def mark(self, up: bool, now: float) -> bool:
        """Set whether the neighbour can be reached; return whether that is a change."""
        if self.up == up:
            return False
        self.up, self.changed = up, now
        return True

    def ask(self, now: float, *, lacks: bool) -> int:
        """Note a question to the neighbour, and return its number."""
        self.n_asked += 1
        self.asked = now
        self.lacked = self.n_asked if lacks else self.lacked
        self.unanswered = now if self.unanswered is None else self.unanswered
        return self.n_asked

    def hear(self, now: float) -> None:
        """Note that a frame of the neighbour has come."""
        self.heard, self.unanswered, self.returning = now, None, False

    def has_lost(self, exchange: int) -> bool:
        """Return whether the frame of an exchange, which is not there, was lost on its way.

        A link carries frames in their order. The neighbour has sent the frame before a later one that has come. If it
        was asked to send it again, it has done so before its answer.
        """
        return self.position >= exchange and self.answered >= self.lacked

    def begin_epoch(self) -> None:
        """Forget the state that belongs to an epoch."""
        self.position, self.finished, self.asked = -1, False, float("-inf")
        self.frames, self.said, self.garbled = {}, {}, False

    def take(self, frame: Data, data: bytes, exchange: int, *, is_exact: bool) -> bool:
        """Buffer a frame that is due or early, within limits; compare a late frame or a duplicate with the first copy.

        `data`: the frame as it came. `exchange`: the exchange that is waited for. `is_exact`: whether the neighbour
        would send the frame again bit for bit.

        Returns
        -------
        bool
            False if the frame contradicts one that the neighbour sent before.
        """
        self.position = max(self.position, frame.exchange)
        if frame.exchange < exchange or frame.exchange in self.frames:
            said = self.said.get(frame.exchange)
            return said is None or said == hashlib.sha256(data).digest()
        if frame.exchange == exchange or self._has_room(frame.exchange - max(exchange, 0), len(data)):
            self.frames[frame.exchange] = data, frame.message
            if is_exact:
                self.remember(frame.exchange, data)
        return True

    def remember(self, exchange: int, data: bytes) -> None:
        """Keep the digest of a frame that the neighbour would send again bit for bit."""
        self.said[exchange] = hashlib.sha256(data).digest()

    def _has_room(self, n_ahead: int, size: int) -> bool:
        if n_ahead >= WINDOW:
            return False
        return size <= SMALL_FRAME or sum(len(frame) for frame, _ in self.frames.values()) + size <= BUFFER_BYTES

    def is_overdue(
        self, plan: Plan, exchange: int, since: float, started: float, now: float, *, suspected: bool = False
    ) -> bool:
        """Return whether the neighbour's frame is overdue.

        A neighbour may itself wait for others, as its hellos tell. It then has as much time as a chain of slow sites
        may take.

        `exchange`: the exchange that is waited for. `since`: the time at which the wait for this exchange began.
        `started`: the time at which the run started. `suspected`: whether another site has lost it. If it is dead, all
        its neighbours should say so at about the same time.
        """
        waits = self.position < exchange
        if now - since > SLOWNESS * plan.patience * (len(plan.sites) if waits else 1):
            return True
        if self.garbled:
            return now - max(self.changed, since) > plan.patience
        if self.up:
            return self.unanswered is not None and now - self.unanswered > SLOWNESS * plan.patience
        patience = SUSPICION * plan.patience if suspected else plan.patience
        if self.returning and not suspected:
            patience = max(plan.start_patience, plan.patience)
        return now - max(self.heard, self.changed, started) > patience
