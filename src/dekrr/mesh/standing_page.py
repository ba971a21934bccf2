"""The page of a standing site: its neighbours, its studies with their versions, and the runs under way.

All of it comes from the site's status, from the records of its runs, and from what it logs.
"""

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .page import MOST_EVENTS, finished_runs, shown_event, thinned
from .record import RECORD
from .session.events import Event
from .studies.versions import HELD_BACK

_TAIL = 1 << 20  # bytes at the end of a record that are read for the curve of a run under way


class StandingView(logging.Handler):
    """Collects what a standing site logs, and gives its state to the page.

    `status`: returns the site's status, as `StandingSite.status`. `studies`: the folder of the site's studies.
    """

    def __init__(self, status: Callable[[], Mapping[str, Any]], studies: Path) -> None:
        super().__init__(logging.INFO)
        self._ask = status
        self._studies = studies
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self._validated: dict[Path, tuple[int, float | None]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line of the log."""
        event = getattr(record, "event", None)
        if isinstance(event, Event):
            self._events.append(shown_event(event, record.created))
        else:
            self._events.append({"time": record.created, "event": "log", "text": record.getMessage()})

    def sites(self) -> list[dict[str, Any]]:
        """Return the state of the site, as the page shows it; the runs under way are under `live`."""
        status = self._ask()
        live = [self._live(run, status) for run in status["runs"]]
        left = status["certificate days left"]
        return [
            {
                "site": status["site"],
                "run": "",
                "neighbors": sorted(status["neighbors"]),
                "status": combined(status),
                "curve": [],
                "curves": [run.pop("curve") for run in live],
                "live": live,
                "events": list(self._events),
                "runs": [],
                "ending": None,
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

    def _place(self, study: str, number: int) -> Path:
        return self._studies / study / "versions" / str(number)

    def _validation_error(self, study: str, version: Mapping[str, Any]) -> str | float | None:
        if version["state"] not in ("done", HELD_BACK):
            return None
        record = self._place(study, version["number"]) / RECORD
        with suppress(OSError):
            changed = record.stat().st_mtime_ns
            if self._validated.get(record, (0, None))[0] != changed:
                ends = [run["held-out"] for run in finished_runs(record.parent)]
                self._validated[record] = changed, ends[-1] if ends else None
            return self._validated[record][1]
        return None

    def _live(self, run: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
        """Return a run under way: which study it is of, its status, and its curve."""
        digest, _, number = run["run"].rpartition("-")
        names = [study["study"] for study in status["studies"] if digest and study["digest"].startswith(digest)]
        curve = _curve(self._place(names[0], int(number)) / RECORD) if names and number.isdecimal() else []
        if run["residual"]:
            curve.append((run["round"], run["residual"]))
        named = f"{names[0]}, run {number}" if names else run["run"]
        return {**run, "name": named, "curve": thinned(curve)}


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


def _curve(record: Path) -> list[tuple[int, float]]:
    """Return rounds and residuals from the record of a run under way."""
    points: dict[int, float] = {}
    with suppress(OSError), record.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - _TAIL))
        for line in file:
            if b'"event":"exchange"' in line:
                with suppress(ValueError, KeyError, TypeError):
                    event = json.loads(line)
                    if event["residual"] > 0:
                        points[event["round"]] = event["residual"]
    return sorted(points.items())
