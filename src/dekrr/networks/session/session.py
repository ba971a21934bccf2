"""One site's side of a run, without I/O: who agreed, who is late, who is gone, and what to send again.

A session drives the site's node procedure. It is told what arrived and what time it is, and says what to send.
The mesh and the faulty network carry its frames. docs/protocol.md has the state diagram and the reasons.

- A *hello* says who the sender is, the terms it runs on, who is gone to its knowledge, and the exchange it
  waits in. Whoever gets one sends the frames that the sender lacks, which is all the recovery there is.
- A *data* frame is one neighbour's message in one exchange, or that it has none.

The sites that are gone name the epoch: every frame carries them, sets that meet are united, and a larger set
starts the procedure again without those sites, with the features that were already chosen.
"""

import hashlib
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..errors import AbsenceError, AgreementError, DisconnectedError, GoneError, MessageError
from ..messages import (
    MAX_BYTES,
    AnyMessage,
    Bounds,
    Census,
    Chosen,
    Coefficients,
    Features,
    Message,
    Roll,
    Unchanged,
    check,
    decode,
    decoder_of,
    encode,
)
from ..protocols import consensus
from ..protocols.outcome import Outcome
from ..protocols.site import Outbox, Procedure
from .journal import Ended, Journal, NoJournal, Opening, Received
from .local import Traffic

RETRY = 1.0  # seconds after which a site asks for what it lacks
WINDOW = 64  # exchanges that are buffered ahead, and sent again at a time
BUFFER_BYTES = 1 << 28  # of a neighbour; a frame that would make it more is not kept
SMALL_FRAME = 1 << 16  # bytes; smaller ones are always kept
MAX_FRAME = MAX_BYTES + (1 << 16)  # bytes of a message and of what is around it
REFUSING = 5.0  # seconds for which a site that refuses the run tells its neighbours why
SLOWNESS = 10  # patiences granted to a neighbour that is alive but says nothing, or does not send what it owes
_OTHER_ROWS = "site {!r} came back with other rows or features than it had"
_LONGEST_CENSUS = 6  # exchanges a site
_REASON = 300  # characters of what was wrong with a frame that are told
# What a site says again to the last bit, wherever it starts again.
_EXACT = frozenset({Roll, Census, Bounds, Chosen, Features})


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello", forbid_unknown_fields=True):
    """What a site says about itself.

    Parameters
    ----------
    run, sender : str
    gone : tuple of str
        The epoch: sites that have been declared gone, sorted.
    exchange : int
        The exchange whose frames the sender waits for; -1 before the start.
    terms : dict of str to str
        What all sites must agree on.
    agreed : tuple of str
        Sites known to have the same terms, and to have heard so from all their neighbours.
    asks : bool
        Whether the sender wants a hello back.
    finished : bool
        Whether the sender knows that all sites have their models.
    refusal : str
        Why the run cannot start, if it cannot.
    origin : str
        Tells whether the rows and settings that the sender starts from are others than before.
    """

    run: str
    sender: str
    gone: tuple[str, ...]
    exchange: int
    terms: dict[str, str]
    agreed: tuple[str, ...]
    asks: bool
    finished: bool
    refusal: str
    origin: str


class Data(msgspec.Struct, frozen=True, array_like=True, tag="data", forbid_unknown_fields=True):
    """One neighbour's message in one exchange; None means that it has none."""

    run: str
    sender: str
    gone: tuple[str, ...]
    exchange: int
    message: AnyMessage | None


Frame = Hello | Data
_encoder = msgspec.msgpack.Encoder()
frame_decoder: msgspec.msgpack.Decoder[Frame] = decoder_of(Frame)
Offer = Features | Chosen
Maker = Callable[[tuple[str, ...], Offer | None], Procedure[Outcome]]
Observer = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Plan:
    """What a site knows of a run before it starts.

    Parameters
    ----------
    run : str
        The run's id.
    name : str
    neighbors : tuple of str
    sites : frozenset of str
        All sites of the run.
    terms : mapping of str to str
        What all sites must agree on.
    digest : str
        Of the terms and of this site's rows; a checkpoint with another one is refused. It stays at the site: whoever
        knows all rows but one could try values for that one.
    origin : str
        What neighbours know of it: the same whenever the site starts from the same, and otherwise not to be told from
        chance.
    patience : float
        Seconds after which a neighbour that cannot be reached is declared gone.
    start_patience : float
        Seconds to wait for all sites before the start.
    """

    run: str
    name: str
    neighbors: tuple[str, ...]
    sites: frozenset[str]
    terms: Mapping[str, str]
    digest: str = ""
    origin: str = ""
    patience: float = 60.0
    start_patience: float = 600.0


@dataclass
class Peer:
    """What a site knows about a neighbour in the present epoch.

    Parameters
    ----------
    up : bool
        Whether it is known to be alive.
    changed : float
        When that was last learnt.
    heard : float
        When its last frame came.
    asked : float
        When it was last asked for frames.
    position : int
        The last exchange it is known to have sent a frame for.
    met : bool
        Whether it has said hello itself, and with the same terms.
    origin : str
        What its first hello said that it starts from.
    finished : bool
    refused : bool
        Whether it knows that the run cannot start.
    frames : dict of exchange to (frame, message)
        Its frames that are not yet used, as they came, and the message in each.
    said : dict of exchange to digest
        Of the frames that it would send again to the last bit.
    garbled : bool
        Whether something from it was refused.
    """

    up: bool = False
    changed: float = 0.0
    heard: float = 0.0
    asked: float = float("-inf")
    position: int = -1
    met: bool = False
    origin: str = ""
    finished: bool = False
    refused: bool = False
    frames: dict[int, tuple[bytes, AnyMessage | None]] = field(default_factory=dict)
    said: dict[int, bytes] = field(default_factory=dict)
    garbled: bool = False

    @property
    def n_bytes(self) -> int:
        """Bytes of the frames that are not yet used."""
        return sum(len(frame) for frame, _ in self.frames.values())

    def begin_epoch(self) -> None:
        """Forget what belongs to an epoch."""
        self.position, self.finished, self.asked = -1, False, float("-inf")
        self.frames, self.said, self.garbled = {}, {}, False


class Session:
    """One site's side of a run.

    Parameters
    ----------
    plan : Plan
    make : callable
        Makes the node procedure for given neighbours and, in a later epoch, the message that told of the features.
    journal : Journal, optional
        The checkpoint to resume from and to write.
    observe : callable, optional
        Told what happens: a word, and details.

    Attributes
    ----------
    out : list of (receiver, bytes)
        What to send; the driver takes it away.
    exchange : int
        The exchange that is waited for; -1 before the start.
    gone : frozenset of str
    present : tuple of str
        The neighbours that are not gone, sorted.
    result : Outcome or None
        What the procedure returned.
    finished : bool
        Whether the result stands: all sites have theirs, or did not object in time.
    refusal : str
        Why the run cannot start, if it cannot.
    """

    def __init__(
        self, plan: Plan, make: Maker, journal: Journal | None = None, observe: Observer | None = None
    ) -> None:
        self.plan = plan
        self.out: list[tuple[str, bytes]] = []
        self.exchange = -1
        self._set_gone(frozenset())
        self.agreed: set[str] = set()
        self.peers = {name: Peer() for name in plan.neighbors}
        self.result: Outcome | None = None
        self.finished = False
        self.refusal = ""
        self.traffic = Traffic()
        self.rounds = 0
        self.residual = float("nan")
        self._make = make
        self._journal: Journal = journal or NoJournal()
        self._observe = observe or (lambda word, details: None)
        self._offer: Offer | None = None
        self._sent: list[dict[str, bytes]] = []
        self._procedure: Generator[Outbox, Mapping[str, AnyMessage], Outcome] | None = None
        self._started = self._agreed_at = self._waiting_since = self._finished_at = 0.0
        self._refused: set[tuple[str, str]] = set()

    @property
    def phase(self) -> str:
        """Where the site is: greeting, refusing, running, closing or finished."""
        if self.finished:
            return "finished"
        if self.refusal:
            return "refusing"
        if self.result is not None:
            return "closing"
        return "running" if self.exchange >= 0 else "greeting"

    @property
    def missing(self) -> tuple[str, ...]:
        """The neighbours whose frame for this exchange has not come."""
        return tuple(name for name in self.present if self.exchange not in self.peers[name].frames)

    @property
    def n_awaited(self) -> int:
        """How many frames must come before there is anything to do: those that are missing while it runs, or one."""
        return len(self.missing) if self.phase == "running" else 1

    def start(self, now: float) -> None:
        """Resume from the journal, if it has anything, and greet the neighbours."""
        self._started = self._waiting_since = now
        for peer in self.peers.values():
            peer.changed = peer.heard = now
        self._resume(now)
        self._greet(self.present, now, asks=True)
        self._start_if_agreed(now)
        self._advance(now)

    def done(self, now: float) -> bool:
        """Return whether nobody needs this site any more, or has had a patience of time to say so."""
        if not self.finished:
            return False
        return all(self.peers[p].finished for p in self.present) or now - self._finished_at > self.plan.patience

    def peer_up(self, name: str, now: float) -> None:
        """Learn that a neighbour is alive and can be reached."""
        self._mark(name, True, now)
        if name in self.present:
            self._greet([name], now, asks=True)

    def peer_down(self, name: str, now: float) -> None:
        """Learn that a neighbour died or cannot be reached."""
        self._mark(name, False, now)

    def receive(self, frames: Iterable[tuple[str, bytes]], now: float) -> None:
        """Take in frames, each with who it came from; what is wrong with one is told once, and changes nothing."""
        for sender, data in frames:
            self._take(sender, data, now)
        self._advance(now)

    def _take(self, sender: str, data: bytes, now: float) -> None:
        try:
            frame = self._check(sender, data)
        except MessageError as error:
            self.refuse(sender, str(error))
            if sender in self.peers:
                self.peers[sender].garbled = True
            return
        self.peers[sender].heard = now
        if self.refusal:
            self._tell_refusal(frame, now)
            return
        if sender in self.gone or self.finished:
            if isinstance(frame, Hello):
                self._answer(frame, now)
            return
        if frame.gone != self._epoch:
            self._take_news(frame, now)
        if not isinstance(frame, Data):
            self._take_hello(frame, now)
        elif frame.gone == self._epoch:
            self._take_data(frame, data, now)

    def tick(self, now: float) -> None:
        """Write the checkpoint, ask again for what is missing, and give up on who is away for too long."""
        if self.finished:
            return
        self._keep(None)
        if self.exchange < 0:
            self._tick_greeting(now)
            return
        overdue = [name for name in self.missing if self._is_overdue(name, now)]
        if overdue and self.result is not None:
            self._observe("unconfirmed", {"missing": overdue})
            self._finish(now)
            return
        if overdue:
            away = ", ".join(overdue)
            self._change(self.gone | set(overdue), now, f"{away} missing at exchange {self.exchange}")
        for name in self.missing:
            if now - max(self.peers[name].asked, self._waiting_since) >= RETRY:
                self._greet([name], now, asks=True)
        self._advance(now)

    def _set_gone(self, gone: frozenset[str]) -> None:
        self.gone = gone
        self._epoch = tuple(sorted(gone))
        self.present = tuple(sorted(name for name in self.plan.neighbors if name not in gone))

    def _check(self, sender: str, data: bytes) -> Frame:
        if sender not in self.peers:
            raise MessageError(f"site {sender!r} is not a neighbour")
        if len(data) > MAX_FRAME:
            raise MessageError(f"a frame of {len(data)} bytes; the most is {MAX_FRAME}")
        try:
            frame = frame_decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise MessageError(f"not a frame: {error}") from None
        if frame.sender != sender:
            raise MessageError(f"a frame in the name of {frame.sender!r}")
        if frame.run != self.plan.run:
            raise MessageError(f"a frame of run {frame.run!r}; this is run {self.plan.run!r}")
        if frame.gone and (not self.plan.sites.issuperset(frame.gone) or sender in frame.gone):
            raise MessageError(f"a frame that declares {sorted(frame.gone)} gone")
        if isinstance(frame, Data):
            if frame.exchange < 0:
                raise MessageError(f"a frame of exchange {frame.exchange}")
            if frame.message is not None:
                check(frame.message, sender)
                if isinstance(frame.message, Roll):
                    self._check_roll(frame.message, frame)
                elif isinstance(frame.message, Census):
                    self._check_census(frame.message, frame)
        return frame

    def refuse(self, sender: str, reason: str) -> None:
        """Tell once that something from `sender` was refused, and why."""
        reason = reason if len(reason) <= _REASON else f"{reason[:_REASON]}..."
        if (sender, reason) not in self._refused and len(self._refused) < 1000:
            self._refused.add((sender, reason))
            self._observe("refused", {"sender": sender, "reason": reason})

    def _mark(self, name: str, up: bool, now: float) -> None:
        if name in self.peers and self.peers[name].up != up:
            self.peers[name].up = up
            self.peers[name].changed = now
            self._observe("up" if up else "down", {"neighbor": name})

    def _greet(self, names: tuple[str, ...] | list[str], now: float, *, asks: bool) -> None:
        hello = Hello(
            run=self.plan.run,
            sender=self.plan.name,
            gone=self._epoch,
            exchange=self.exchange,
            terms=dict(self.plan.terms),
            agreed=tuple(sorted(self.agreed)),
            asks=asks,
            finished=self.finished,
            refusal=self.refusal,
            origin=self.plan.origin,
        )
        data = _encoder.encode(hello)
        for name in names:
            self.out.append((name, data))
            if asks:
                self.peers[name].asked = now

    def _take_news(self, frame: Frame, now: float) -> None:
        """Unite what the sender and this site know of who is gone."""
        gone = self.gone.union(frame.gone)
        if self.plan.name in gone:
            raise GoneError(
                f"site {frame.sender!r} says that this site, {self.plan.name!r}, was away for too long, or came back "
                "with other rows or features than it had, and has been declared gone; the others go on without it"
            )
        if gone != self.gone:
            self._change(gone, now, f"told by {frame.sender}")

    def _take_hello(self, hello: Hello, now: float) -> None:
        peer = self.peers[hello.sender]
        if self.exchange < 0 or not peer.origin:
            peer.origin = hello.origin
        elif hello.origin != peer.origin:
            self._give_up(hello.sender, _OTHER_ROWS.format(hello.sender), now)
            return
        if self.exchange < 0:
            self._compare_terms(hello, now)
            if self.refusal:
                return
            for other in self.peers.values() if hello.exchange >= 0 else [peer]:
                other.met = True  # a run that is under way has started after all sites heard from all their neighbours
            known = len(self.agreed)
            self.agreed |= set(hello.agreed) & self.plan.sites
            self._agree()
            if len(self.agreed) > known:
                self._greet(self.present, now, asks=False)
            self._start_if_agreed(now)
        if hello.gone == self._epoch:
            peer.position = max(peer.position, hello.exchange)
            peer.finished |= hello.finished
        self._answer(hello, now)

    def _answer(self, hello: Hello, now: float) -> None:
        if hello.asks:
            self._greet([hello.sender], now, asks=False)
        if hello.exchange >= 0 and hello.gone == self._epoch:
            lacking = self._sent[hello.exchange : hello.exchange + WINDOW]
            self.out += [(hello.sender, frames[hello.sender]) for frames in lacking]
        if hello.finished:
            self.peers[hello.sender].finished = True

    def _compare_terms(self, hello: Hello, now: float) -> None:
        """Refuse the run, and tell all neighbours why, if this one has other terms or knows of somebody who has."""
        self.refusal = hello.refusal or disagreement(self.plan.name, self.plan.terms, hello.sender, hello.terms)
        if self.refusal:
            self._started = now
            self._observe("refusing", {"reason": self.refusal})
            self._greet(self.present, now, asks=True)
            self._tell_refusal(hello, now)

    def _tell_refusal(self, frame: Frame, now: float) -> None:
        if isinstance(frame, Hello):
            self.peers[frame.sender].refused |= bool(frame.refusal)
            if frame.asks:
                self._greet([frame.sender], now, asks=False)
        if all(self.peers[name].refused for name in self.present):
            raise AgreementError(self.refusal)

    @property
    def _strangers(self) -> list[str]:
        """The neighbours that have not said hello."""
        return [name for name in self.present if not self.peers[name].met]

    def _agree(self) -> bool:
        """Count this site among those that agree if all its neighbours have said hello; return whether they have."""
        if self._strangers:
            return False
        self.agreed.add(self.plan.name)
        return True

    def _start_if_agreed(self, now: float) -> None:
        if self._agree() and self.exchange < 0 and self.agreed | self.gone >= self.plan.sites:
            self._agreed_at = now
            self._observe("agreed", {"sites": sorted(self.plan.sites - self.gone)})
            self._open(now)

    def _tick_greeting(self, now: float) -> None:
        if self.refusal and now - self._started > REFUSING:
            raise AgreementError(self.refusal)
        if now - self._started > self.plan.start_patience:
            away = sorted(self.plan.sites - self.agreed - self.gone)
            missing = f"not in touch with all neighbours: {', '.join(away)}"
            if self._strangers:
                missing = f"not heard of: {', '.join(self._strangers)}"
            raise AbsenceError(
                f"site {self.plan.name!r} waited {self.plan.start_patience:g} s for the run to start; {missing}. "
                "Are they started, and do their files name the same run, and each other as neighbours?"
            )
        for name in self.present:
            if now - self.peers[name].asked >= RETRY:
                self._greet([name], now, asks=True)

    def _is_overdue(self, name: str, now: float) -> bool:
        """Return whether a neighbour's frame is to be waited for no longer.

        One that waits itself, as its hellos say, is waited for as long as a chain of slow sites may take.
        """
        peer = self.peers[name]
        waits = peer.position < self.exchange
        if now - self._waiting_since > SLOWNESS * self.plan.patience * (len(self.plan.sites) if waits else 1):
            return True
        if peer.garbled:
            return now - max(peer.changed, self._waiting_since) > self.plan.patience
        if peer.up:
            return now - max(peer.heard, self._waiting_since) > SLOWNESS * self.plan.patience
        return now - max(peer.heard, peer.changed, self._agreed_at) > self.plan.patience

    def _change(self, gone: frozenset[str], now: float, reason: str) -> None:
        """Begin an epoch without the sites in `gone`."""
        self._observe("gone", {"sites": sorted(gone - self.gone), "reason": reason, "exchange": self.exchange})
        self._set_gone(gone)
        for peer in self.peers.values():
            peer.begin_epoch()
        left = self.plan.sites - gone
        if not self.present or 2 * len(left) <= len(self.plan.sites):
            self._greet(self.plan.neighbors, now, asks=False)
            raise DisconnectedError(
                f"site {self.plan.name!r} is left with {', '.join(sorted(left))} ({reason}): it has no neighbour any "
                "more, or not more than half of the sites, and the others may go on without it"
            )
        if self.exchange >= 0:
            self._open(now)
        else:
            self._start_if_agreed(now)
        self._greet(self.present, now, asks=True)

    def _open(self, now: float) -> None:
        """Start the procedure in the present epoch."""
        features = None if self._offer is None else encode(self._offer)
        origins = {name: self.peers[name].origin for name in self.present}
        self._keep(Opening(self.plan.run, self.plan.name, self.plan.digest, self._epoch, features, origins))
        self._begin_procedure(now)
        self._send_all()

    def _begin_procedure(self, now: float) -> None:
        if self._procedure is not None:
            self._procedure.close()
        self.result = None
        self._sent = []
        self.rounds, self.exchange = 0, -1
        self._procedure = self._until_all_have_theirs(self._make(self.present, self._offer))
        self._step(None, now)

    def _until_all_have_theirs(self, procedure: Procedure[Outcome]) -> Procedure[Outcome]:
        """Follow the procedure by as many empty exchanges as the graph is wide.

        Whoever is through them knows that every site was through with the procedure.
        """
        outcome = yield from procedure
        there, roster = self.plan.sites - self.gone, outcome.roster
        if roster.n_sites < len(there):
            who = f"{len(there) - roster.n_sites} of {len(there)} sites"
            if roster.names_all:
                who = f"the sites {', '.join(sorted(there - roster.rows.keys()))}"
            without = f"without {', '.join(sorted(self.gone))} " if self.gone else ""
            raise DisconnectedError(
                f"{without}{who} cannot be reached from site {self.plan.name!r}: the graph has fallen apart"
            )
        self.result = outcome
        for _ in range(outcome.roster.diameter):
            yield {}
        return outcome

    def _step(self, inbox: Mapping[str, AnyMessage] | None, now: float) -> None:
        """Let the procedure take one inbox and give the next outbox, or end."""
        assert self._procedure is not None
        self._waiting_since = now
        try:
            outbox = next(self._procedure) if inbox is None else self._procedure.send(inbox)
        except StopIteration:
            self._finish(now)
            return
        self.exchange += 1
        frames: dict[str, bytes] = {}
        encoded: dict[int, tuple[bytes, int]] = {}
        for name, message in outbox.items():
            if name not in self.present:
                raise MessageError(f"site {self.plan.name!r} wants to send to {name!r}, which is not its neighbour")
            known = encoded.get(id(message))
            if known is None:
                body = encode(message)
                known = encoded[id(message)] = self._frame(body), len(body)
                self._watch(message)
            frames[name], size = known
            self.traffic.count(self.plan.name, name, type(message).__name__, size)
        if len(frames) < len(self.present):
            frames = {**dict.fromkeys(self.present, self._frame(None)), **frames}
        self._sent.append(frames)

    def _frame(self, body: bytes | None) -> bytes:
        message = None if body is None else msgspec.Raw(body)
        return _encoder.encode(("data", self.plan.run, self.plan.name, self._epoch, self.exchange, message))

    def _watch(self, message: Message) -> None:
        if isinstance(message, (Coefficients, Unchanged)):
            self.rounds += 1
            residual, scale = message.progress[-2:] or (0.0, 0.0)
            self.residual = residual / scale if scale else float("nan")
        elif isinstance(message, (Features, Chosen)) and message.n_neighbors:
            self._offer = message

    def _send_all(self) -> None:
        self.out += self._sent[-1].items()

    def _take_data(self, frame: Data, data: bytes, now: float) -> None:
        peer = self.peers[frame.sender]
        if frame.exchange > peer.position:
            peer.position = frame.exchange
        if frame.exchange < self.exchange or frame.exchange in peer.frames:
            self._compare(frame, data, now)
            return
        if frame.exchange != self.exchange:
            if frame.exchange >= max(self.exchange, 0) + WINDOW:
                return
            if len(data) > SMALL_FRAME and peer.n_bytes + len(data) > BUFFER_BYTES:
                return
        peer.frames[frame.exchange] = data, frame.message
        self._remember(frame, data)

    def _remember(self, frame: Data, data: bytes) -> None:
        if type(frame.message) in _EXACT:
            self.peers[frame.sender].said[frame.exchange] = hashlib.sha256(data).digest()

    def _check_roll(self, roll: Roll, frame: Data) -> None:
        sender, there = frame.sender, self.plan.sites.difference(frame.gone)
        for name, rows in roll.rows.items():
            if name not in there or rows < 0:
                raise MessageError(f"site {sender!r} tells of a site {name!r} that cannot be", sender)
        if not 0 <= roll.height <= roll.farthest < len(there):
            raise MessageError(f"site {sender!r} tells of {roll.farthest} hops between sites, which cannot be", sender)

    def _check_census(self, census: Census, frame: Data) -> None:
        sender, there = frame.sender, self.plan.sites.difference(frame.gone)
        names, most = {census.root}, 1 + max(census.depth, census.diameter)
        for tally in census.tallies:
            names |= {tally.fewest[1], tally.most[1]}
            most = max(most, tally.sites, tally.height + 1)
        edges = census.branch.edges if census.branch is not None else []
        names.update(*edges)
        fits = not consensus.are_named(len(there)) and names <= there and most <= len(there)
        if not fits or census.depth > frame.exchange or len(set(edges)) < len(edges):
            raise MessageError(f"site {sender!r} tells of a census that cannot be", sender)
        if frame.exchange > _LONGEST_CENSUS * len(there):
            raise MessageError(f"site {sender!r} does not come to the end of its census", sender)

    def _compare(self, frame: Data, data: bytes, now: float) -> None:
        """Go on without a neighbour that came back and says something else than it said before."""
        said = self.peers[frame.sender].said.get(frame.exchange)
        if said is not None and said != hashlib.sha256(data).digest():
            self._give_up(frame.sender, _OTHER_ROWS.format(frame.sender), now)

    def _give_up(self, name: str, reason: str, now: float) -> None:
        """Go on without a neighbour that would not do better if it were asked again, and tell it; a result stays."""
        self.refuse(name, reason)
        if self.result is None:
            self._change(self.gone | {name}, now, reason)
            self._greet([name], now, asks=False)

    def _advance(self, now: float) -> None:
        """Take as many exchanges as are complete."""
        while self.exchange >= 0 and not self.finished:
            if self.result is not None and any(self.peers[name].finished for name in self.present):
                self._finish(now)
                return
            if not self._is_complete(now):
                return
            frames: dict[str, bytes] = {}
            inbox: dict[str, AnyMessage] = {}
            for name in self.present:
                frame, message = self.peers[name].frames.pop(self.exchange)
                if message is not None:
                    frames[name], inbox[name] = frame, message
            self._keep(Received(self.exchange, frames))
            try:
                self._step(inbox, now)
            except MessageError as error:
                if error.sender not in self.present:
                    raise
                self._give_up(str(error.sender), str(error), now)
                continue
            self._observe("exchange", {})
            if not self.finished:
                self._send_all()

    def _is_complete(self, now: float) -> bool:
        """Return whether all frames of this exchange are here; ask those at once who are known to have sent theirs."""
        complete, exchange = True, self.exchange
        for name in self.present:
            peer = self.peers[name]
            if exchange not in peer.frames:
                complete = False
                if peer.position > exchange and now > peer.asked:
                    self._greet([name], now, asks=True)
        return complete

    def _finish(self, now: float) -> None:
        self.finished = True
        self._finished_at = now
        self._greet(self.present, now, asks=False)
        self._observe("finished", {})

    def _keep(self, record: Opening | Received | None) -> None:
        """Add a record to the journal, or write out what was added."""
        try:
            if record is None:
                self._journal.flush()
            else:
                self._journal.append(record)
        except OSError as error:
            self._observe("checkpoint lost", {"reason": str(error)})
            self._journal.discard()
            self._journal = NoJournal()

    def _resume(self, now: float) -> None:
        """Go through the journal's last epoch again."""
        records = list(self._journal.records())
        openings = [i for i, record in enumerate(records) if isinstance(record, Opening)]
        if not openings:
            return
        opening = records[openings[-1]]
        assert isinstance(opening, Opening)
        if (opening.run, opening.site) != (self.plan.run, self.plan.name):
            raise AgreementError(
                f"the checkpoint is of run {opening.run!r} at site {opening.site!r}, not of run {self.plan.run!r} at "
                f"site {self.plan.name!r}; move it away, or start afresh (--fresh)"
            )
        if opening.digest != self.plan.digest:
            raise AgreementError(
                f"the checkpoint of site {self.plan.name!r} is of other rows, settings or neighbours than it has now; "
                "put them back, or start afresh (--fresh): others that are under way go on without it"
            )
        self.agreed = set(self.plan.sites)
        self._set_gone(frozenset(opening.gone))
        self._offer = _read_offer(opening.features)
        for name in self.present:
            self.peers[name].origin = opening.origins.get(name, "")
        self._begin_procedure(now)
        for record in records[openings[-1] + 1 :]:
            if isinstance(record, Ended):
                break
            assert isinstance(record, Received)
            if self.finished or record.exchange != self.exchange:
                raise AgreementError("the checkpoint does not fit this version's procedure; remove it to start afresh")
            try:
                self._step(self._read_again(record), now)
            except MessageError as error:
                if error.sender not in self.present:
                    raise
                self._give_up(str(error.sender), str(error), now)
                break
        self._observe("resumed", {"exchange": self.exchange})

    def _read_again(self, record: Received) -> dict[str, AnyMessage]:
        inbox: dict[str, AnyMessage] = {}
        for name, data in record.frames.items():
            frame = self._check(name, data)
            assert isinstance(frame, Data)
            assert frame.message is not None
            self._remember(frame, data)
            inbox[name] = frame.message
        return inbox


def _read_offer(body: bytes | None) -> Offer | None:
    if body is None:
        return None
    message = decode(body, "checkpoint")
    assert isinstance(message, Offer)
    return message


def disagreement(name: str, terms: Mapping[str, str], other: str, their_terms: Mapping[str, str]) -> str:
    """Return what two sites do not agree on, or nothing.

    Examples
    --------
    >>> disagreement("a", {"alpha": "0.1", "seed": "0"}, "b", {"alpha": "0.2", "seed": "0"})
    "sites 'a' and 'b' do not agree: alpha is 0.1 at 'a' and 0.2 at 'b'"
    """
    differences = [
        f"{key} is {terms.get(key, 'not there')} at {name!r} and {their_terms.get(key, 'not there')} at {other!r}"
        for key in sorted({*terms, *their_terms})
        if terms.get(key) != their_terms.get(key)
    ]
    return f"sites {name!r} and {other!r} do not agree: {'; '.join(differences)}" if differences else ""
