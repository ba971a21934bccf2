"""The status of a site, for `dekrr status` and for Prometheus."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..disk import replacing
from ..errors import KeysError
from .config import SiteFile
from .keys import end_of
from .session import Session

STATE = "state.json"
_STATE_EVERY, _STALE = 1.0, 15.0  # seconds


class NeighborStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a neighbour: up, away or gone, whether its frame is missing, and the bytes sent to it."""

    state: Literal["up", "away", "gone"]
    waited_for: bool = msgspec.field(name="waited for")
    bytes_sent: int = msgspec.field(name="bytes sent")


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a site; in JSON the names of its fields have spaces.

    `message_bytes_sent`, `wire_bytes_sent`: the bytes of messages, and of all frames handed to the network: with
    framing, hellos and retransmissions.
    """

    run: str
    site: str
    phase: str
    gone: list[str]  # the sites that have left the run
    lost: list[str]  # the links that are lost, "a|b", or "a>b" where a says that b breaks the rules
    exchange: int  # the exchange that the site waits in; -1 before the start
    round: int  # the number of rounds of the solver
    residual: float | None  # the largest relative residual that the site knows
    seconds_waiting: float = msgspec.field(name="seconds waiting")  # the time spent waiting for neighbours
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


def of_one_run(config: SiteFile, folder: Path, run: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the status of a site with a single run, where it is known, in the form of `StandingSite.status`."""
    left = None
    if config.keys is not None:
        with suppress(KeysError, OSError):
            left = (end_of(folder / config.keys.certificate) - time.time()) / 86400
    around = {} if run is None else run["neighbors"]
    neighbors = {name: around.get(name, {}).get("state", "away") for name in config.neighbors}
    return {
        "site": config.site,
        "run": config.run,
        "time": time.time(),
        "neighbors": neighbors,
        "certificate days left": left,
        "studies": [],
        "runs": [] if run is None else [run],
        "health": {
            "lives": True,
            "why not ready": [f"{name} is {how}" for name, how in neighbors.items() if how != "up"],
        },
    }


def write_state(path: Path, status: Any) -> None:
    """Write the state of a site, for people and programs; without space on the disk the last one stays."""
    with suppress(OSError), replacing(path) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(status)))


def read_state(path: Path, most_seconds: float = _STALE) -> dict[str, Any] | None:
    """Return what a site wrote about itself a moment ago; None where it does not run."""
    with suppress(OSError, ValueError):
        state: dict[str, Any] = msgspec.json.decode(path.read_bytes())
        return state if time.time() - path.stat().st_mtime < most_seconds else None
    return None


@contextmanager
def telling_state(path: Path, status: Callable[[], Any]) -> Iterator[None]:
    """Write the state every second while the block runs; then there is none."""
    over = threading.Event()

    def tell() -> None:
        while not over.wait(_STATE_EVERY):
            with suppress(RuntimeError):  # the run's own thread has changed what was being read
                write_state(path, status())

    thread = threading.Thread(target=tell, daemon=True)
    write_state(path, status())
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        path.unlink(missing_ok=True)
