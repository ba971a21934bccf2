"""The page to look at while a site runs, or a whole trial network: one HTML file, and its state as JSON.

A `SiteView` collects what happens to a site, from the events of its node or from the lines that its process logs. The
page asks for the state once a second. It is served on a loopback address alone, and it only tells: nothing can be
changed through it.
"""

import base64
import hashlib
import json
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
from typing import Any

import msgspec

from ..errors import KeysError, NetworkError
from .config import SiteFile
from .events import HELD_OUT
from .session.events import Event
from .status import Status

HOST = "127.0.0.1"
_NOT_STORED = {"cache-control": "no-store"}
_LOCAL = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?", flags=re.I)
MOST_EVENTS = 60
_MOST_POINTS = 400
_MOST_RUNS = 20
_ATTEMPTS = 5
_MOST_OPEN = 100  # connections
_TAIL = 1 << 21  # bytes at the end of a record that are looked through for earlier runs
_NOT_SHOWN = {"exchange", "progress"}
_LEFT_OUT = {"event", "time", "site", "terms", "neighbors", "phase", "run"}
_OF_STATUS = frozenset(field.encode_name for field in msgspec.structs.fields(Status))


class SiteView:
    """What the page shows of one site.

    `folder`: the folder of site.toml.
    """

    def __init__(self, config: SiteFile, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._lock = threading.Lock()
        self._status: dict[str, Any] = {}
        self._curve: list[tuple[int, float]] = []
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self._runs = deque(finished_runs(folder), maxlen=_MOST_RUNS)
        self._ending: dict[str, Any] = {}

    def __call__(self, event: Event) -> None:
        """Take an event of this process's node: a view is a listener."""
        self.note({"time": time.time(), **msgspec.to_builtins(event)})

    def note(self, event: Mapping[str, Any]) -> None:
        """Take an event, or a status, as the object of its JSON."""
        when = event.get("time") or time.time()
        with self._lock:
            if "residual" in event:
                self._add_point(event["round"], event["residual"])
            if "phase" in event:
                self._status = {name: event[name] for name in _OF_STATUS if name in event}
            if event.get("event") == "finished":
                self._runs.append(_run(event, when))
            if event.get("event", "progress") not in _NOT_SHOWN:
                self._events.append({"time": when, "event": event["event"], "text": _text(event)})

    def end(self, code: int, reason: str) -> None:
        """Note that the site's process has ended."""
        with self._lock:
            self._ending = {"code": code, "reason": reason}

    def state(self, status: Status | None = None) -> dict[str, Any]:
        """Return what the page shows; `status` is the newest, if it can be asked for."""
        if status is not None:
            newest = msgspec.to_builtins(status)
            self.note({"event": "progress", **newest})
        with self._lock:
            shown = {
                "site": self._config.site,
                "run": self._config.run,
                "neighbors": sorted(self._config.neighbors),
                "status": self._status or None,
                "curve": list(self._curve),
                "events": list(self._events),
                "runs": list(self._runs),
                "ending": self._ending or None,
            }
        return {**shown, "certificate": _certificate_end(self._config, self._folder)}

    def _add_point(self, round_: int, residual: float | None) -> None:
        if residual is None or residual <= 0:
            return
        if self._curve and round_ < self._curve[-1][0]:
            self._curve.clear()  # a new epoch began
        if self._curve and round_ == self._curve[-1][0]:
            self._curve[-1] = (round_, residual)
        else:
            self._curve.append((round_, residual))
        self._curve = thinned(self._curve)


def thinned(curve: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return a curve of not too many points: every other is left out where there are.

    Examples
    --------
    >>> len(thinned([(k, 1.0) for k in range(801)]))
    401
    """
    return curve if len(curve) <= 2 * _MOST_POINTS else [*curve[:-1:2], curve[-1]]


def shown_event(event: Event, when: float) -> dict[str, Any]:
    """Return an event as the page shows it."""
    about = msgspec.to_builtins(event)
    return {"time": when, "event": about["event"], "text": _text(about)}


def _text(event: Mapping[str, Any]) -> str:
    """Return the fields of an event in words, without those of the status."""
    parts = []
    for name, value in event.items():
        if name in _LEFT_OUT or name in _OF_STATUS:
            continue
        if isinstance(value, float):
            value = f"{value:.4g}"
        parts.append(f"{name} {', '.join(map(str, value)) if isinstance(value, list) else value}")
    return "; ".join(parts)


def _run(event: Mapping[str, Any], when: float) -> dict[str, Any]:
    kept = ("run", "rounds", "settled", "sites", "rows of all sites", "held-out error", "held-out rows", *HELD_OUT)
    return {"time": when, **{name: event[name] for name in kept if name in event}, "held-out": held_out_error(event)}


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


def finished_runs(folder: Path) -> list[dict[str, Any]]:
    """Return the runs that the site's record says have ended with a model."""
    from .record import RECORD

    runs = []
    with suppress(OSError), (folder / RECORD).open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - _TAIL))
        for line in file:
            if b'"event":"finished"' in line:
                with suppress(ValueError, KeyError):
                    event = json.loads(line)
                    runs.append(_run(event, event["time"]))
    return runs


def _certificate_end(config: SiteFile, folder: Path) -> float | None:
    """Return when the site's certificate ends, in seconds since 1970; it may be renewed while the site runs."""
    if config.keys is None:
        return None
    from . import keys

    with suppress(KeysError, OSError):
        return keys.end_of(folder / config.keys.certificate)
    return None


class Page:
    """Serves the page of one site, or of several, on a port of the loopback address until it is closed.

    `port`: 0 takes a free one. `sites`: returns the states of all sites, each as `SiteView.state`. `studies`: returns
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
        self._answers = Answers(
            port,
            "the page",
            {
                "/": (lambda: (200, page), {"content-type": "text/html; charset=utf-8", **headers}),
                "/state.json": (
                    lambda: (200, state()),
                    {"content-type": "application/json", "cache-control": "no-store"},
                ),
            },
        )
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
