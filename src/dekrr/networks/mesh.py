"""One site in this process and its neighbours in other processes, over Eclipse Zenoh.

Links exist along the graph's edges only: endpoints are explicit, and discovery by multicast or gossip is off. Every
link uses mutual TLS. Zenoh's access control binds a key expression to the common name of the certificate at the other
end of the link: only the owner of p's certificate can send in p's name.
"""

import ipaddress
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

try:
    import zenoh
except ImportError:
    raise ImportError("sites as processes need Eclipse Zenoh: pip install 'dekrr[mesh]'", name="zenoh") from None

from ..errors import KeysError, NetworkError, SettingsError
from .session import Phase, Session
from .session.frames import MAX_FRAME, RESERVED
from .session.interpreter import Result

_TICK = 0.25
_LAST_WORDS = 0.3  # seconds to wait until the last frames have left
_LOOK_EVERY = 2.0  # seconds
_QUEUE = 4096  # frames in the input queue; a full queue blocks the links
_HANDSHAKE_MS, _MOST_HANDSHAKES = 3000, 1000
_FULL_LINK_US = 600_000_000
ALIVE, STATUS, TICKER = RESERVED


@dataclass(frozen=True)
class Keys:
    """The files of a site's TLS identity: the authority's certificate, the site's certificate, and its private key."""

    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Link:
    """The address of a site and the addresses of its neighbours.

    Parameters
    ----------
    name : str
    listen : str
        host:port; empty for a site that accepts no connection and dials all its neighbours.
    neighbors : mapping of neighbour to host:port
        Empty for a neighbour that accepts no connection.
    keys : Keys or None
        None means plain TCP, which is allowed on loopback only.
    """

    name: str
    listen: str
    neighbors: Mapping[str, str]
    keys: Keys | None

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


def zenoh_config(link: Link, run: str) -> dict[str, Any]:
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
        config["access_control"] = access_control(link, run)
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


def access_control(link: Link, run: str) -> dict[str, Any]:
    """Return the access rules, of one run or, for "*", of all.

    A neighbour may act in its own name. The site itself may ask for its status. Everything else is denied.
    """
    me, base = link.name, f"dekrr/{run}"
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
    status = f"{base}/{STATUS}/{me}"
    allow(
        me,
        asked=("ingress", status, ["query", "declare_queryable"]),
        answers=("egress", status, ["reply", "declare_queryable"]),
    )
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }


Opened = AbstractContextManager[tuple[Any, Mapping[str, Any]]]


class Carrier(Protocol):
    """Carries the frames of a run for a process that takes part in several; see `MeshNetwork.open`."""

    def open(self, run: str, seen: Callable[[str, bool], None]) -> Opened:
        """Return a context that gives arrivals and a publisher per neighbour; `seen` hears who is up or down."""


class Sealed(Protocol):
    """One end of a sealed way to a neighbour."""

    def send(self, frame: bytes) -> None:
        """Seal and send a frame."""

    def take(self, data: bytes) -> bytes | None:
        """Return the frame in what has arrived, if there is one; raise `KeysError` if somebody else has made it."""


class MeshNetwork:
    """Carries one session's frames over Zenoh.

    Parameters
    ----------
    link : Link or Carrier
        The addresses for links of this run's own, or what carries frames for several runs.
    status : callable, optional
        Returns the data for `dekrr status`, in types that msgspec can encode as JSON.
    seal : callable, optional
        Returns the sealed way to a neighbour, from its name and a function that sends bytes there.

    Attributes
    ----------
    wire_bytes : int
        The bytes of all frames handed to Zenoh: messages, framing, hellos and retransmissions.
    """

    def __init__(
        self,
        link: Link | Carrier,
        status: Callable[[], Any] | None = None,
        seal: Callable[[str, Callable[[bytes], None]], Sealed] | None = None,
    ) -> None:
        self.link = link
        self._seal = seal
        self._sealed: dict[str, Sealed] = {}
        self._renewed = _watch_for_change(link.keys.certificate) if isinstance(link, Link) and link.keys else None
        self.wire_bytes = 0
        self._kept = False
        self._status = status
        self._seen: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()

    def run(
        self,
        session: Session[Result],
        keep: Callable[[Result], None] | None = None,
        after: Callable[[float], None] | None = None,
    ) -> Result:
        """Drive a session to its end and return the result.

        Parameters
        ----------
        session : Session
        keep : callable, optional
            Called once with the result, as soon as it is final and before the neighbours hear so.
        after : callable, optional
            Called after every batch of frames with the seconds spent waiting for it.
        """
        session.start(time.monotonic())
        over = False
        while not over:
            with self.open(session.plan.run) as (arrivals, speak):
                try:
                    over = self._drive(session, arrivals, speak, keep, after)
                except Exception:
                    self._flush(session, speak)
                    time.sleep(_LAST_WORDS)
                    raise
                time.sleep(_LAST_WORDS if over else 0.0)
        assert session.result is not None
        return session.result

    def _drive(
        self,
        session: Session[Result],
        arrivals: Any,
        speak: Mapping[str, Any],
        keep: Callable[[Result], None] | None,
        after: Callable[[float], None] | None,
    ) -> bool:
        """Drive the session to its end and return True, or to the renewal of the certificate and return False."""
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
            session.receive(self._opened(session, frames) if self._sealed else frames, now)
            send()
            if now >= next_tick:
                self._take_seen(session, now)
                session.tick(now)
                send()
                next_tick = now + _TICK
            if after is not None:
                after(waited)
            if self._renewed is not None and self._renewed():
                return False  # links are opened again with the new certificate; the session goes on
        return True

    def _take_seen(self, session: Session[Any], now: float) -> None:
        with suppress(queue.Empty):
            while True:
                name, up = self._seen.get_nowait()
                session.learn(name, now, up=up)

    def _flush(self, session: Session[Any], speak: Mapping[str, Any]) -> None:
        for receiver, data in session.out:
            self.wire_bytes += len(data)
            if receiver in self._sealed:
                self._sealed[receiver].send(data)
            else:
                speak[receiver].put(data)
        session.out.clear()

    def _opened(self, session: Session[Any], arrived: list[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
        """Give the frames in what has arrived."""
        for sender, data in arrived:
            try:
                frame = self._sealed[sender].take(data) if sender in self._sealed else data
            except KeysError as error:
                session.distrust(sender, str(error))
                continue
            if frame is not None:
                yield sender, frame

    @contextmanager
    def open(self, run: str) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        """Open the Zenoh session; give the subscriber for arriving frames, and a publisher per neighbour."""
        if not isinstance(self.link, Link):
            with self.link.open(run, lambda name, up: self._seen.put((name, up))) as opened:
                yield opened
            return
        me, base = self.link.name, f"dekrr/{run}"
        zenoh.init_log_from_env_or("error")
        try:
            peer = zenoh.open(zenoh.Config.from_json5(json.dumps(zenoh_config(self.link, run))))
        except zenoh.ZError as error:
            raise NetworkError(
                f"site {me!r} cannot listen on {self.link.listen}, or its keys cannot be used: {error}"
            ) from None
        over = threading.Event()
        ticker = threading.Thread(target=_tick, args=(peer, f"{base}/{TICKER}/{me}", over), daemon=True)
        try:
            arrivals = peer.declare_subscriber(f"{base}/*/{me}", zenoh.handlers.FifoChannel(_QUEUE))
            for p in self.link.neighbors:
                peer.liveliness().declare_subscriber(f"{base}/{ALIVE}/{p}", self._watch, history=True)
            token = peer.liveliness().declare_token(f"{base}/{ALIVE}/{me}")
            if self._status is not None:
                peer.declare_queryable(f"{base}/{STATUS}/{me}", self._answer)
            ticker.start()
            speak = {
                p: peer.declare_publisher(
                    f"{base}/{me}/{p}",
                    congestion_control=zenoh.CongestionControl.BLOCK,
                    reliability=zenoh.Reliability.RELIABLE,
                    express=True,
                )
                for p in self.link.neighbors
            }
            if self._seal is not None:
                self._sealed = {p: self._seal(p, publisher.put) for p, publisher in speak.items()}
            yield arrivals, speak
            token.undeclare()
        finally:
            over.set()
            if ticker.is_alive():
                ticker.join()
            peer.close()

    def _watch(self, sample: Any) -> None:
        self._seen.put((str(sample.key_expr).split("/")[-1], sample.kind == zenoh.SampleKind.PUT))

    def _answer(self, query: Any) -> None:
        assert self._status is not None
        query.reply(query.key_expr, msgspec.json.encode(self._status()))


def _watch_for_change(path: Path) -> Callable[[], bool]:
    """Return a function that tells whether a file was replaced since it last told so; it looks every few seconds."""
    known, looked = path.stat().st_mtime_ns, time.monotonic()

    def has_changed() -> bool:
        nonlocal known, looked
        if time.monotonic() - looked < _LOOK_EVERY:
            return False
        looked, before = time.monotonic(), known
        with suppress(OSError):
            known = path.stat().st_mtime_ns
        return known != before

    return has_changed


def _n_awaited(session: Session[Any]) -> int:
    """Return the number of frames to wait for: in a run all frames that are missing, otherwise one."""
    return len(session.course.missing) if session.phase is Phase.RUNNING else 1


def _take(arrivals: Any, count: int) -> list[tuple[str, bytes]]:
    """Wait for `count` frames or for the ticker; return all frames that have arrived, with their senders.

    A site that wakes up once for all missing frames is faster than a site that wakes up once per frame.
    """
    frames: list[tuple[str, bytes]] = []
    sample = arrivals.recv()
    while sample is not None:
        sender = str(sample.key_expr).split("/")[-2]
        if sender == TICKER:
            count = 0
        else:
            frames.append((sender, sample.payload.to_bytes()))
            if len(frames) == _QUEUE:
                break
        sample = arrivals.recv() if len(frames) < count else arrivals.try_recv()
    return frames


def _tick(peer: Any, key: str, over: threading.Event) -> None:
    """Wake the site's own subscriber at regular intervals, so that no wait is endless."""
    while not over.wait(_TICK):
        with suppress(zenoh.ZError):
            peer.put(key, b"", allowed_destination=zenoh.Locality.SESSION_LOCAL)
