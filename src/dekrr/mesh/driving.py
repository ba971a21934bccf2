"""A session of a site over its links: frames come in and go out until the run is over."""

import queue
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .carrier import Carrier, Channel
from .session import Phase, Session
from .session.interpreter import Result

_TICK = 0.25
_LAST_WORDS = 0.3  # seconds to wait until the last frames have left
_MOST_AT_ONCE = 4096  # frames


class MeshNetwork:
    """Carries one session's frames.

    `wire_bytes`: the bytes of all frames handed to the carrier: messages, framing, hellos and retransmissions.
    """

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self.wire_bytes = 0
        self._kept = False
        self._seen: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()

    def run(
        self,
        session: Session[Result],
        keep: Callable[[Result], None] | None = None,
        after: Callable[[float], None] | None = None,
    ) -> Result:
        """Drive a session to its end and return the result.

        `keep`: called once with the result, as soon as it is final and before the neighbours hear so. `after`: called
        after every batch of frames with the seconds spent waiting for it.
        """
        session.start(time.monotonic())
        with self._carrier.open(session.plan.run, lambda name, up: self._seen.put((name, up))) as channel:
            try:
                self._drive(session, channel, keep, after)
            except Exception:
                self._flush(session, channel)
                raise
            finally:
                time.sleep(_LAST_WORDS)
        assert session.result is not None
        return session.result

    def _drive(
        self,
        session: Session[Result],
        channel: Channel,
        keep: Callable[[Result], None] | None,
        after: Callable[[float], None] | None,
    ) -> None:
        next_tick = 0.0

        def send() -> None:
            if not self._kept and session.phase is Phase.FINISHED:
                assert session.result is not None
                self._kept = True
                if keep is not None:
                    keep(session.result)
            self._flush(session, channel)

        send()
        while not session.done(now := time.monotonic()):
            frames = _take(channel, _n_awaited(session))
            waited = time.monotonic() - now
            now += waited
            session.receive(frames, now)
            send()
            if now >= next_tick:
                self._take_seen(session, now)
                session.tick(now)
                send()
                next_tick = now + _TICK
            if after is not None:
                after(waited)

    def _take_seen(self, session: Session[Any], now: float) -> None:
        with suppress(queue.Empty):
            while True:
                name, up = self._seen.get_nowait()
                session.learn(name, now, up=up)

    def _flush(self, session: Session[Any], channel: Channel) -> None:
        for receiver, data in session.out:
            self.wire_bytes += len(data)
            channel.send(receiver, data)
        session.out.clear()


def _n_awaited(session: Session[Any]) -> int:
    """Return the number of frames to wait for: in a run all frames that are missing, otherwise one."""
    return len(session.course.missing) if session.phase is Phase.RUNNING else 1


def _take(arrivals: Any, count: int) -> list[tuple[str, bytes]]:
    """Wait for `count` frames, or for a quarter of a second; return all that have arrived, with their senders.

    A site that wakes up once for all missing frames is faster than a site that wakes up once per frame.
    """
    frames: list[tuple[str, bytes]] = []
    arrival = arrivals.recv()
    while arrival is not None:
        frames.append(arrival)
        if len(frames) == _MOST_AT_ONCE:
            break
        arrival = arrivals.recv() if len(frames) < count else arrivals.try_recv()
    return frames
