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


@dataclass
class Peer:
    """A site's knowledge of a neighbour in the present epoch.

    Parameters
    ----------
    up : bool
        Whether the neighbour is known to be alive.
    changed : float
        The time at which `up` last changed.
    heard : float
        The time at which its last frame came.
    asked : float
        The time at which it was last asked for frames.
    position : int
        The last exchange for which it is known to have sent a frame.
    met : bool
        Whether it has said hello itself, with the same terms.
    origin : str
        The code of the rows and settings that it started from, as in its first hello.
    finished : bool
        Whether it knows that all sites have their models.
    refused : bool
        Whether it knows that the run cannot start.
    frames : dict of exchange to (frame, message)
        Its frames that are not used yet, as they came, each with its message.
    said : dict of exchange to digest
        The digests of those frames that it would send again bit for bit.
    garbled : bool
        Whether a frame from it was refused.
    """

    up: bool = False
    changed: float = 0.0
    heard: float = 0.0
    asked: float = float("-inf")
    position: int = -1
    met: bool = False
    origin: str = ""
    finished: bool = False
    refused: bool = False
    frames: dict[int, tuple[bytes, AnyMessage | None]] = field(default_factory=dict)
    said: dict[int, bytes] = field(default_factory=dict)
    garbled: bool = False

    def mark(self, up: bool, now: float) -> bool:
        """Set whether the neighbour can be reached; return whether that is a change."""
        if self.up == up:
            return False
        self.up, self.changed = up, now
        return True

    def begin_epoch(self) -> None:
        """Forget the state that belongs to an epoch."""
        self.position, self.finished, self.asked = -1, False, float("-inf")
        self.frames, self.said, self.garbled = {}, {}, False

    def take(self, frame: Data, data: bytes, exchange: int, *, is_exact: bool) -> bool:
        """Buffer a frame that is due or early, within limits; compare a late frame or a duplicate with the first copy.

        Parameters
        ----------
        frame : Data
        data : bytes
            The frame as it came.
        exchange : int
            The exchange that is waited for.
        is_exact : bool
            Whether the neighbour would send the frame again bit for bit.

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

    def is_overdue(self, plan: Plan, exchange: int, since: float, started: float, now: float) -> bool:
        """Return whether the neighbour's frame is overdue.

        A neighbour may itself wait for others, as its hellos tell. It then has as much time as a chain of slow sites
        may take.

        Parameters
        ----------
        plan : Plan
        exchange : int
            The exchange that is waited for.
        since : float
            The time at which the wait for this exchange began.
        started : float
            The time at which the run started.
        now : float
        """
        waits = self.position < exchange
        if now - since > SLOWNESS * plan.patience * (len(plan.sites) if waits else 1):
            return True
        if self.garbled:
            return now - max(self.changed, since) > plan.patience
        if self.up:
            return now - max(self.heard, since) > SLOWNESS * plan.patience
        return now - max(self.heard, self.changed, started) > plan.patience
