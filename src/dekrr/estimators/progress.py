"""A fit that one can watch: what stage it is in, how far it is, and what it tells a terminal, a log or a callback.

One site's messages say where all sites are, since they go in step. So any network can be watched, and nothing is sent
for it.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from ..messages import Bounds, Coefficients, Features, Message, Offer, RawColumns, Roll, Shortlist, Sums, Unchanged
from ..protocols.reading import MessageReader
from ..protocols.site import Inbox, Outbox, Procedure, Result

_LOG = logging.getLogger("dekrr")
_STAGES: dict[type[Message], str] = {
    Roll: "roll call",
    RawColumns: "columns",
    Bounds: "scales",
    Shortlist: "choosing features",
    Features: "choosing features",
    Sums: "sums over rows",
    Coefficients: "rounds",
    Unchanged: "rounds",
}
_SECONDS_BETWEEN_LINES = 0.1
_SECONDS_BETWEEN_LOGS = 10.0
_READER = MessageReader()


@dataclass(frozen=True)
class FitEvent:
    """Where a fit is.

    Parameters
    ----------
    stage : str
        "roll call", "columns", "scales", "choosing features", "sums over rows", "rounds", or "done".
    exchange : int
        Exchanges of messages so far.
    part, parts : int
        Tuning trains once per bandwidth and fold, and then once for good: how many of these trainings have begun, and
        how many there are.
    round : int
        Rounds of this training so far.
    residual : float
        The last relative residual that is known; NaN where there is none.
    seconds : float
        Since the fit began.

    Examples
    --------
    >>> str(FitEvent("rounds", exchange=40, part=3, parts=21, round=12, residual=1e-3, seconds=4.0))
    'training 3 of 21, rounds: 12, residual 1.0e-03, 4 s, about 30 s left'
    """

    stage: str
    exchange: int
    part: int = 0
    parts: int = 1
    round: int = 0
    residual: float = float("nan")
    seconds: float = 0.0

    @property
    def seconds_left(self) -> float:
        """About how many seconds are left, by the trainings that have begun; NaN where there is nothing to go by."""
        if self.stage == "done":
            return 0.0
        return self.seconds * (self.parts + 0.5 - self.part) / (self.part - 0.5) if self.part > 1 else float("nan")

    def __str__(self) -> str:
        if self.stage == "done":
            return f"done after {self.exchange} exchanges, {self.seconds:.0f} s"
        words = [f"training {self.part} of {self.parts}, "] if self.part and self.parts > 1 else []
        words.append(self.stage)
        if self.stage == "rounds":
            words.append(f": {self.round}, residual {self.residual:.1e}")
        words.append(f", {self.seconds:.0f} s")
        if self.seconds_left == self.seconds_left:
            words.append(f", about {self.seconds_left:.0f} s left")
        return "".join(words)


Callback = Callable[[FitEvent], None]


class Watch:
    """Follows one site's messages, and tells callbacks where the fit is.

    Parameters
    ----------
    callbacks : iterable of callable
    parts : int
        How many trainings the fit has.
    """

    def __init__(self, callbacks: Iterable[Callback], parts: int = 1) -> None:
        self.parts = parts
        self._callbacks = list(callbacks)
        self._start = time.monotonic()
        self._stage = "roll call"
        self._exchange = self._part = self._round = 0
        self._residual = float("nan")

    def follow(self, procedure: Procedure[Result]) -> Procedure[Result]:
        """Return a procedure that does the same, and is watched."""
        inbox: Inbox | None = None
        while True:
            try:
                outbox = procedure.send(inbox)  # type: ignore[arg-type]
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            self._see(outbox)
            inbox = yield outbox

    def tell_end(self) -> None:
        """Tell that the fit is done."""
        self._stage = "done"
        self._tell()

    def _see(self, outbox: Outbox) -> None:
        self._exchange += 1
        message = next(iter(outbox.values()), None)
        stage = "choosing features" if isinstance(message, Offer) else _STAGES.get(type(message))  # type: ignore[arg-type]
        if isinstance(message, Sums):
            self._part, self._round = min(self._part + 1, self.parts), 0
        if isinstance(message, Coefficients | Unchanged):
            self._round += 1
            residual = _READER.residual(message)
            self._residual = float("nan") if residual is None else residual
        self._stage = stage or self._stage
        self._tell()

    def _tell(self) -> None:
        event = FitEvent(
            self._stage,
            self._exchange,
            self._part,
            self.parts,
            self._round,
            self._residual,
            time.monotonic() - self._start,
        )
        for callback in self._callbacks:
            callback(event)


class Line:
    """Writes where a fit is to one line of a terminal.

    Parameters
    ----------
    stream : file
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next = 0.0

    def __call__(self, event: FitEvent) -> None:
        """Show an event, unless the last one was shown just now."""
        if event.stage != "done" and event.seconds < self._next:
            return
        self._next = event.seconds + _SECONDS_BETWEEN_LINES
        self._stream.write(f"\r\x1b[Kfit: {event}" + "\n" * (event.stage == "done"))
        self._stream.flush()


class Log:
    """Writes where a fit is to the log "dekrr": new stages, and every ten seconds."""

    def __init__(self) -> None:
        self._stage: tuple[str, int] = ("", 0)
        self._next = 0.0

    def __call__(self, event: FitEvent) -> None:
        """Log an event where there is something new."""
        stage = event.stage, event.part
        if stage != self._stage or event.seconds >= self._next:
            self._stage, self._next = stage, event.seconds + _SECONDS_BETWEEN_LOGS
            _LOG.info("fit: %s", event)


def callbacks_of(verbose: int, callbacks: Any) -> list[Callback]:
    """Return who is to be told of a fit: the callbacks, and with `verbose` a terminal or, without one, the log."""
    found = list(callbacks or ())
    if verbose:
        found.append(Line(sys.stderr) if sys.stderr is not None and sys.stderr.isatty() else Log())
    return found


@contextmanager
def watching(verbose: int, callbacks: Any, parts: int) -> Iterator[Watch | None]:
    """Give what watches a fit; None where nobody wants to know."""
    told = callbacks_of(verbose, callbacks)
    watch = Watch(told, parts) if told else None
    yield watch
    if watch is not None:
        watch.tell_end()
