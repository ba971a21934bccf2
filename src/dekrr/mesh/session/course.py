"""The course of the procedure through exchanges and epochs, logged in the checkpoint and replayed from it."""

from collections.abc import Mapping
from typing import Generic

from ...errors import AgreementError
from ...messages import AnyMessage, decode, encode
from .epochs import Epoch, Progress
from .frames import Data, FrameReader
from .interpreter import Interpreter, Maker, Result
from .journal import Checkpoint, Opening, Received
from .links import present
from .peers import Peer
from .plan import Plan


class Course(Generic[Result]):
    """Drives the procedure of one epoch after another.

    - `make`: makes the node procedure from the neighbours and, in a later epoch, the message that announced the
      features
    - `peers`: the neighbours whose frames the procedure gets
    - `epoch`: the present epoch
    - `graph`: as far as it is known; all of it once the run has started
    - `progress`: traffic, rounds and residual
    - `waiting_since`: the time at which the frames of the present exchange were sent
    """

    def __init__(
        self,
        plan: Plan,
        make: Maker[Result],
        interpreter: Interpreter[Result],
        checkpoint: Checkpoint,
        peers: Mapping[str, Peer],
    ) -> None:
        self.epoch: Epoch[Result] = Epoch(plan)
        self.graph: dict[str, tuple[str, ...]] = {}
        self.progress = Progress(interpreter)
        self.waiting_since = 0.0
        self._plan = plan
        self._make = make
        self._interpreter = interpreter
        self._checkpoint = checkpoint
        self._peers = peers

    @property
    def present_graph(self) -> dict[str, tuple[str, ...]]:
        """Who is whose neighbour in this epoch, as all sites told before the start."""
        graph, epoch = self.graph, self.epoch
        return {name: present(name, graph[name], epoch.lost, graph) for name in epoch.members if name in graph}

    @property
    def missing(self) -> tuple[str, ...]:
        """The neighbours whose frame for this exchange has not arrived."""
        exchange, peers = self.epoch.exchange, self._peers
        return tuple([name for name in self.epoch.present if exchange not in peers[name].frames])

    def leave(self, lost: frozenset[str]) -> None:
        """Leave the present epoch for one in which the sites and links `lost` are lost."""
        self.epoch.close()
        self.epoch = Epoch(self._plan, lost, self.graph, self.epoch.exchange)
        for peer in self._peers.values():
            peer.begin_epoch()

    def open(self, now: float) -> None:
        """Start the procedure in the present epoch, and log the start of the epoch in the checkpoint."""
        plan, choice = self._plan, self.progress.choice
        body = None if choice is None else encode(choice)
        origins = {name: self._peers[name].origin for name in self.epoch.present}
        self._checkpoint.keep(Opening(plan.run, plan.name, plan.digest, self.epoch.label, body, origins, self.graph))
        self._begin(now)

    def go_on(self, now: float) -> None:
        """Give the procedure the frames of the present exchange; all of them must have arrived."""
        frames: dict[str, bytes] = {}
        inbox: dict[str, AnyMessage] = {}
        for name in self.epoch.present:
            frame, message = self._peers[name].frames.pop(self.epoch.exchange)
            if message is not None:
                frames[name], inbox[name] = frame, message
        self._checkpoint.keep(Received(self.epoch.exchange, frames))
        self._step(inbox, now)

    def repeat(self, opening: Opening, received: list[Received], reader: FrameReader, now: float) -> None:
        """Replay an epoch from the checkpoint."""
        self.graph.update(opening.graph)
        self.epoch = Epoch(self._plan, frozenset(opening.lost), self.graph)
        self.progress.choice = None if opening.features is None else decode(opening.features, "checkpoint")
        for name in self.epoch.present:
            self._peers[name].origin = opening.origins.get(name, "")
        self._begin(now)
        for record in received:
            if self.epoch.is_over or record.exchange != self.epoch.exchange:
                raise AgreementError("the checkpoint does not fit this version's procedure; remove it to start afresh")
            self._step(self._read_again(record, reader), now)

    def _begin(self, now: float) -> None:
        self.progress.rounds = 0
        self.epoch.start(self._make(self.epoch.present, self.progress.choice), self._interpreter)
        self._step(None, now)

    def _step(self, inbox: Mapping[str, AnyMessage] | None, now: float) -> None:
        self.waiting_since = now
        self.epoch.step(inbox, self.progress)

    def _read_again(self, record: Received, reader: FrameReader) -> dict[str, AnyMessage]:
        inbox: dict[str, AnyMessage] = {}
        for name, data in record.frames.items():
            frame = reader.read(name, data)
            assert isinstance(frame, Data)
            assert frame.message is not None
            if self._interpreter.is_exact(frame.message):
                self._peers[name].remember(frame.exchange, data)
            inbox[name] = frame.message
        return inbox
