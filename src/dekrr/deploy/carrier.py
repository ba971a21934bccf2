"""The links of a standing site, which all its runs share.

There are two ways to a neighbour: a direct link, along an edge of the graph, or a relay that both dial. Frames are
sealed from end to end in either case (`sealing`), so that a relay sees names and sizes. Zenoh sessions are closed and
opened again when the certificate is renewed; the runs go on.
"""

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import zenoh

from ..errors import KeysError, NetworkError
from ..networks.mesh import ALIVE, TICKER, Keys, Link, tls_config, zenoh_config
from ..networks.session.frames import MAX_FRAME
from .identity import Identity
from .sealing import Seal

_TICK = 0.25
_QUEUE = 4096
_ALL = "*"
_TO_ANY = f"dekrr/{_ALL}/{_ALL}"
Observer = Callable[[str, str, bytes], None]


class _Payload(NamedTuple):
    data: bytes

    def to_bytes(self) -> bytes:
        return self.data


class Arrival(NamedTuple):
    """A frame that has arrived, with the key under which it came."""

    key_expr: str
    payload: _Payload


_TICKED = Arrival(f"dekrr/-/{TICKER}/-", _Payload(b""))


@dataclass(frozen=True)
class Ways:
    """How a standing site reaches its neighbours.

    Parameters
    ----------
    direct : Link
        Its neighbours with links of their own.
    relay : str
        The relay's host:port; empty if there is none.
    relayed : tuple of str
        The neighbours that are reached by the relay.
    keys : Keys
    """

    direct: Link
    relay: str
    relayed: tuple[str, ...]
    keys: Keys

    @property
    def neighbors(self) -> tuple[str, ...]:
        """All neighbours."""
        return (*self.direct.neighbors, *self.relayed)


class StandingCarrier:
    """Carries frames between a standing site and its neighbours.

    Parameters
    ----------
    ways : Ways
    identity : Identity
    leaves : callable, optional
        Called with channel, receiver and frame before a frame leaves the site.
    refused : callable, optional
        Called with a neighbour and the reason why something in its name was refused.
    """

    def __init__(
        self,
        ways: Ways,
        identity: Identity,
        leaves: Observer | None = None,
        refused: Callable[[str, str], None] | None = None,
    ) -> None:
        self.ways = ways
        self.identity = identity
        self._leaves = leaves
        self._refused = refused or (lambda neighbor, reason: None)
        self._channels: dict[str, _Channel] = {}
        self._sessions: list[Any] = []
        self._tokens: dict[str, list[Any]] = {}
        self._watchers: dict[str, list[Any]] = {}
        self._lock = threading.RLock()
        self._way_of: dict[str, Any] = {}
        self._connect()

    def renew(self, identity: Identity) -> None:
        """Open all links again, with a new certificate."""
        with self._lock:
            self.identity = identity
            self._disconnect()
            self._connect()

    def close(self) -> None:
        """Close all links."""
        with self._lock:
            self._disconnect()

    @contextmanager
    def open(self, run: str, seen: Callable[[str, bool], None]) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        """Open the channels of a run, one to each neighbour."""
        with self._lock:
            channel = _Channel(self, run, seen)
            self._channels[run] = channel
            self._declare(run)
        try:
            yield channel, channel.publishers
        finally:
            with self._lock:
                del self._channels[run]
                for declared in (*self._tokens.pop(run, []), *self._watchers.pop(run, [])):
                    with suppress(zenoh.ZError):
                        declared.undeclare()

    def put(self, run: str, neighbor: str, data: bytes) -> None:
        """Hand sealed bytes to the network; what is put while there is no link is lost, and sent again later."""
        way = self._way_of.get(neighbor)
        if way is not None:
            with suppress(zenoh.ZError):
                way.put(
                    f"dekrr/{run}/{self.identity.site}/{neighbor}",
                    data,
                    congestion_control=zenoh.CongestionControl.BLOCK,
                    express=True,
                )

    def leaves(self, run: str, neighbor: str, frame: bytes) -> None:
        """Tell the observer what leaves."""
        if self._leaves is not None:
            self._leaves(run, neighbor, frame)

    def refuse(self, neighbor: str, reason: str) -> None:
        """Tell that something in a neighbour's name was refused."""
        self._refused(neighbor, reason)

    def _connect(self) -> None:
        zenoh.init_log_from_env_or("error")
        ways, me = self.ways, self.identity.site
        if ways.direct.neighbors:
            direct = _session(zenoh_config(ways.direct, _ALL), ways.direct.listen or "no address")
            self._sessions.append(direct)
            self._way_of |= dict.fromkeys(ways.direct.neighbors, direct)
        if ways.relayed:
            relayed = _session(_client_config(ways), ways.relay)
            self._sessions.append(relayed)
            self._way_of |= dict.fromkeys(ways.relayed, relayed)
        for session in self._sessions:
            session.declare_subscriber(f"{_TO_ANY}/{me}", self._arrive)
        for run in self._channels:
            self._declare(run)

    def _disconnect(self) -> None:
        self._way_of = {}
        sessions, self._sessions = self._sessions, []
        self._tokens, self._watchers = {}, {}
        for session in sessions:
            with suppress(zenoh.ZError):
                session.close()

    def _declare(self, run: str) -> None:
        """Say that this site is up in a run, and watch its neighbours."""
        me, base = self.identity.site, f"dekrr/{run}/{ALIVE}"
        watch = self._channels[run].watch
        watchers = self._watchers.setdefault(run, [])
        for neighbor, session in self._way_of.items():
            watchers.append(session.liveliness().declare_subscriber(f"{base}/{neighbor}", watch, history=True))
        self._tokens[run] = [session.liveliness().declare_token(f"{base}/{me}") for session in self._sessions]

    def _arrive(self, sample: Any) -> None:
        _, run, sender, _ = str(sample.key_expr).split("/")
        channel = self._channels.get(run)
        if channel is not None and sender in channel.seals:
            channel.arrived.put((sender, sample.payload.to_bytes()))


class _Channel:
    """The channels of one run: arrivals, and a publisher per neighbour. One thread uses it."""

    def __init__(self, carrier: StandingCarrier, run: str, seen: Callable[[str, bool], None]) -> None:
        self._carrier = carrier
        self._run = run
        self._seen = seen
        self.arrived: queue.Queue[tuple[str, bytes]] = queue.Queue(_QUEUE)
        self._up: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.seals = {p: self._seal(p) for p in carrier.ways.neighbors}
        self.publishers = {p: _Publisher(self, p) for p in self.seals}

    def _seal(self, neighbor: str) -> Seal:
        carrier, run = self._carrier, self._run
        return Seal(lambda: carrier.identity, neighbor, run, lambda data: carrier.put(run, neighbor, data))

    def watch(self, sample: Any) -> None:
        """Hear from Zenoh, in its own thread, that a neighbour is up or down."""
        neighbor, up = str(sample.key_expr).split("/")[-1], sample.kind == zenoh.SampleKind.PUT
        if up:
            self._up.put(neighbor)
        self._seen(neighbor, up)

    def send(self, neighbor: str, frame: bytes) -> None:
        """Send a frame."""
        self._carrier.leaves(self._run, neighbor, frame)
        self.seals[neighbor].send(frame)

    def recv(self) -> Arrival:
        """Wait for the next frame; after a quarter of a second return a tick."""
        until = time.monotonic() + _TICK
        while True:
            while not self._up.empty():
                self.seals[self._up.get()].greet()
            try:
                sender, data = self.arrived.get(timeout=max(until - time.monotonic(), 0.001))
            except queue.Empty:
                return _TICKED
            arrival = self._opened(sender, data)
            if arrival is not None:
                return arrival

    def try_recv(self) -> Arrival | None:
        """Return the next frame if there is one."""
        while True:
            try:
                sender, data = self.arrived.get_nowait()
            except queue.Empty:
                return None
            arrival = self._opened(sender, data)
            if arrival is not None:
                return arrival

    def _opened(self, sender: str, data: bytes) -> Arrival | None:
        try:
            frame = self.seals[sender].take(data)
        except KeysError as error:
            self._carrier.refuse(sender, str(error))
            return None
        return None if frame is None else Arrival(f"dekrr/{self._run}/{sender}/-", _Payload(frame))


class _Publisher:
    def __init__(self, channel: _Channel, neighbor: str) -> None:
        self._channel = channel
        self._neighbor = neighbor

    def put(self, frame: bytes) -> None:
        self._channel.send(self._neighbor, frame)


def _client_config(ways: Ways) -> dict[str, Any]:
    """Return Zenoh's configuration of a site that dials a relay. Frames prove themselves, so no rule is needed."""
    return {
        "mode": "client",
        "connect": {
            "endpoints": [f"tls/{ways.relay}"],
            "timeout_ms": -1,
            "exit_on_failure": False,
            "retry": {"period_init_ms": 100, "period_max_ms": 1000, "period_increase_factor": 1.5},
        },
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "transport": {
            "shared_memory": {"enabled": False},
            "link": {
                "protocols": ["tls"],
                "tx": {"lease": 8000, "keep_alive": 4},
                "rx": {"max_message_size": MAX_FRAME},
                "tls": tls_config(ways.keys),
            },
        },
    }


def relay_config(listen: str, sites: tuple[str, ...], keys: Keys) -> dict[str, Any]:
    """Return Zenoh's configuration of a relay: each site may speak in its own name, and hears what is for it alone."""
    rules, subjects, policies = [], [], []

    def rule(site: str, label: str, flow: str, key: str, messages: list[str]) -> str:
        name = f"{label} {site}"
        rules.append({"id": name, "flows": [flow], "key_exprs": [key], "messages": messages, "permission": "allow"})
        return name

    listens = ["declare_liveliness_subscriber", "liveliness_query"]
    for site in sites:
        subjects.append({"id": site, "cert_common_names": [site]})
        allowed = [
            rule(site, "speaks", "ingress", f"dekrr/*/{site}/*", ["put"]),
            rule(site, "hears", "egress", f"{_TO_ANY}/{site}", ["put"]),
            rule(site, "listens", "ingress", f"{_TO_ANY}/{site}", ["declare_subscriber"]),
            rule(site, "lives", "ingress", f"dekrr/*/{ALIVE}/{site}", ["liveliness_token"]),
            rule(site, "watches", "ingress", f"dekrr/*/{ALIVE}/*", listens),
            rule(site, "sees", "egress", f"dekrr/*/{ALIVE}/*", ["liveliness_token"]),
            rule(site, "told who listens", "egress", f"{_TO_ANY}/*", ["declare_subscriber"]),
        ]
        policies.append({"rules": allowed, "subjects": [site]})
    return {
        "mode": "router",
        "listen": {"endpoints": [f"tls/{listen}"], "exit_on_failure": True},
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "transport": {
            "shared_memory": {"enabled": False},
            "unicast": {"max_sessions": 4 * len(sites) + 4, "accept_timeout": 3000, "accept_pending": 1000},
            "link": {
                "protocols": ["tls"],
                "tx": {"lease": 8000, "keep_alive": 4},
                "rx": {"max_message_size": MAX_FRAME},
                "tls": tls_config(keys),
            },
        },
        "access_control": {
            "enabled": True,
            "default_permission": "deny",
            "rules": rules,
            "subjects": subjects,
            "policies": policies,
        },
    }


def _session(config: dict[str, Any], place: str) -> Any:
    try:
        return zenoh.open(zenoh.Config.from_json5(json.dumps(config)))
    except zenoh.ZError as error:
        raise NetworkError(f"{place} cannot be used, or the keys cannot: {error}") from None


@contextmanager
def relay(listen: str, sites: tuple[str, ...], keys: Keys) -> Iterator[None]:
    """Relay frames between sites while the block runs."""
    zenoh.init_log_from_env_or("error")
    session = _session(relay_config(listen, sites, keys), listen)
    try:
        yield
    finally:
        session.close()
