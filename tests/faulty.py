"""All sessions of a run in one process, under faults: a simulation of the mesh, with its own clock and network.

Time is simulated, and every fault is drawn from a seed. Frames are lost, delayed, duplicated and reordered. Links fail.
Sites crash, and come back from their journals, from a journal that lost its end, without a journal, or never. The same
seed always gives the same run.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import numpy as np

from dekrr.errors import DekrrError
from dekrr.mesh.session import Phase, Session
from dekrr.mesh.session.events import Event, Listener, Unconfirmed
from dekrr.mesh.session.frames import Data, frame_decoder
from dekrr.mesh.session.journal import Record
from dekrr.messages import Offer
from dekrr.protocols.run import Outcome

TICK = 0.5
_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Record)


class MemoryJournal:
    """A journal that lasts as long as the object."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []
        self._off = False

    def append(self, record: Record) -> None:
        """Keep a record."""
        if not self._off:
            self._kept.append(_encoder.encode(record))

    def flush(self) -> None:
        """Do nothing: records need not be written."""

    def records(self) -> Iterator[Record]:
        """Yield all records."""
        return map(_decoder.decode, list(self._kept))

    def discard(self) -> None:
        """Erase all records, and store none from now on."""
        self._kept.clear()
        self._off = True

    def tear(self, n_records: int) -> None:
        """Drop the last records, as a crash may do."""
        del self._kept[len(self._kept) - n_records :]


@dataclass(frozen=True)
class Crash:
    """A crash of a site, and its restart.

    Parameters
    ----------
    at : float
        The time of the crash.
    back : float or None
        The time of the restart; None for no restart.
    torn : int
        The number of records that its journal loses.
    forgets : bool
        Whether the whole journal is lost.
    """

    site: str
    at: float
    back: float | None
    torn: int = 0
    forgets: bool = False


@dataclass(frozen=True)
class Outage:
    """A link that carries no frames from `start` to `end`."""

    edge: tuple[str, str]
    start: float
    end: float


@dataclass(frozen=True)
class Faults:
    """The faults of one run.

    Parameters
    ----------
    drop, double : float
        The probabilities that a frame is lost, and that it is duplicated.
    delay : float
        The mean delay of a frame. Delays are random, so that frames are reordered.
    late : mapping of site to float
        The sites that start late, and their times.
    """

    drop: float = 0.0
    double: float = 0.0
    delay: float = 0.01
    crashes: tuple[Crash, ...] = ()
    outages: tuple[Outage, ...] = ()
    late: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Ending:
    """The end of a site's part in a run.

    Parameters
    ----------
    gone : frozenset of str
        The sites that were gone in the epoch of the outcome.
    lost : frozenset of str
        The sites and links that were lost in that epoch.
    error : DekrrError or None
        The reason why there is no outcome; None also for a site that crashed and never came back.
    """

    outcome: Outcome | None = None
    gone: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    error: DekrrError | None = None


class FaultyNetwork:
    """Runs one session per site under faults.

    Parameters
    ----------
    open_session : callable
        Makes a site's session from its name, its journal and an observer.

    Attributes
    ----------
    endings : dict of site to Ending
        The endings, without the sites that crashed for good.
    injected : Counter of str
        The number of faults that happened, by kind.
    offers : dict of (lost, site) to message
        The features that each site announced to its neighbours in each epoch.
    unconfirmed : set of str
        The sites that kept their result, although not all neighbours confirmed that it is final.
    hung : list of str
        The sites that had not ended when the time was over; this is always a defect.
    """

    def __init__(
        self,
        neighbors: Mapping[str, Any],
        open_session: Callable[[str, MemoryJournal, Listener], Session[Outcome]],
        faults: Faults,
        seed: int,
    ) -> None:
        self.neighbors = {name: tuple(neighbors[name]) for name in neighbors}
        self.endings: dict[str, Ending] = {}
        self.injected: Counter[str] = Counter()
        self.offers: dict[tuple[frozenset[str], str], Offer] = {}
        self.unconfirmed: set[str] = set()
        self.hung: list[str] = []
        self._open_session = open_session
        self._faults = faults
        self._rng = np.random.default_rng(seed)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._sessions: dict[str, Session[Outcome]] = {}
        self._journals = {name: MemoryJournal() for name in self.neighbors}
        self._out: set[frozenset[str]] = set()
        self._lives: Counter[str] = Counter()

    def run(self, seconds: float = 2000.0) -> dict[str, Ending]:
        """Run until every site has ended or the time is over, and return the endings."""
        for name in self.neighbors:
            self._at(float(self._faults.late.get(name, 0.0)), self._begin, name)
        for crash in self._faults.crashes:
            self._at(crash.at, self._crash, crash)
        for outage in self._faults.outages:
            self._at(outage.start, self._cut, outage.edge)
            self._at(outage.end, self._mend, outage.edge)
        while self._events:
            self._now, _, action, arguments = heapq.heappop(self._events)
            if self._now > seconds:
                break
            action(*arguments)
        self.hung = sorted(self._sessions)
        return self.endings

    def _at(self, time: float, action: Callable[..., None], *arguments: Hashable) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, action, arguments))

    def _begin(self, name: str) -> None:
        if name in self._sessions or name in self.endings:
            return
        self._lives[name] += 1
        session = self._open_session(name, self._journals[name], partial(self._observe, name))
        self._sessions[name] = session
        with self._ending(name):
            session.start(self._now)
        self._tell_neighbors(name)
        self._at(self._now + TICK * float(self._rng.uniform()), self._tick, name, self._lives[name])

    def _observe(self, name: str, event: Event) -> None:
        if isinstance(event, Unconfirmed):
            self.unconfirmed.add(name)

    def _tick(self, name: str, life: int) -> None:
        if name in self._sessions and self._lives[name] == life:
            with self._ending(name):
                self._sessions[name].tick(self._now)
            self._at(self._now + TICK, self._tick, name, life)

    def _crash(self, crash: Crash) -> None:
        if crash.site not in self._sessions:
            return
        self.injected["crash"] += 1
        session = self._sessions.pop(crash.site)
        if session.phase is Phase.FINISHED:  # its model is written; it stayed only for its neighbours
            self.endings[crash.site] = Ending(session.result, session.gone, session.lost)
        self._journals[crash.site].tear(crash.torn)
        if crash.forgets:
            self._journals[crash.site] = MemoryJournal()
        self._tell_neighbors(crash.site)
        if crash.back is not None:
            self.injected["restart"] += 1
            self._at(crash.back, self._begin, crash.site)

    def _cut(self, edge: tuple[str, str]) -> None:
        self.injected["outage"] += 1
        self._out.add(frozenset(edge))
        self._tell_neighbors(edge[0])

    def _mend(self, edge: tuple[str, str]) -> None:
        self._out.discard(frozenset(edge))
        self._tell_neighbors(edge[0])

    def _tell_neighbors(self, name: str) -> None:
        """Schedule that both ends of each of a site's links learn, some time later, whether the other is reachable."""
        for other in self.neighbors[name]:
            for one, two in ((name, other), (other, name)):
                self._at(self._now + float(self._rng.uniform(0, 1)), self._learn, one, two)

    def _learn(self, name: str, other: str) -> None:
        if name not in self._sessions:
            return
        reachable = other in self._sessions and frozenset((name, other)) not in self._out
        with self._ending(name):
            self._sessions[name].learn(other, self._now, up=reachable)

    def _ending(self, name: str) -> "_Ending":
        return _Ending(self, name)

    def end_if_over(self, name: str, error: BaseException | None) -> bool:
        """Send the session's frames; remove the session, and return True, if it is done or has failed."""
        session = self._sessions.get(name)
        if session is None:
            return False
        self._post(name, session)
        if isinstance(error, DekrrError):
            self.endings[name] = Ending(error=error, gone=session.gone, lost=session.lost)
        elif session.done(self._now):
            self.endings[name] = Ending(session.result, session.gone, session.lost)
        else:
            return False
        del self._sessions[name]
        self._tell_neighbors(name)
        return True

    def _post(self, name: str, session: Session[Outcome]) -> None:
        for receiver, data in session.out:
            self._note_offer(name, data)
            for _ in range(self._copies()):
                self._at(self._now + self._delay(), self._deliver, name, receiver, data)
        session.out.clear()

    def _copies(self) -> int:
        if self._rng.uniform() < self._faults.drop:
            self.injected["drop"] += 1
            return 0
        if self._rng.uniform() < self._faults.double:
            self.injected["double"] += 1
            return 2
        return 1

    def _delay(self) -> float:
        return float(self._rng.exponential(self._faults.delay))

    def _deliver(self, sender: str, receiver: str, data: bytes) -> None:
        if receiver not in self._sessions or frozenset((sender, receiver)) in self._out:
            return
        with self._ending(receiver):
            self._sessions[receiver].receive([(sender, data)], self._now)

    def _note_offer(self, name: str, data: bytes) -> None:
        frame = frame_decoder.decode(data)
        if isinstance(frame, Data) and isinstance(frame.message, Offer):
            self.offers.setdefault((frozenset(frame.gone), name), frame.message)


class _Ending:
    """Ends a site's session when the block raises a `DekrrError`, or when the session is done."""

    def __init__(self, network: FaultyNetwork, name: str) -> None:
        self._network = network
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        self._network.end_if_over(self._name, error)
        return isinstance(error, DekrrError)


def draw_faults(names: list[str], edges: list[tuple[str, str]], patience: float, seed: int) -> Faults:
    """Draw the faults of one run."""
    rng = np.random.default_rng([seed, 1])
    span = 3 * patience
    return Faults(
        drop=float(rng.choice([0.0, 0.02, 0.2])),
        double=float(rng.choice([0.0, 0.1])),
        delay=float(rng.choice([0.005, 0.05, 0.3])),
        crashes=tuple(_draw_crashes(names, patience, rng)),
        outages=tuple(_draw_outages(edges, patience, rng)),
        late={name: float(rng.uniform(0, span)) for name in names if rng.uniform() < 0.1},
    )


def _draw_crashes(names: list[str], patience: float, rng: np.random.Generator) -> Iterator[Crash]:
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        at = float(rng.uniform(0, patience))
        away = float(rng.choice([0.3, 0.8, 2.0]) * patience * rng.uniform())
        back = None if rng.uniform() < 0.3 else at + away
        yield Crash(str(rng.choice(names)), at, back, int(rng.choice([0, 0, 1, 3])), bool(rng.uniform() < 0.15))


def _draw_outages(edges: list[tuple[str, str]], patience: float, rng: np.random.Generator) -> Iterator[Outage]:
    for _ in range(rng.choice([0, 0, 1, 3])):
        start = float(rng.uniform(0, patience))
        length = float(rng.choice([0.5, 1.5]) * patience * rng.uniform())
        yield Outage(edges[int(rng.integers(len(edges)))], start, start + length)
