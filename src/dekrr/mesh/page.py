"""The page to look at while a site runs, or a whole trial network: one HTML file, and its state as JSON.

A `SiteView` collects what a site logs, and joins it to its status and to the records of its runs. The page asks for the
state once a second. It is served on a loopback address alone, and it only tells: nothing can be changed through it.
"""

import base64
import hashlib
import logging
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..errors import NetworkError
from .record import HELD_OUT, RECORD, events_in
from .session.events import Event
from .status import Status
from .studies.versions import HELD_BACK, place_of

HOST = "127.0.0.1"
_LOCAL = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?", flags=re.I)
_MOST_EVENTS = 60
_MOST_POINTS = 400
_MOST_RUNS = 20
_ATTEMPTS = 5
_MOST_OPEN = 100  # connections
_NOT_SHOWN = {"exchange", "progress"}
_LEFT_OUT = {"event", "time", "site", "terms", "neighbors", "phase", "run"}
_OF_STATUS = frozenset(field.encode_name for field in msgspec.structs.fields(Status))


class SiteView(logging.Handler):
    """What the page shows of one site: its status, its runs and studies, and what it logs.

    `status`: returns the site's status, as `StandingSite.status` does; without `runs` before it is known. `folder`: of
    site.toml.
    """

    def __init__(self, status: Callable[[], Mapping[str, Any]], folder: Path) -> None:
        super().__init__(logging.INFO)
        self._ask = status
        self._folder = folder
        self._events: deque[dict[str, Any]] = deque(maxlen=_MOST_EVENTS)
        self._ending: dict[str, Any] | None = None
        self._known: dict[Path, tuple[int, _Recorded]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line of the log."""
        event = getattr(record, "event", None)
        about = (
            msgspec.to_builtins(event) if isinstance(event, Event) else {"event": "log", "text": record.getMessage()}
        )
        self.note({**about, "time": record.created})

    def note(self, event: Mapping[str, Any]) -> None:
        """Take an event as the object of its JSON."""
        if event.get("event", "progress") not in _NOT_SHOWN:
            self._events.append({"time": event["time"], "event": event["event"], "text": _text(event)})

    def end(self, code: int, reason: str) -> None:
        """Note that the site's process has ended."""
        self._ending = {"code": code, "reason": reason}

    def sites(self) -> list[dict[str, Any]]:
        """Return the state of the site; the runs of studies that are under way are under `live`."""
        status = self._ask()
        is_alone, left = bool(status["run"]), status["certificate days left"]
        live = [self._live(run, status) for run in status["runs"]]
        return [
            {
                "site": status["site"],
                "run": status["run"],
                "neighbors": sorted(status["neighbors"]),
                "status": combined(status) if live or not is_alone else None,
                "curves": [run.pop("curve") for run in live],
                "live": [] if is_alone else live,
                "events": list(self._events),
                "runs": self._recorded(self._folder).runs if is_alone else [],
                "ending": self._ending,
                "certificate": None if left is None else time.time() + 86400 * left,
            }
        ]

    def studies(self) -> list[dict[str, Any]]:
        """Return the studies that the site knows, each with its versions, the newest first."""
        found = []
        for study in self._ask()["studies"]:
            versions = [
                {
                    **version,
                    "current": version["number"] == study["current"],
                    "validation error": self._validation_error(study["study"], version),
                }
                for version in reversed(study["versions"])
            ]
            waits = study["state"].removeprefix("waits for ").split(", ") if "waits for" in study["state"] else []
            about = {"name": study["study"], "proposer": study["proposer"], "state": study["state"]}
            about |= {"why": study.get("why", "")}
            found.append({**about, "waits for": waits, "versions": versions})
        return found

    def _validation_error(self, study: str, version: Mapping[str, Any]) -> str | float | None:
        if version["state"] not in ("done", HELD_BACK):
            return None
        ends = self._recorded(place_of(self._folder, study, version["number"])).runs
        return ends[-1]["held-out"] if ends else None

    def _live(self, run: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
        """Return a run under way: which study it is of, its status, and its curve."""
        digest, _, number = run["run"].rpartition("-")
        names = [study["study"] for study in status["studies"] if digest and study["digest"].startswith(digest)]
        place = place_of(self._folder, names[0], int(number)) if names and number.isdecimal() else None
        curve = list(self._recorded(place or self._folder).curve) if place or status["run"] else []
        if run["residual"] and (not curve or curve[-1][0] <= run["round"]):
            curve.append((run["round"], run["residual"]))
        named = f"{names[0]}, run {number}" if names else run["run"]
        return {**run, "name": named, "curve": thinned(curve)}

    def _recorded(self, place: Path) -> "_Recorded":
        """Return what the record in a folder tells; it is read again when it has changed."""
        record = place / RECORD
        with suppress(OSError):
            changed = record.stat().st_mtime_ns
            if self._known.get(record, (0, None))[0] != changed:
                self._known[record] = changed, _recorded_in(record)
            return self._known[record][1]
        return _Recorded([], [])


class _Recorded(NamedTuple):
    """What a record tells: the rounds and residuals of its last run, and the runs that have ended with a model."""

    curve: list[tuple[int, float]]
    runs: list[dict[str, Any]]


def _recorded_in(record: Path) -> _Recorded:
    curve: list[tuple[int, float]] = []
    for event in events_in(record, "exchange"):
        point = event["round"], event["residual"]
        if curve and point[0] < curve[-1][0]:
            curve.clear()  # a new run or epoch began
        if point[1]:
            curve[len(curve) - bool(curve and curve[-1][0] == point[0]) :] = [point]
    return _Recorded(thinned(curve), [_run(event) for event in events_in(record, "finished")][-_MOST_RUNS:])


def thinned(curve: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return a curve of not too many points: every other is left out where there are.

    Examples
    --------
    >>> len(thinned([(k, 1.0) for k in range(801)]))
    401
    """
    while len(curve) > 2 * _MOST_POINTS:
        curve = [*curve[:-1:2], curve[-1]]
    return curve


def combined(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return one status for all runs under way at a site, in the form of a `Status`.

    Examples
    --------
    >>> about = combined({"site": "a", "neighbors": {"b": "up"}, "runs": []})
    >>> about["phase"], about["neighbors"]
    ('standing', {'b': {'state': 'up', 'waited for': False, 'bytes sent': 0}})
    """
    runs = status["runs"]
    residuals = [run["residual"] for run in runs if run["residual"] is not None]
    neighbors = {
        name: {
            "state": state,
            "waited for": any(run["neighbors"].get(name, {}).get("waited for", False) for run in runs),
            "bytes sent": sum(run["neighbors"].get(name, {}).get("bytes sent", 0) for run in runs),
        }
        for name, state in status["neighbors"].items()
    }
    return {
        "site": status["site"],
        "phase": "standing" if not runs else runs[0]["phase"] if len(runs) == 1 else f"{len(runs)} runs",
        "gone": sorted({site for run in runs for site in run["gone"]} - {status["site"]}),
        "round": max((run["round"] for run in runs), default=0),
        "residual": max(residuals, default=None),
        "message bytes sent": sum(run["message bytes sent"] for run in runs),
        "wire bytes sent": sum(run["wire bytes sent"] for run in runs),
        "neighbors": neighbors,
    }


def _text(event: Mapping[str, Any]) -> str:
    """Return the fields of an event in words, without those of the status."""
    if event["event"] == "log":
        return str(event.get("text", event.get("message", "")))
    parts = []
    for name, value in event.items():
        if name in _LEFT_OUT or name in _OF_STATUS:
            continue
        if isinstance(value, float):
            value = f"{value:.4g}"
        parts.append(f"{name} {', '.join(map(str, value)) if isinstance(value, list) else value}")
    return "; ".join(parts)


def _run(event: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("time", "run", "rounds", "settled", "sites", "rows of all sites", "held-out error", "held-out rows")
    shown = {name: event[name] for name in (*kept, *HELD_OUT) if name in event}
    return {**shown, "held-out": held_out_error(event)}


def held_out_error(event: Mapping[str, Any]) -> str | float | None:
    """Return the error of a run at a site: on its held-out rows, in words, or that of tuning, a number, if any.

    Examples
    --------
    >>> held_out_error({"held-out RSE": 0.123456, "held-out rows": 120})
    'RSE 0.1235 on 120 rows'
    >>> held_out_error({"held-out error": 0.25})
    0.25
    """
    found = [f"{name.removeprefix('held-out ')} {event[name]:.4g}" for name in HELD_OUT if name in event]
    if found:
        return f"{', '.join(found)} on {event.get('held-out rows', 0)} rows"
    return event.get("held-out error")


class Page:
    """Serves the page of one site, or of several, on a port of the loopback address until it is closed.

    `port`: 0 takes a free one. `sites`: returns the states of all sites, as `SiteView.sites` does. `studies`: returns
    the studies that the site knows. Each is a dictionary: name, proposer, state, `waits for` (a list of sites), and
    `versions`, a list of dictionaries with number, time, `validation error` and current.
    """

    def __init__(
        self,
        port: int,
        title: str,
        sites: Callable[[], Sequence[Mapping[str, Any]]],
        studies: Callable[[], Sequence[Mapping[str, Any]]] | None = None,
    ) -> None:
        def state() -> bytes:
            for attempt in range(_ATTEMPTS):
                try:
                    known = studies() if studies is not None else []
                    about = {"title": title, "time": time.time(), "sites": sites(), "studies": known}
                    return msgspec.json.encode(about)
                except RuntimeError:  # the site's own thread has changed what was being read
                    if attempt == _ATTEMPTS - 1:
                        raise
            raise AssertionError("not reached")

        page, headers = _page()
        html = {"content-type": "text/html; charset=utf-8", **headers}
        json = {"content-type": "application/json", "cache-control": "no-store"}
        answers: dict[str, Answer] = {"/": (lambda: (200, page), html), "/state.json": (lambda: (200, state()), json)}
        self._answers = Answers(port, "the page", answers)
        self.url = self._answers.url

    def close(self) -> None:
        """Stop serving the page."""
        self._answers.close()


Answer = tuple[Callable[[], tuple[int, bytes]], Mapping[str, str]]


class Answers:
    """Gives a few answers on a port of the loopback address until it is closed.

    `port`: 0 takes a free one. `what`: what is served, for errors. `answers`: for each path what gives status and body,
    and the headers.
    """

    def __init__(self, port: int, what: str, answers: Mapping[str, Answer]) -> None:
        handler = type("Handler", (_Handler,), {"answers": answers})
        try:
            self._server = _Server((HOST, port), handler)
        except OSError as error:
            raise NetworkError(f"{what}: port {port} of {HOST} cannot be served: {error}") from None
        self.url = f"http://{HOST}:{self._server.server_address[1]}/"
        threading.Thread(target=self._server.serve_forever, daemon=True, name=what).start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """A thread for each connection; of those that ask nothing only so many stay, and the oldest goes."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *given: Any) -> None:
        self._open: dict[Any, None] = {}  # in the order of their coming
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a request in a thread of its own."""
        self._open[request] = None
        if len(self._open) > _MOST_OPEN:
            oldest = next(iter(self._open.copy()))
            self._open.pop(oldest, None)
            with suppress(OSError):  # its thread closes it then
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell nothing: it is the caller who has gone."""


class _Handler(BaseHTTPRequestHandler):
    """Answers with one of a few bodies."""

    answers: Mapping[str, Answer] = {}
    protocol_version = "HTTP/1.0"  # a connection for each request: none outlives the page
    server_version, sys_version = "dekrr", ""
    timeout = 30.0  # seconds in which a request must arrive

    def do_GET(self) -> None:
        """Answer a request; one for a host that is not this machine may come from a page on the web, and is refused."""
        if not _LOCAL.fullmatch(self.headers.get("host", "")):
            self._send(421, b"this page is for 127.0.0.1 alone", {"content-type": "text/plain"})
            return
        body, headers = self.answers.get(self.path.partition("?")[0], (None, {}))
        if body is None:
            there = " and ".join(self.answers)
            self._send(404, f"there is {there}".encode(), {"content-type": "text/plain"})
        else:
            self._send(*body(), headers)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body)), "x-content-type-options": "nosniff"}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the page asks every second."""


def _page() -> tuple[bytes, dict[str, str]]:
    """Return the HTML file, and headers that keep it from loading anything else."""
    page = files(__package__).joinpath("page.html").read_bytes()
    script = re.search(rb"<script>(.*?)</script>", page, flags=re.S)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1]).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
    return page, {"content-security-policy": policy + "connect-src 'self'; img-src data:"}
