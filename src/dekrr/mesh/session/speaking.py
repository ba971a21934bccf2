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

    `out`: the frames to send; the driver takes them away.
    """

    def __init__(self, plan: Plan, peers: Mapping[str, Peer], greeting: Greeting) -> None:
        self.out: list[tuple[str, bytes]] = []
        self._plan = plan
        self._peers = peers
        self._greeting = greeting

    def greet(self, names: Iterable[str], epoch: Epoch[Any], now: float, *, asks: bool, lacks: bool = False) -> None:
        """Say hello to neighbours.

        A link carries frames in their order. So a hello that answers a question comes after all frames that its sender
        had sent before. A frame that is not there by then was lost; before that it may be on its way.
        """
        for name in names:
            peer = self._peers[name]
            hello = Hello(
                run=self._plan.run,
                sender=self._plan.name,
                gone=epoch.label,
                exchange=epoch.exchange,
                terms=dict(self._plan.terms),
                agreed=self._greeting.agreed,
                asks=peer.ask(now, lacks=lacks) if asks else 0,
                answers=peer.question,
                lacks=lacks,
                finished=epoch.stands,
                refusal=self._greeting.refusal,
                origin=self._plan.origin,
            )
            self.out.append((name, encode_hello(hello)))

    def answer(self, hello: Hello, epoch: Epoch[Any], now: float) -> None:
        """Retransmit the frames that the sender lacks, and return a hello if it asks for one."""
        if hello.lacks and hello.exchange >= 0 and hello.gone == epoch.label and hello.sender in epoch.present:
            lacking = epoch.sent[hello.exchange : hello.exchange + WINDOW]
            self.out += [(hello.sender, frames[hello.sender]) for frames in lacking]
        if hello.asks:
            self._peers[hello.sender].question = hello.asks
            self.greet([hello.sender], epoch, now, asks=False)
        if hello.finished:
            self._peers[hello.sender].finished = True

    def send(self, epoch: Epoch[Any]) -> None:
        """Send the frames of the present exchange."""
        self.out += epoch.sent[-1].items()
