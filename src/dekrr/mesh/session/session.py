"""One site's side of a run, without I/O: agreement, failure detection, epochs and retransmissions.

A session drives the site's node procedure. Its driver passes in the frames that arrived and the time, and takes away
the frames to send. The session does not know the messages of the procedure: an `Interpreter` reads them for it.
docs/protocol.md has the table of its phases and the reasons.

An epoch is named by the set of sites and links that are lost. Every frame carries this set. A site that receives a
frame with another set takes the union of both. When its set grows, it restarts the procedure with what is left, and
keeps the features that it has already chosen. A site goes on only with a quorum: more than half of all sites.
"""

from collections.abc import Iterable
from typing import Any, Generic

from ...errors import MessageError
from .course import Course
from .events import Agreed, Down, Gone, Listener, Refusing, Resumed, TellOnce, Unconfirmed, Up
from .frames import Frame, FrameReader, Hello
from .greeting import Greeting
from .interpreter import Interpreter, Maker, Result
from .journal import Checkpoint, Journal, NoJournal
from .links import accusation, ends, evicted, link, present, suspects, witnesses
from .peers import Peer
from .phases import TABLE, Cause, Phase, after, error_after
from .plan import Plan
from .speaking import Speaker

_UNDER_WAY = (Phase.RUNNING, Phase.CLOSING)
RETRY = 1.0  # seconds after which a site asks again for missing frames
_OTHER_ROWS = "site {!r} came back with other rows or features than it had"


class Session(Generic[Result]):
    """One site's side of a run.

    - `make`: makes the node procedure from the neighbours and, in a later epoch, the message that announced the
      features
    - `interpreter`: reads the procedure's messages
    - `journal`: the checkpoint to resume from and to write
    - `observe`: gets every event; it must not block
    - `out`: the frames to send; the driver takes them away
    - `course`: the course of the procedure: the present epoch, the missing frames, traffic, rounds and residual
    - `refuse`: reports that a frame from a sender was refused, and why; each pair is reported once
    """

    def __init__(
        self,
        plan: Plan,
        make: Maker[Result],
        interpreter: Interpreter[Result],
        journal: Journal | None = None,
        observe: Listener | None = None,
    ) -> None:
        self.plan = plan
        self.phase = Phase.GREETING
        self.peers = {name: Peer() for name in plan.neighbors}
        self._interpreter = interpreter
        self._observe: Listener = observe or (lambda event: None)
        self.refuse = TellOnce(self._observe)
        self._checkpoint = Checkpoint(journal or NoJournal(), self._observe)
        self._reader = FrameReader(plan, interpreter)
        self.course = Course(plan, make, interpreter, self._checkpoint, self.peers)
        self._greeting = Greeting(plan, self.peers, self.course.graph)
        self._speaker = Speaker(plan, self.peers, self._greeting)
        self.out = self._speaker.out
        self._started = self._finished_at = 0.0
        self._reminded: dict[str, set[str]] = {}

    @property
    def exchange(self) -> int:
        """The exchange that is waited for; -1 before the start."""
        return self.course.epoch.exchange

    @property
    def gone(self) -> frozenset[str]:
        """The sites that have left the run: they were declared gone, or cannot be reached over what is left."""
        return self.plan.sites - self.course.epoch.members

    @property
    def lost(self) -> frozenset[str]:
        """The sites and the links that are lost; see `links`."""
        return self.course.epoch.lost

    @property
    def result(self) -> Result | None:
        """The result of the procedure, or None before it has returned; the result is final in the phase `finished`."""
        return self.course.epoch.result

    def start(self, now: float) -> None:
        """Resume from the journal, if it has records, and greet the neighbours."""
        self._greeting.since = self.course.waiting_since = now
        for peer in self.peers.values():
            peer.changed = peer.heard = now
        self._resume(now)
        self._speaker.greet(self.course.epoch.present, self.course.epoch, now, asks=True)
        self._start_if_agreed(now)
        self._advance(now)

    def _resume(self, now: float) -> None:
        kept = self._checkpoint.last_epoch(self.plan)
        if kept is None:
            return
        self.phase = after(self.phase, Cause.RESUMED)
        try:
            self.course.repeat(*kept, self._reader, now)
        except MessageError as error:
            if error.sender not in self.course.epoch.present:
                raise
            self._give_up(str(error.sender), str(error), now)
        for peer in self.peers.values():
            peer.returning = self.result is None
        self._observe(Resumed(exchange=self.exchange))

    def done(self, now: float) -> bool:
        """Return whether the session is over: all neighbours have finished, or the patience is over."""
        if (self.phase, Cause.RELEASED) not in TABLE:
            return False
        if now - self._finished_at > self.plan.patience:
            return True
        return all(self.peers[name].finished for name in self.course.epoch.present)

    def learn(self, name: str, now: float, *, up: bool) -> None:
        """Learn that a neighbour is alive and can be reached, or that it died or cannot be reached."""
        if name in self.peers and self.peers[name].mark(up, now):
            self._observe(Up(neighbor=name) if up else Down(neighbor=name))
        if up and name in self.course.epoch.present:
            self._speaker.greet([name], self.course.epoch, now, asks=True)

    def receive(self, frames: Iterable[tuple[str, bytes]], now: float) -> None:
        """Take in frames, each with its sender. A frame that is refused is reported once and changes nothing else."""
        for sender, data in frames:
            try:
                frame = self._reader.read(sender, data)
            except MessageError as error:
                self.distrust(sender, str(error))
                continue
            self.peers[sender].hear(now)
            self._take(frame, data, now)
        self._advance(now)

    def distrust(self, sender: str, reason: str) -> None:
        """Report, once, that something in a site's name was refused; if it stays missing, the site is at fault."""
        self.refuse(sender, reason)
        if sender in self.peers:
            self.peers[sender].garbled = True

    def tick(self, now: float) -> None:
        """Write the checkpoint, ask again for missing frames, and give up on neighbours that are overdue."""
        if self.phase is Phase.FINISHED:
            return
        self._checkpoint.flush()
        if self.phase not in _UNDER_WAY:
            _greet_again(self, self._greeting, self._speaker, now)
            return
        overdue = _overdue_at(self, self._started, now)
        if overdue and self.phase is Phase.CLOSING:
            self._observe(Unconfirmed(missing=overdue))
            self._finish(Cause.UNCONFIRMED, now)
            return
        if overdue:
            lost = frozenset((accusation if self.peers[p].garbled else link)(self.plan.name, p) for p in overdue)
            self._lose(lost, f"{', '.join(overdue)} missing at exchange {self.exchange}", now)
        for name in self.course.missing:
            if now - max(self.peers[name].asked, self.course.waiting_since) >= RETRY:
                self._speaker.greet([name], self.course.epoch, now, asks=True)
        self._advance(now)

    def _take(self, frame: Frame, data: bytes, now: float) -> None:
        """Take in a frame that has passed the checks."""
        if self.phase is Phase.REFUSING:
            _tell_refusal(self, self._greeting, self._speaker, frame, now)
        elif frame.sender not in self.course.epoch.present or self.phase is Phase.FINISHED:
            if isinstance(frame, Hello):
                self._speaker.answer(frame, self.course.epoch, now)
        else:
            if frame.gone != self.course.epoch.label:
                self._unite(frame, now)
            if isinstance(frame, Hello):
                self._take_hello(frame, now)
            elif frame.gone == self.course.epoch.label:
                exact = frame.message is not None and self._interpreter.is_exact(frame.message)
                if not self.peers[frame.sender].take(frame, data, self.exchange, is_exact=exact):
                    self._give_up(frame.sender, _OTHER_ROWS.format(frame.sender), now)

    def _unite(self, frame: Frame, now: float) -> None:
        """Take the union of what the sender says and this site knows to be lost."""
        news = frozenset(lost for lost in frame.gone if lost not in self.lost and self._believes(lost, frame.sender))
        if news and not present(self.plan.name, self.plan.neighbors, self.lost | news, self.course.graph):
            raise error_after(self.phase, Cause.DECLARED_GONE)(
                f"site {frame.sender!r} says that this site, {self.plan.name!r}, was away for too long, or came back "
                "with other rows or features than it had, and has been declared gone; the others go on without it"
            )
        if news:
            self._lose(news, f"told by {frame.sender}", now)

    def _believes(self, lost: str, sender: str) -> bool:
        """Return whether a loss is taken from the sender's word.

        Who knows of it first says so itself, where it can be reached. Of what this site has said before it was killed,
        two neighbours remind it, where there are two.
        """
        first = witnesses(lost)
        there = {name for name in self.course.epoch.present if self.peers[name].is_there}
        if first == (self.plan.name,):
            self._reminded.setdefault(lost, set()).add(sender)
            return len(self._reminded[lost]) >= min(2, len(there))
        return sender in first or there.isdisjoint(first)

    def _take_hello(self, hello: Hello, now: float) -> None:
        peer = self.peers[hello.sender]
        peer.answered = max(peer.answered, hello.answers)
        if self.phase is Phase.GREETING or not peer.origin:
            peer.origin = hello.origin
        elif hello.origin != peer.origin:
            self._give_up(hello.sender, _OTHER_ROWS.format(hello.sender), now)
            return
        if self.phase is Phase.GREETING:
            reason = self._greeting.disagreement(hello)
            if reason:
                self._greeting.refuse(reason, now)
                self.phase = after(self.phase, Cause.DISAGREED)
                self._observe(Refusing(reason=reason))
                self._speaker.greet(self.course.epoch.present, self.course.epoch, now, asks=True)
                _tell_refusal(self, self._greeting, self._speaker, hello, now)
                return
            if self._greeting.hear(hello, self.course.epoch.present):
                self._speaker.greet(self.course.epoch.present, self.course.epoch, now, asks=False)
            self._start_if_agreed(now)
        if hello.gone == self.course.epoch.label:
            peer.position = max(peer.position, hello.exchange)
            peer.finished |= hello.finished
        self._speaker.answer(hello, self.course.epoch, now)

    def _start_if_agreed(self, now: float) -> None:
        if self.phase is Phase.GREETING and self._greeting.is_complete(self.course.epoch.present, self.gone):
            self._started = now
            self._observe(Agreed(sites=sorted(self.plan.sites - self.gone)))
            self.phase = after(self.phase, Cause.AGREED)
            if self.lost:  # who is out follows from the whole graph, which is known only now
                self.course.leave(self.lost)
            self.course.open(now)
            self._speaker.send(self.course.epoch)

    def _give_up(self, name: str, reason: str, now: float) -> None:
        """Go on without a neighbour that would repeat its fault, and tell it so; if there is a result, keep it."""
        self.refuse(name, reason)
        if self.course.epoch.result is None:
            self._lose(frozenset({accusation(self.plan.name, name)}), reason, now)
            self._speaker.greet([name], self.course.epoch, now, asks=False)

    def _lose(self, names: frozenset[str], reason: str, now: float) -> None:
        """Begin an epoch without the sites and links `names`."""
        before, exchange = self.gone, self.exchange
        self.course.leave(self.lost | names)
        out = evicted(self.lost, self.course.graph)
        links = sorted(link(*ends(lost)) for lost in names if out.isdisjoint(suspects(lost)))
        self._observe(Gone(sites=sorted(self.gone - before), links=links, reason=reason, exchange=exchange))
        remaining = self.course.epoch.members
        if not self.course.epoch.present or 2 * len(remaining) <= len(self.plan.sites):
            self._speaker.greet(self.plan.neighbors, self.course.epoch, now, asks=False)
            raise error_after(self.phase, Cause.CUT_OFF)(
                f"site {self.plan.name!r} is left with {', '.join(sorted(remaining))} ({reason}): it has no neighbour "
                "left, or no more than half of the sites; the others may go on without it"
            )
        self.phase = after(self.phase, Cause.LOST)
        if self.phase is Phase.RUNNING:
            self.course.open(now)
            self._speaker.send(self.course.epoch)
        else:
            self._start_if_agreed(now)
        self._speaker.greet(self.course.epoch.present, self.course.epoch, now, asks=True)

    def _advance(self, now: float) -> None:
        """Advance the procedure through all exchanges that are complete."""
        while self.phase in _UNDER_WAY:
            epoch = self.course.epoch
            if self.phase is Phase.RUNNING and epoch.result is not None:
                self.phase = after(self.phase, Cause.RETURNED)
                self._checkpoint.flush()  # whoever hears of the result may leave; this site can then finish alone
            if epoch.is_over:
                self._finish(Cause.CLOSED, now)
                return
            if self.phase is Phase.CLOSING and any(self.peers[name].finished for name in epoch.present):
                self._finish(Cause.CONFIRMED, now)
                return
            missing = self.course.missing
            if missing:
                for name in missing:
                    if self.peers[name].has_lost(epoch.exchange):
                        self._speaker.greet([name], epoch, now, asks=True, lacks=True)
                return
            self.phase = after(self.phase, Cause.COMPLETE)
            try:
                self.course.go_on(now)
            except MessageError as error:
                if error.sender not in epoch.present:
                    raise
                self._give_up(str(error.sender), str(error), now)
                continue
            self._observe(self.course.progress.event(epoch.exchange))
            if not epoch.is_over:
                self._speaker.send(epoch)

    def _finish(self, cause: Cause, now: float) -> None:
        self.phase = after(self.phase, cause)
        self._finished_at = now
        self.course.epoch.stands = True
        self._speaker.greet(self.course.epoch.present, self.course.epoch, now, asks=False)


def _overdue_at(session: Session[Any], started: float, now: float) -> list[str]:
    """Return the neighbours that are waited for no longer."""
    doubted = {name for lost in session.lost for name in suspects(lost)}
    plan, peers, since = session.plan, session.peers, session.course.waiting_since
    return [
        name
        for name in session.course.missing
        if peers[name].is_overdue(plan, session.exchange, since, started, now, suspected=name in doubted)
    ]


def _greet_again(session: Session[Any], greeting: Greeting, speaker: Speaker, now: float) -> None:
    """Greet neighbours that have not answered; raise the refusal, or who is absent, when the time is over."""
    epoch = session.course.epoch
    if session.phase is Phase.REFUSING:
        if greeting.has_refused_long_enough(now):
            raise error_after(session.phase, Cause.REFUSAL_KNOWN)(greeting.refusal)
    elif absence := greeting.absence(epoch.present, session.gone, now):
        raise error_after(session.phase, Cause.ABSENT)(absence)
    for name in epoch.present:
        if now - session.peers[name].asked >= RETRY:
            speaker.greet([name], epoch, now, asks=True)


def _tell_refusal(session: Session[Any], greeting: Greeting, speaker: Speaker, frame: Frame, now: float) -> None:
    """Hear a frame while this site refuses the run; raise the refusal once all neighbours know it."""
    all_know = greeting.hear_refusal(frame, session.course.epoch.present)
    if isinstance(frame, Hello) and frame.asks:
        speaker.greet([frame.sender], session.course.epoch, now, asks=False)
    if all_know:
        raise error_after(session.phase, Cause.REFUSAL_KNOWN)(greeting.refusal)
