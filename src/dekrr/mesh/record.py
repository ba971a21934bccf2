"""The events of a site's process, in addition to those of its session, and the listeners that a node tells them.

Events go to run.jsonl, and to Python's `logging` under the name dekrr.
"""

import io
import json
import logging
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from ..disk import create
from ..protocols.calibration import Predicted, errors_at_site, measures_of
from ..protocols.run import Outcome
from ..scaling import AS_IT_IS, Response
from .session.events import CheckpointLost, Event, Exchanged, Gone, Refused, Refusing, Unconfirmed
from .status import Status

RECORD = "run.jsonl"
logger = logging.getLogger("dekrr")
_EXCHANGES_AT_A_TIME = 128  # lines of a record in one write
_TAIL = 1 << 21  # bytes at the end of a record that are read
_LEFT_OUT = ("event", "neighbors", "terms", "site")  # fields that a line of the text log does not repeat
HELD_OUT = ("held-out RSE", "held-out accuracy", "held-out log loss")  # fields of `Finished`


class Started(Event, frozen=True, tag="started"):
    """The process has its rows, and begins to greet its neighbours."""

    run: str
    site: str
    rows: int
    neighbors: list[str]
    terms: dict[str, str]


class ModelNotWritten(Event, frozen=True, tag="model not written"):
    """The model could not be written; the node tries again until its patience is over."""

    path: str
    reason: str


class Exposed(Event, frozen=True, tag="exposed"):
    """Something of the site's sums arrives at a neighbour without masks."""

    reason: str


class LooksWrong(Event, frozen=True, tag="looks wrong"):
    """Rows of this site, or of another one, look wrong beside those of all."""

    reason: str


class Noisy(Event, frozen=True, tag="noisy"):
    """Noise of differential privacy costs much of the model's accuracy, or all of it."""

    reason: str


class Finished(Status, Event, frozen=True, tag="finished"):
    """The result is final and the model is written: the status, and a summary of the outcome.

    `held_out_error` is the mean squared error of tuning by cross-validation, over all sites, in agreed units. The other
    errors are of the site's own model on its own held-out rows, by a second training without them, and of the best that
    the site has alone. They stay here. `rounds ended by` says what ended the rounds early, if anything did.
    """

    rounds: int
    settled: bool
    relative_residual: float = msgspec.field(name="relative residual")
    objective_share: float = msgspec.field(name="objective share")
    sites: int
    rows_of_all_sites: int = msgspec.field(name="rows of all sites")
    sigma: float | UnsetType = UNSET
    alpha: float | UnsetType = UNSET
    consensus: float | UnsetType = UNSET
    own_weight: float | UnsetType = msgspec.field(name="own weight", default=UNSET)
    held_out_error: float | UnsetType = msgspec.field(name="held-out error", default=UNSET)
    held_out_rows: int | UnsetType = msgspec.field(name="held-out rows", default=UNSET)
    held_out_rse: float | UnsetType = msgspec.field(name="held-out RSE", default=UNSET)
    held_out_accuracy: float | UnsetType = msgspec.field(name="held-out accuracy", default=UNSET)
    held_out_log_loss: float | UnsetType = msgspec.field(name="held-out log loss", default=UNSET)
    held_out_rse_alone: float | UnsetType = msgspec.field(name="held-out RSE alone", default=UNSET)
    held_out_log_loss_alone: float | UnsetType = msgspec.field(name="held-out log loss alone", default=UNSET)
    ended_by: str | UnsetType = msgspec.field(name="rounds ended by", default=UNSET)


class Stopped(Status, Event, frozen=True, tag="stopped"):
    """The process ends without a result: the reason, and the status."""

    reason: str


class Released(Status, Event, frozen=True, tag="ended"):
    """The process ends; no neighbour needs it any more."""


def finished(status: Status, outcome: Outcome, response: Response = AS_IT_IS) -> Finished:
    """Return the event that an outcome is final; its errors are of responses that are changed back."""
    tuned, held = outcome.tuned, outcome.held_out
    errors: dict[str, Any] = {
        f"held_out_{name.lower().replace(' ', '_')}": value
        for name, value in errors_at_site(outcome, response.back).items()
    }
    if held is not None and errors:
        errors["held_out_rows"] = held.rows.n_rows
        if held.best_alone:
            alone = Predicted.own(held, held.alone[held.best_alone]).changed(response.back)
            measures = measures_of(outcome.classes)
            for name in measures.keys() - {"accuracy"}:
                errors[f"held_out_{name.lower().replace(' ', '_')}_alone"] = measures[name](alone)
    chosen: dict[str, Any] = (
        {}
        if tuned is None
        else {
            "sigma": tuned.sigma,
            "alpha": tuned.alpha,
            "consensus": tuned.consensus,
            "own_weight": tuned.own_weight,
            "held_out_error": float(np.min(tuned.errors)),
        }
    )
    return Finished(
        **msgspec.structs.asdict(status),
        rounds=outcome.rounds,
        settled=outcome.settled,
        relative_residual=outcome.relative_residual,
        objective_share=outcome.objective_shares[-1],
        sites=outcome.roster.n_sites,
        rows_of_all_sites=outcome.roster.n_rows,
        ended_by=outcome.ended_by or UNSET,
        **chosen,
        **errors,
    )


_WARNINGS = (CheckpointLost, Exposed, Gone, LooksWrong, ModelNotWritten, Noisy, Refused, Refusing, Stopped, Unconfirmed)


def _line(event: Event, **before: Any) -> dict[str, Any]:
    """Return an event as a dictionary that can be encoded as JSON."""
    return {**before, **msgspec.to_builtins(event)}


def events_in(record: Path, kind: str) -> list[dict[str, Any]]:
    """Return the events of a kind at the end of a record; of no record, none."""
    found: list[dict[str, Any]] = []
    with suppress(OSError), record.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - _TAIL))
        for line in file:
            if f'"event":"{kind}"'.encode() in line:
                with suppress(msgspec.DecodeError, UnicodeDecodeError):  # the first line may be cut, and the last
                    found.append(msgspec.json.decode(line, type=dict))
    return found


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
    """Write everything that is logged under the name dekrr to a stream, by default standard error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
