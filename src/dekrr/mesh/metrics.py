"""What programs ask a site: metrics for Prometheus, and, of a standing site, whether it lives and whether it is ready.

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

from .page import Answer, Answers
from .status import Status
from .studies.versions import HELD_BACK

_STATES = ("approved", "waits", "over")


def serve(port: int, status: Callable[[], dict[str, Any]]) -> Answers:
    """Serve /metrics, /health and /ready on a port of the loopback address.

    `port`: 0 takes a free one. `status`: as `StandingSite.status`.
    """

    def health() -> tuple[int, bytes]:
        about = status()["health"]
        return (200 if about["lives"] else 503), msgspec.json.encode(about)

    def ready() -> tuple[int, bytes]:
        about = status()["health"]
        return (503 if about["why not ready"] else 200), msgspec.json.encode(about)

    json = {"content-type": "application/json"}
    answers = {"/metrics": _metrics(lambda: families(status())), "/health": (health, json), "/ready": (ready, json)}
    return Answers(port, "--metrics", answers)


def serve_run(port: int, status: Callable[[], Status]) -> Answers:
    """Serve /metrics of a single run on a port of the loopback address."""
    return Answers(port, "--metrics", {"/metrics": _metrics(lambda: families_of_run(status()))})


def _metrics(collect: Callable[[], Iterator[Any]]) -> Answer:
    """Return how metrics are answered with."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(type("Collector", (), {"collect": lambda self: collect()})())
    return (lambda: (200, generate_latest(registry))), {"content-type": "text/plain; version=0.0.4"}


def families(now: dict[str, Any]) -> Iterator[Any]:
    """Yield the metrics of a status."""
    from prometheus_client.core import GaugeMetricFamily as Gauge

    health = now["health"]
    for name, value, text in (
        ("dekrr_lives", health["lives"], "Whether the main loop goes round."),
        ("dekrr_ready", not health["why not ready"], "Whether the site can take part in runs now."),
        ("dekrr_certificate_days", now["certificate days left"], "Days until the certificate expires."),
        ("dekrr_audit_lines", now["audit lines"], "Lines of the audit trail."),
        ("dekrr_runs_under_way", len(now["runs"]), "Runs under way."),
        ("dekrr_proposals_waiting", len(now["waits for a person"]), "Studies that a person here must decide about."),
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


def families_of_run(now: Status) -> Iterator[Any]:
    """Yield the metrics of a run."""
    from prometheus_client.core import CounterMetricFamily
    from prometheus_client.core import GaugeMetricFamily as Gauge

    for name, value, text in (
        ("dekrr_exchange", now.exchange, "The exchange that the site waits in."),
        ("dekrr_round", now.round, "Rounds of the solver."),
        ("dekrr_residual", math.nan if now.residual is None else now.residual, "The largest known relative residual."),
        ("dekrr_waiting_seconds", now.seconds_waiting, "Seconds spent waiting for neighbours."),
        ("dekrr_wire_bytes", now.wire_bytes_sent, "Bytes handed to the network, with framing and repeats."),
    ):
        yield Gauge(name, text, value=value)
    sent = CounterMetricFamily("dekrr_message_bytes", "Bytes of messages sent.", labels=["neighbor"])
    state = Gauge("dekrr_neighbor", "Whether a neighbour is in this state.", labels=["neighbor", "state"])
    for neighbor, about in now.neighbors.items():
        sent.add_metric([neighbor], about.bytes_sent)
        for name in ("up", "away", "gone"):
            state.add_metric([neighbor, name], float(about.state == name))
    yield from (sent, state)


def tell_systemd(text: str) -> None:
    """Tell systemd something, for instance WATCHDOG=1; do nothing where it has not started this process."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if path:
        with suppress(OSError, AttributeError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
            way.connect("\0" + path[1:] if path.startswith("@") else path)
            way.sendall(text.encode())
