"""What a site knows about a neighbour: whether it lives, where it is, its frames that wait, how long to wait for it."""

import hashlib
from dataclasses import dataclass, field

from ...messages import AnyMessage
from .frames import Data
from .plan import Plan

WINDOW = 64  # exchanges that are buffered ahead, and sent again at a time
BUFFER_BYTES = 1 << 28  # of a neighbour; a frame that would make it more is not kept
SMALL_FRAME = 1 << 16  # bytes; smaller ones are always kept
SLOWNESS = 10  # patiences granted to a neighbour that is alive but says nothing, or does not send what it owes


@dataclass
class Peer:
    """What a site knows about a neighbour in the present epoch.

    Parameters
    ----------
    up : bool
        Whether it is known to be alive.
    changed : float
        When that was last learnt.
    heard : float
        When its last frame came.
    asked : float
        When it was last asked for frames.
    position : int
        The last exchange it is known to have sent a frame for.
    met : bool
        Whether it has said hello itself, and with the same terms.
    origin : str
        The code of what it starts from, as its first hello told it.
    finished : bool
    refused : bool
        Whether it knows that the run cannot start.
    frames : dict of exchange to (frame, message)
        Its frames that are not yet used, as they came, and the message in each.
    said : dict of exchange to digest
        Of the frames that it would send again to the last bit.
    garbled : bool
        Whether something from it was refused.
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
        """Learn whether it can be reached; return whether that is news."""
        if self.up == up:
            return False
        self.up, self.changed = up, now
        return True

    def begin_epoch(self) -> None:
        """Forget what belongs to an epoch."""
        self.position, self.finished, self.asked = -1, False, float("-inf")
        self.frames, self.said, self.garbled = {}, {}, False

    def take(self, frame: Data, data: bytes, exchange: int, *, is_exact: bool) -> bool:
        """Keep a frame that is due or early, within limits; compare a late one or a duplicate with what came before.

        Parameters
        ----------
        frame : Data
        data : bytes
            The frame as it came.
        exchange : int
            The exchange that is waited for.
        is_exact : bool
            Whether the neighbour would send the frame again to the last bit.

        Returns
        -------
        bool
            False where the neighbour said something else before.
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
        """Know a frame again that the neighbour would send again to the last bit."""
        self.said[exchange] = hashlib.sha256(data).digest()

    def _has_room(self, n_ahead: int, size: int) -> bool:
        if n_ahead >= WINDOW:
            return False
        return size <= SMALL_FRAME or sum(len(frame) for frame, _ in self.frames.values()) + size <= BUFFER_BYTES

    def is_overdue(self, plan: Plan, exchange: int, since: float, started: float, now: float) -> bool:
        """Return whether its frame is to be waited for no longer.

        A neighbour that waits itself, as its hellos say, is waited for as long as a chain of slow sites may take.

        Parameters
        ----------
        plan : Plan
        exchange : int
            The exchange that is waited for.
        since : float
            The time since which it is.
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
