"""The listeners of a node: events go to run.jsonl, and to Python's `logging` under the name dekrr."""

import io
import json
import logging
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from ..disk import create
from .events import Exposed, LooksWrong, ModelNotWritten, Noisy, Stopped
from .session.events import CheckpointLost, Event, Exchanged, Gone, Refused, Refusing, Unconfirmed

RECORD = "run.jsonl"
logger = logging.getLogger("dekrr")
_EXCHANGES_AT_A_TIME = 128  # lines of a record in one write
_LEFT_OUT = ("event", "neighbors", "terms", "site")  # fields that a line of the text log does not repeat
_WARNINGS = (CheckpointLost, Exposed, Gone, LooksWrong, ModelNotWritten, Noisy, Refused, Refusing, Stopped, Unconfirmed)


def _line(event: Event, **before: Any) -> dict[str, Any]:
    """Return an event as a dictionary that can be encoded as JSON."""
    return {**before, **msgspec.to_builtins(event)}


class Record:
    """A listener that appends every event to a file of JSON lines, which `dekrr report` reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.exists():
            create(path, b"", private=True)
        self._file: io.FileIO | None = io.FileIO(path, "ab")
        self._whole = path.read_bytes().rfind(b"\n") + 1
        self._file.truncate(self._whole)  # drop a line that a crash has cut short
        self._waiting: list[tuple[float, Event]] = []

    def __call__(self, event: Event) -> None:
        """Write an event; exchanges are collected and written together."""
        self._waiting.append((time.time(), event))
        if isinstance(event, Exchanged) and len(self._waiting) < _EXCHANGES_AT_A_TIME:
            return
        lines, self._waiting = self._waiting, []
        self._write(b"".join(msgspec.json.encode(_line(event, time=when)) + b"\n" for when, event in lines))

    def _write(self, data: bytes) -> None:
        """Append whole lines; after an error stop recording for good, because a run must not fail with its record."""
        if self._file is None:
            return
        written = 0
        try:
            while written < len(data):
                written += self._file.write(data[written:])
            self._whole += written
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self._whole)
            with suppress(OSError):
                self._file.close()
            with suppress(OSError):
                print(
                    f"{self._path} can no longer be written, and the run goes on without it: {error}",
                    file=sys.stderr,
                    flush=True,
                )
            self._file = None


class Log:
    """A listener that passes every event to Python's `logging`, under the name dekrr.

    Exchanges have the level DEBUG, events that may need attention WARNING, and all others INFO.

    `**about`: what JSON lines have beside: the study and the number of its run.
    """

    def __init__(self, site: str, **about: Any) -> None:
        self._site = site
        self._about = {"site": site, **about}

    def __call__(self, event: Event) -> None:
        """Log an event; handlers find it in the log record's attributes `site` and `event`."""
        level = logging.WARNING if isinstance(event, _WARNINGS) else logging.INFO
        level = logging.DEBUG if isinstance(event, Exchanged) else level
        if logger.isEnabledFor(level):
            details = _line(event)
            words = [f"{key}={_plain(value)}" for key, value in details.items() if key not in _LEFT_OUT]
            text = " ".join([self._site, details["event"], *words])
            logger.log(level, "%s", text, extra={**self._about, "event": event})


class JsonFormatter(logging.Formatter):
    """Formats the events of `Log` as JSON, one object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line of JSON; a log record without an event has its text under `message`."""
        event, about = getattr(record, "event", None), {"time": record.created, "level": record.levelname}
        about |= {name: getattr(record, name) for name in ("study", "number") if hasattr(record, name)}
        if not isinstance(event, Event):
            return json.dumps({**about, "event": "log", "message": record.getMessage()})
        return json.dumps(_line(event, **about, site=getattr(record, "site", "")))


def log_to(stream: IO[str] | None = None, *, as_json: bool = False) -> None:
    """Write everything that is logged under the name dekrr to a stream, by default standard error.

    `as_json`: write JSON objects instead of lines of text.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
