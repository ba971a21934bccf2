"""What programs ask a site: metrics for Prometheus, whether it lives, and whether it is ready.

systemd is told, too, where it has started the site (`Type=notify`, `WatchdogSec=`): a site whose main loop stands still
is started again.
"""

import math
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from .page import Answers
from .studies.versions import HELD_BACK

_STATES = ("approved", "waits", "over")
_PROGRESS = {
    "exchange": ("dekrr_exchange", "The exchange that the site waits in."),
    "round": ("dekrr_round", "Rounds of the solver."),
    "residual": ("dekrr_residual", "The largest known relative residual."),
    "seconds waiting": ("dekrr_waiting_seconds", "Seconds spent waiting for neighbours."),
    "wire bytes sent": ("dekrr_wire_bytes", "Bytes handed to the network, with framing and repeats."),
}


def serve(port: int, status: Callable[[], dict[str, Any]]) -> Answers:
    """Serve /metrics, /health and /ready on a port of the loopback address; 0 takes a free one."""

    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(type("Collector", (), {"collect": lambda self: families(status())})())
    text, json = {"content-type": "text/plain; version=0.0.4"}, {"content-type": "application/json"}

    def health() -> tuple[int, bytes]:
        about = status()["health"]
        return (200 if about["lives"] else 503), msgspec.json.encode(about)

    def ready() -> tuple[int, bytes]:
        about = status()["health"]
        return (503 if about["why not ready"] else 200), msgspec.json.encode(about)

    metrics = (lambda: (200, generate_latest(registry))), text
    return Answers(port, "--metrics", {"/metrics": metrics, "/health": (health, json), "/ready": (ready, json)})


def families(now: dict[str, Any]) -> Iterator[Any]:
    """Yield the metrics of a status: of the site, and of its runs."""
    from prometheus_client.core import CounterMetricFamily
    from prometheus_client.core import GaugeMetricFamily as Gauge

    health, left = now["health"], now["certificate days left"]
    for name, value, text in (
        ("dekrr_lives", health["lives"], "Whether the main loop goes round."),
        ("dekrr_ready", not health["why not ready"], "Whether the site can take part in runs now."),
        ("dekrr_certificate_days", math.nan if left is None else left, "Days until the certificate expires."),
        ("dekrr_audit_lines", now.get("audit lines", 0), "Lines of the audit trail."),
        ("dekrr_runs_under_way", len(now["runs"]), "Runs under way."),
        ("dekrr_proposals_waiting", len(now.get("waits for a person", [])), "Studies that a person must decide about."),
    ):
        yield Gauge(name, text, value=float(value))
    neighbors = Gauge("dekrr_neighbor_up", "Whether a neighbour is up.", labels=["neighbor"])
    for name, state in now["neighbors"].items():
        neighbors.add_metric([name], float(state == "up"))
    studies = Gauge("dekrr_studies", "Studies by their state.", labels=["state"])
    words = [study["state"].split()[0] for study in now["studies"]]
    for state in _STATES:
        others = state == "over" and sum(word not in _STATES for word in words)
        studies.add_metric([state], float(words.count(state) + others))
    current = Gauge("dekrr_current_version", "The version in use.", labels=["study"])
    last = Gauge("dekrr_last_run", "The number of the last run, by how it stands.", labels=["study", "state"])
    held = Gauge("dekrr_held_back", "Whether the model of the last run is held back.", labels=["study"])
    for study in now["studies"]:
        current.add_metric([study["study"]], float(study["current"] or 0))
        for version in study["versions"][-1:]:
            last.add_metric([study["study"], version["state"]], float(version["number"]))
            held.add_metric([study["study"]], float(version["state"] == HELD_BACK))
    yield from (neighbors, studies, current, last, held)
    named = [] if now["run"] else ["run"]  # a single run needs no name
    progress = {key: Gauge(name, text, labels=named) for key, (name, text) in _PROGRESS.items()}
    sent = CounterMetricFamily("dekrr_message_bytes", "Bytes of messages sent.", labels=[*named, "neighbor"])
    states = Gauge("dekrr_neighbor", "Whether a neighbour is in this state.", labels=[*named, "neighbor", "state"])
    for run in now["runs"]:
        names = [run["run"]] * len(named)
        for key, gauge in progress.items():
            gauge.add_metric(names, math.nan if run[key] is None else run[key])
        for neighbor, about in run["neighbors"].items():
            sent.add_metric([*names, neighbor], about["bytes sent"])
            for state in ("up", "away", "gone"):
                states.add_metric([*names, neighbor, state], float(about["state"] == state))
    yield from (*progress.values(), sent, states)


def tell_systemd(text: str) -> None:
    """Tell systemd something, for instance WATCHDOG=1; do nothing where it has not started this process."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if path:
        with suppress(OSError, AttributeError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
            way.connect("\0" + path[1:] if path.startswith("@") else path)
            way.sendall(text.encode())
