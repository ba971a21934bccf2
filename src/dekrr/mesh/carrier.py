"""The links of a site, which all its runs share.

There are two ways to a neighbour: a direct link, along an edge of the graph, or a relay that both dial. The frames of a
standing site are sealed from end to end in either case (`sealing`), so that a relay sees names and sizes. Zenoh's
sessions are closed and opened again when the certificate is renewed; the runs go on.
"""

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

try:
    import zenoh
except ImportError:
    raise ImportError("sites as processes need Eclipse Zenoh: pip install 'dekrr[mesh]'", name="zenoh") from None

from ..errors import DataError, DekrrError, KeysError, NetworkError
from .addresses import ALIVE, Ways, client_config, relay_config, zenoh_config
from .identity import SiteIdentity
from .keys import Keys, changed_at
from .sealing import Seal, Sealing

_TICK = 0.25
_QUEUE = 4096  # frames of a run that wait; a full queue blocks the links
_TO_ANY = "dekrr/*/*"
Observer = Callable[[str, str, bytes], None]


class Carrier:
    """Carries frames between a site and its neighbours; links are made when the first run is opened.

    `identity`: none for frames that are not sealed. `leaves`: called with channel, receiver and frame before a frame
    leaves the site. `refused`: called with a neighbour and the reason why something in its name was refused. `sealing`:
    makes one end of a sealed way.
    """

    def __init__(
        self,
        ways: Ways,
        identity: SiteIdentity | None = None,
        leaves: Observer | None = None,
        refused: Callable[[str, str], None] | None = None,
        sealing: type[Seal] = Seal,
    ) -> None:
        self.ways = ways
        self.identity = identity
        self._me = ways.direct.name
        self._leaves = leaves
        self._refused = refused or (lambda neighbor, reason: None)
        self._sealing = sealing
        self._channels: dict[str, Channel] = {}
        self._sessions: list[Any] = []
        self._tokens: dict[str, list[Any]] = {}
        self._watchers: dict[str, list[Any]] = {}
        self._lock = threading.RLock()
        self._way_of: dict[str, Any] = {}
        keys = ways.direct.keys
        self._certificate_seen = 0 if keys is None else changed_at(keys.certificate)

    def renew_if_changed(self, read: Callable[[], SiteIdentity | None]) -> SiteIdentity | None:
        """Open all links again if the file of the certificate has changed; return the identity that it makes.

        An error is no harm: the links may be cut, and the next call tries again.
        """
        keys = self.ways.direct.keys
        if keys is None or (seen := changed_at(keys.certificate)) == self._certificate_seen:
            return None
        try:
            identity = read()
        except (DekrrError, OSError, ValueError) as error:
            raise DataError(f"the new certificate is not used: {error}") from None
        self.renew(identity)
        self._certificate_seen = seen
        return identity

    def renew(self, identity: SiteIdentity | None) -> None:
        """Open all links again, with a new certificate."""
        with self._lock:
            if self.identity is not None:
                self.identity = identity
            self._disconnect()
            self._connect()

    def close(self) -> None:
        """Close all links."""
        with self._lock:
            self._disconnect()

    @contextmanager
    def open(self, run: str, seen: Callable[[str, bool], None]) -> Iterator["Channel"]:
        """Open the channel of a run to all neighbours; `seen` hears who is up or down."""
        with self._lock:
            if not self._sessions:
                self._connect()
            channel = Channel(self, run, seen)
            self._channels[run] = channel
            self._declare(run)
        try:
            yield channel
        finally:
            with self._lock:
                del self._channels[run]
                for declared in (*self._tokens.pop(run, []), *self._watchers.pop(run, [])):
                    with suppress(zenoh.ZError):
                        declared.undeclare()
            with suppress(queue.Empty):
                while True:  # a full queue would keep the links from closing
                    channel.arrived.get_nowait()

    def put(self, run: str, neighbor: str, data: bytes) -> None:
        """Hand sealed bytes to the network; what is put while there is no link is lost, and sent again later."""
        way = self._way_of.get(neighbor)
        if way is not None:
            with suppress(zenoh.ZError):
                way.put(
                    f"dekrr/{run}/{self._me}/{neighbor}",
                    data,
                    congestion_control=zenoh.CongestionControl.BLOCK,
                    express=True,
                )

    def sealed(self, run: str, neighbor: str) -> Sealing:
        """Return this site's end of a way to a neighbour."""

        def put(data: bytes) -> None:
            self.put(run, neighbor, data)

        return Sealing(put) if self.identity is None else self._sealing(self._own_identity, neighbor, run, put)

    def _own_identity(self) -> SiteIdentity:
        assert self.identity is not None
        return self.identity

    def leaves(self, run: str, neighbor: str, frame: bytes) -> None:
        """Tell the observer what leaves."""
        if self._leaves is not None:
            self._leaves(run, neighbor, frame)

    def refuse(self, neighbor: str, reason: str) -> None:
        """Tell that something in a neighbour's name was refused."""
        self._refused(neighbor, reason)

    def _connect(self) -> None:
        zenoh.init_log_from_env_or("error")
        ways, me = self.ways, self._me
        if ways.direct.neighbors:
            direct = _session(zenoh_config(ways.direct), ways.direct.listen or "no address")
            self._sessions.append(direct)
            self._way_of |= dict.fromkeys(ways.direct.neighbors, direct)
        if ways.relayed:
            relayed = _session(client_config(ways), ways.relay)
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
        base = f"dekrr/{run}/{ALIVE}"
        watch = self._channels[run].watch
        watchers = self._watchers.setdefault(run, [])
        for neighbor, session in self._way_of.items():
            watchers.append(session.liveliness().declare_subscriber(f"{base}/{neighbor}", watch, history=True))
        self._tokens[run] = [session.liveliness().declare_token(f"{base}/{self._me}") for session in self._sessions]

    def _arrive(self, sample: Any) -> None:
        _, run, sender, _ = str(sample.key_expr).split("/")
        channel = self._channels.get(run)
        if channel is not None and sender in channel.seals:
            channel.arrived.put((sender, sample.payload.to_bytes()))


class Channel:
    """What one run hears from all neighbours, and sends to each. One thread uses it."""

    def __init__(self, carrier: Carrier, run: str, seen: Callable[[str, bool], None]) -> None:
        self._carrier = carrier
        self._run = run
        self._seen = seen
        self.arrived: queue.Queue[tuple[str, bytes]] = queue.Queue(_QUEUE)
        self._up: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.seals = {p: carrier.sealed(run, p) for p in carrier.ways.neighbors}

    @property
    def revoked(self) -> frozenset[str]:
        """The neighbours whose certificates were revoked after they were linked."""
        return frozenset(p for p, seal in self.seals.items() if seal.is_revoked)

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

    def recv(self) -> tuple[str, bytes] | None:
        """Return the sender of the next frame, and the frame; None if none comes for a quarter of a second."""
        until = time.monotonic() + _TICK
        while not self._up.empty():
            self.seals[self._up.get()].greet()
        while (left := until - time.monotonic()) > 0:
            with suppress(queue.Empty):
                if (opened := self._opened(*self.arrived.get(timeout=left))) is not None:
                    return opened
        return None

    def try_recv(self) -> tuple[str, bytes] | None:
        """Return the next frame with its sender, if there is one."""
        with suppress(queue.Empty):
            while True:
                if (opened := self._opened(*self.arrived.get_nowait())) is not None:
                    return opened
        return None

    def _opened(self, sender: str, data: bytes) -> tuple[str, bytes] | None:
        try:
            frame = self.seals[sender].take(data)
        except KeysError as error:
            self._carrier.refuse(sender, str(error))
            return None
        return None if frame is None else (sender, frame)


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
