"""The frames that a site sends: hellos, the frames of an exchange, and retransmissions."""

from collections.abc import Iterable, Mapping
from typing import Any

from .epochs import Epoch
from .frames import Hello, encode_hello
from .greeting import Greeting
from .peers import WINDOW, Peer
from .plan import Plan


class Speaker:
    """Collects the frames that a site sends.

    Parameters
    ----------
    plan : Plan
    peers : mapping of neighbour to Peer
    greeting : Greeting

    Attributes
    ----------
    out : list of (receiver, bytes)
        The frames to send; the driver takes them away.
    """

    def __init__(self, plan: Plan, peers: Mapping[str, Peer], greeting: Greeting) -> None:
        self.out: list[tuple[str, bytes]] = []
        self._plan = plan
        self._peers = peers
        self._greeting = greeting

    def greet(self, names: Iterable[str], epoch: Epoch[Any], now: float, *, asks: bool) -> None:
        """Say hello to neighbours."""
        hello = Hello(
            run=self._plan.run,
            sender=self._plan.name,
            gone=epoch.label,
            exchange=epoch.exchange,
            terms=dict(self._plan.terms),
            agreed=tuple(sorted(self._greeting.agreed)),
            asks=asks,
            finished=epoch.stands,
            refusal=self._greeting.refusal,
            origin=self._plan.origin,
        )
        data = encode_hello(hello)
        for name in names:
            self.out.append((name, data))
            if asks:
                self._peers[name].asked = now

    def answer(self, hello: Hello, epoch: Epoch[Any], now: float) -> None:
        """Return a hello if the sender asks for one, and retransmit the frames that it lacks."""
        if hello.asks:
            self.greet([hello.sender], epoch, now, asks=False)
        if hello.exchange >= 0 and hello.gone == epoch.label:
            lacking = epoch.sent[hello.exchange : hello.exchange + WINDOW]
            self.out += [(hello.sender, frames[hello.sender]) for frames in lacking]
        if hello.finished:
            self._peers[hello.sender].finished = True

    def send(self, epoch: Epoch[Any]) -> None:
        """Send the frames of the present exchange."""
        self.out += epoch.sent[-1].items()
