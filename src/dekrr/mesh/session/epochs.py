"""One epoch of a run: the node procedure among the remaining sites, exchange by exchange.

An epoch is named by the set of sites and links that are lost. When the set grows, a new epoch begins, with a new
procedure.
"""

import math
from collections.abc import Generator, Mapping
from typing import Any, Generic

from ...errors import MessageError
from ...messages import AnyMessage, Message, encode
from ...networks.base import Traffic
from .events import Exchanged
from .frames import encode_data
from .interpreter import Interpreter, Procedure, Result
from .links import Graph, members, present
from .phases import Cause, Phase, error_after
from .plan import Plan


class Progress:
    """The progress of a site, for its status and for a later epoch.

    `traffic`: the traffic of all epochs. `rounds`: the number of rounds of the solver in this epoch. `residual`: the
    largest relative residual that the site knows; NaN if it knows none. `choice`: the message that announced the site's
    features.
    """

    def __init__(self, interpreter: Interpreter[Any]) -> None:
        self.traffic = Traffic()
        self.rounds = 0
        self.residual = float("nan")
        self.choice: Message | None = None
        self._interpreter = interpreter

    def watch(self, message: Message) -> None:
        """Update the progress by a message that is sent; called once an exchange, whatever the number of neighbours."""
        residual = self._interpreter.residual(message)
        if residual is not None:
            self.rounds += 1
            self.residual = residual
        elif self._interpreter.is_choice(message):
            self.choice = message

    def event(self, exchange: int) -> Exchanged:
        """Return the event that all exchanges before `exchange` are complete."""
        residual = self.residual if math.isfinite(self.residual) else None
        return Exchanged(exchange=exchange, round=self.rounds, residual=residual)


class Epoch(Generic[Result]):
    """One epoch: the sites and links that are lost, the state of the procedure, and the frames that were sent.

    - `lost`: the sites and the links that are lost
    - `graph`: as far as it is known
    - `exchange`: the exchange that the earlier epoch reached. The site's hellos have it until this epoch starts.
    - `label`: what is lost, sorted: the epoch's name in frames
    - `present`: the neighbours that are left, sorted
    - `members`: the sites that are left, with this one
    - `exchange`: the exchange that is waited for; -1 before the start
    - `sent`: the frames of every exchange so far
    - `result`: the result of the procedure
    - `is_over`: whether the procedure and the closing exchanges have ended
    - `stands`: whether the result is final: all sites have their results, or did not object in time
    """

    def __init__(
        self, plan: Plan, lost: frozenset[str] = frozenset(), graph: Graph | None = None, exchange: int = -1
    ) -> None:
        self.lost = lost
        self.label = tuple(sorted(lost))
        self.present = present(plan.name, plan.neighbors, lost, graph or {})
        self.members = members(plan.name, plan.sites, graph or {}, lost)
        self.exchange = exchange
        self.sent: list[dict[str, bytes]] = []
        self.result: Result | None = None
        self.is_over = self.stands = False
        self._plan = plan
        self._procedure: Generator[Mapping[str, Message], Mapping[str, AnyMessage], None] | None = None

    def start(self, procedure: Procedure[Result], interpreter: Interpreter[Result]) -> None:
        """Set the procedure; the first `step` starts it."""
        self.exchange = -1
        self._procedure = self._until_all_have_theirs(procedure, interpreter)

    def close(self) -> None:
        """End the procedure."""
        if self._procedure is not None:
            self._procedure.close()

    def step(self, inbox: Mapping[str, AnyMessage] | None, progress: Progress) -> None:
        """Send one inbox to the procedure, which yields the next outbox or ends."""
        assert self._procedure is not None
        try:
            outbox = next(self._procedure) if inbox is None else self._procedure.send(inbox)
        except StopIteration:
            self.is_over = True
            return
        self.exchange += 1
        self.sent.append(self._frames(outbox, progress))

    def _frames(self, outbox: Mapping[str, Message], progress: Progress) -> dict[str, bytes]:
        frames: dict[str, bytes] = {}
        encoded: dict[int, tuple[bytes, int]] = {}  # a message to several neighbours is encoded once
        me, present, count = self._plan.name, self.present, progress.traffic.count
        for name, message in outbox.items():
            if name not in present:
                raise MessageError(f"site {me!r} wants to send to {name!r}, which is not its neighbour")
            known = encoded.get(id(message))
            if known is None:
                body = encode(message)
                if not encoded:  # the messages of one outbox are of one kind
                    progress.watch(message)
                known = encoded[id(message)] = self._frame(body), len(body)
            frames[name], size = known
            count(me, name, type(message).__name__, size)
        if len(frames) < len(present):
            frames = {**dict.fromkeys(present, self._frame(None)), **frames}
        return frames

    def _frame(self, body: bytes | None) -> bytes:
        return encode_data(self._plan, self.label, self.exchange, body)

    def _until_all_have_theirs(
        self, procedure: Procedure[Result], interpreter: Interpreter[Result]
    ) -> Generator[Mapping[str, Message], Mapping[str, AnyMessage], None]:
        """Run the procedure, and after it as many empty exchanges as the diameter.

        A site that has completed them knows that every site has completed the procedure.
        """
        result = yield from procedure
        absent = interpreter.absent(result, self.members)
        if absent:
            without = f"without {', '.join(self.label)} " if self.lost else ""
            raise error_after(Phase.RUNNING, Cause.CUT_OFF)(
                f"{without}{absent} cannot be reached from site {self._plan.name!r}: the graph has fallen apart"
            )
        self.result = result
        for _ in range(interpreter.diameter(result)):
            yield {}
