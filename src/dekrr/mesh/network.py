"""One site in this process and its neighbours in other processes, over Eclipse Zenoh: their links, and a run.

Links exist along the graph's edges only: endpoints are explicit, and discovery by multicast or gossip is off. Every
link uses mutual TLS. Zenoh's access control binds a key expression to the common name of the certificate at the other
end of the link: only the owner of p's certificate can send in p's name.
"""

import ipaddress
import queue
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import SettingsError
from .keys import Keys
from .session import Phase, Session
from .session.frames import MAX_FRAME, RESERVED
from .session.interpreter import Result

_TICK = 0.25
_LAST_WORDS = 0.3  # seconds to wait until the last frames have left
_MOST_AT_ONCE = 4096  # frames
_HANDSHAKE_MS, _MOST_HANDSHAKES = 3000, 1000
_FULL_LINK_US = 600_000_000
(ALIVE,) = RESERVED


@dataclass(frozen=True)
class Link:
    """The address of a site and the addresses of its neighbours."""

    name: str
    listen: str  # host:port; empty for a site that accepts no connection and dials all its neighbours
    neighbors: Mapping[str, str]  # empty for a neighbour that accepts no connection
    keys: Keys | None  # none means plain TCP, which is allowed on loopback only

    def __post_init__(self) -> None:
        if self.keys is None:
            remote = sorted({e for e in (self.listen, *self.neighbors.values()) if e and not is_loopback(e)})
            if remote:
                raise SettingsError(f"without keys a site may only talk over loopback, not with {', '.join(remote)}")


def is_loopback(endpoint: str) -> bool:
    """Return whether an endpoint is on this machine.

    Examples
    --------
    >>> is_loopback("127.0.0.1:7447"), is_loopback("[::1]:7447"), is_loopback("10.0.0.1:7447")
    (True, True, False)
    """
    host = endpoint.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def zenoh_config(link: Link) -> dict[str, Any]:
    """Return Zenoh's configuration of one site.

    Of the two ends of an edge, the site whose name sorts last connects to the other, unless only one end can be
    connected to.
    """
    protocol = "tls" if link.keys else "tcp"
    dialled = [endpoint for p, endpoint in link.neighbors.items() if endpoint and (p < link.name or not link.listen)]
    config: dict[str, Any] = {
        "mode": "peer",
        "listen": {"endpoints": [f"{protocol}/{link.listen}"] if link.listen else [], "exit_on_failure": True},
        "connect": {
            "endpoints": [f"{protocol}/{endpoint}" for endpoint in dialled],
            "timeout_ms": -1,
            "exit_on_failure": False,
            "retry": {"period_init_ms": 100, "period_max_ms": 1000, "period_increase_factor": 1.5},
        },
        "open": {"return_conditions": {"connect_scouted": False, "declares": False}},
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "transport": {
            "shared_memory": {"enabled": False},  # its pages, with sums in them, would outlive the run
            "unicast": {
                "max_sessions": 2 * len(link.neighbors) + 4,
                "accept_timeout": _HANDSHAKE_MS,  # of whoever connects, as long as it has not proved who it is
                "accept_pending": _MOST_HANDSHAKES,
            },
            "link": {
                "protocols": [protocol],
                "tx": {
                    "lease": 8000,
                    "keep_alive": 4,
                    # A slow link is not a broken one: it is closed when no keep-alive comes, not when it is full.
                    "queue": {"congestion_control": {"block": {"wait_before_close": _FULL_LINK_US}}},
                },
                "rx": {"max_message_size": MAX_FRAME},
            },
        },
    }
    if link.keys:
        config["transport"]["link"]["tls"] = tls_config(link.keys)
        config["access_control"] = access_control(link)
    return config


def tls_config(keys: Keys) -> dict[str, Any]:
    """Return Zenoh's configuration of mutual TLS."""
    return {
        "root_ca_certificate": str(keys.authority),
        "enable_mtls": True,
        "listen_private_key": str(keys.key),
        "listen_certificate": str(keys.certificate),
        "connect_private_key": str(keys.key),
        "connect_certificate": str(keys.certificate),
        "verify_name_on_connect": True,
        "close_link_on_expiration": True,
    }


def access_control(link: Link) -> dict[str, Any]:
    """Return the access rules: a neighbour may act in its own name, and everything else is denied."""
    me, base = link.name, "dekrr/*"
    rules: list[dict[str, Any]] = []
    policies, subjects = [], []

    def allow(subject: str, **kinds: tuple[str, str, list[str]]) -> None:
        for label, (flow, key, messages) in kinds.items():
            rule = {"flows": [flow], "key_exprs": [key], "messages": messages, "permission": "allow"}
            rules.append({"id": f"{label} {subject}", **rule})
        subjects.append({"id": subject, "cert_common_names": [subject]})
        policies.append({"rules": [f"{label} {subject}" for label in kinds], "subjects": [subject]})

    listens = ["declare_liveliness_subscriber", "liveliness_query"]
    for p in link.neighbors:
        allow(
            p,
            hear=("ingress", f"{base}/{p}/{me}", ["put"]),
            speak=("egress", f"{base}/{me}/{p}", ["put"]),
            they_listen=("ingress", f"{base}/*/{p}", ["declare_subscriber"]),
            i_listen=("egress", f"{base}/*/{me}", ["declare_subscriber"]),
            they_live=("ingress", f"{base}/{ALIVE}/{p}", ["liveliness_token"]),
            i_live=("egress", f"{base}/{ALIVE}/{me}", ["liveliness_token"]),
            they_watch=("ingress", f"{base}/{ALIVE}/{me}", listens),
            i_watch=("egress", f"{base}/{ALIVE}/{p}", listens),
        )
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }


class Opens(Protocol):
    """What opens the channels of a run: a `carrier.Carrier`."""

    def open(
        self, run: str, seen: Callable[[str, bool], None]
    ) -> AbstractContextManager[tuple[Any, Mapping[str, Any]]]:
        """Return a context that gives arrivals and a publisher per neighbour; `seen` hears who is up or down."""


class MeshNetwork:
    """Carries one session's frames.

    `wire_bytes`: the bytes of all frames handed to the carrier: messages, framing, hellos and retransmissions.
    """

    def __init__(self, carrier: Opens) -> None:
        self._carrier = carrier
        self.wire_bytes = 0
        self._kept = False
        self._seen: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()

    def run(
        self,
        session: Session[Result],
        keep: Callable[[Result], None] | None = None,
        after: Callable[[float], None] | None = None,
    ) -> Result:
        """Drive a session to its end and return the result.

        `keep`: called once with the result, as soon as it is final and before the neighbours hear so. `after`: called
        after every batch of frames with the seconds spent waiting for it.
        """
        session.start(time.monotonic())
        with self._carrier.open(session.plan.run, lambda name, up: self._seen.put((name, up))) as (arrivals, speak):
            try:
                self._drive(session, arrivals, speak, keep, after)
            except Exception:
                self._flush(session, speak)
                raise
            finally:
                time.sleep(_LAST_WORDS)
        assert session.result is not None
        return session.result

    def _drive(
        self,
        session: Session[Result],
        arrivals: Any,
        speak: Mapping[str, Any],
        keep: Callable[[Result], None] | None,
        after: Callable[[float], None] | None,
    ) -> None:
        next_tick = 0.0

        def send() -> None:
            if not self._kept and session.phase is Phase.FINISHED:
                assert session.result is not None
                self._kept = True
                if keep is not None:
                    keep(session.result)
            self._flush(session, speak)

        send()
        while not session.done(now := time.monotonic()):
            frames = _take(arrivals, _n_awaited(session))
            waited = time.monotonic() - now
            now += waited
            session.receive(frames, now)
            send()
            if now >= next_tick:
                self._take_seen(session, now)
                session.tick(now)
                send()
                next_tick = now + _TICK
            if after is not None:
                after(waited)

    def _take_seen(self, session: Session[Any], now: float) -> None:
        with suppress(queue.Empty):
            while True:
                name, up = self._seen.get_nowait()
                session.learn(name, now, up=up)

    def _flush(self, session: Session[Any], speak: Mapping[str, Any]) -> None:
        for receiver, data in session.out:
            self.wire_bytes += len(data)
            speak[receiver].put(data)
        session.out.clear()


def _n_awaited(session: Session[Any]) -> int:
    """Return the number of frames to wait for: in a run all frames that are missing, otherwise one."""
    return len(session.course.missing) if session.phase is Phase.RUNNING else 1


def _take(arrivals: Any, count: int) -> list[tuple[str, bytes]]:
    """Wait for `count` frames, or for a quarter of a second; return all that have arrived, with their senders.

    A site that wakes up once for all missing frames is faster than a site that wakes up once per frame.
    """
    frames: list[tuple[str, bytes]] = []
    arrival = arrivals.recv()
    while arrival is not None:
        frames.append(arrival)
        if len(frames) == _MOST_AT_ONCE:
            break
        arrival = arrivals.recv() if len(frames) < count else arrivals.try_recv()
    return frames
