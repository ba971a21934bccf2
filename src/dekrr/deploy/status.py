"""The status of a site, for `dekrr status` and for Prometheus."""

import math
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ..networks.session import Session


class NeighborStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a neighbour: up, away or gone, whether its frame is missing, and the bytes sent to it."""

    state: Literal["up", "away", "gone"]
    waited_for: bool = msgspec.field(name="waited for")
    bytes_sent: int = msgspec.field(name="bytes sent")


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a site; in JSON the names of its fields have spaces.

    Parameters
    ----------
    run, site, phase : str
    gone : list of str
        The sites that have left the run.
    lost : list of str
        The sites and links that are lost; a link is written "a|b".
    exchange : int
        The exchange that the site waits in; -1 before the start.
    round : int
        The number of rounds of the solver.
    residual : float or None
        The largest relative residual that the site knows.
    seconds_waiting : float
        The time spent waiting for neighbours.
    message_bytes_sent, wire_bytes_sent : int
        The bytes of messages, and of all frames handed to the network: with framing, hellos and retransmissions.
    neighbors : dict of str to NeighborStatus
    """

    run: str
    site: str
    phase: str
    gone: list[str]
    lost: list[str]
    exchange: int
    round: int
    residual: float | None
    seconds_waiting: float = msgspec.field(name="seconds waiting")
    message_bytes_sent: int = msgspec.field(name="message bytes sent")
    wire_bytes_sent: int = msgspec.field(name="wire bytes sent")
    neighbors: dict[str, NeighborStatus]


def status_of(session: Session[Any], *, seconds_waiting: float, wire_bytes: int) -> Status:
    """Return the status of a session."""
    plan, progress = session.plan, session.course.progress
    sent, missing = progress.traffic.bytes, session.course.missing
    residual = progress.residual
    return Status(
        run=plan.run,
        site=plan.name,
        phase=session.phase.value,
        gone=sorted(session.gone),
        lost=sorted(session.lost),
        exchange=session.exchange,
        round=progress.rounds,
        residual=residual if math.isfinite(residual) else None,
        seconds_waiting=round(seconds_waiting, 3),
        message_bytes_sent=progress.traffic.total_bytes,
        wire_bytes_sent=wire_bytes,
        neighbors={
            name: NeighborStatus(
                state="gone" if name not in session.course.epoch.present else "up" if peer.up else "away",
                waited_for=name in missing,
                bytes_sent=sent[plan.name, name],
            )
            for name, peer in session.peers.items()
        },
    )


def serve_metrics(port: int, status: Callable[[], Status]) -> None:
    """Serve Prometheus metrics of a node on a port of the loopback address."""
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    class Collector:
        def collect(self) -> Any:
            now = status()
            residual = float("nan") if now.residual is None else now.residual
            for name, value, text in (
                ("dekrr_exchange", now.exchange, "The exchange that the site waits in."),
                ("dekrr_round", now.round, "Rounds of the solver."),
                ("dekrr_residual", residual, "The largest relative residual that the site knows of."),
                ("dekrr_waiting_seconds", now.seconds_waiting, "Seconds spent waiting for neighbours."),
                ("dekrr_wire_bytes", now.wire_bytes_sent, "Bytes handed to the network, with framing and repeats."),
            ):
                yield GaugeMetricFamily(name, text, value=value)
            sent = CounterMetricFamily("dekrr_message_bytes", "Bytes of messages sent.", labels=["neighbor"])
            state = GaugeMetricFamily(
                "dekrr_neighbor", "Whether a neighbour is in this state.", labels=["neighbor", "state"]
            )
            for neighbor, about in now.neighbors.items():
                sent.add_metric([neighbor], about.bytes_sent)
                for name in ("up", "away", "gone"):
                    state.add_metric([neighbor, name], float(about.state == name))
            yield sent
            yield state

    registry = CollectorRegistry()
    registry.register(Collector())
    start_http_server(port, addr="127.0.0.1", registry=registry)
