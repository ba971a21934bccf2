"""What one site hears in a run: the attacker's view, taken from the messages themselves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..messages import AnyMessage
from ..networks.local import LocalNetwork
from ..protocols import dekrr
from ..protocols.outcome import Outcome
from ..protocols.site import Outbox, Site
from ..selection import Selector


@dataclass(frozen=True)
class Heard:
    """One message, as its receiver decoded it."""

    exchange: int
    sender: str
    receiver: str
    message: AnyMessage


@dataclass
class Record:
    """All messages of a run, in order."""

    heard: list[Heard] = field(default_factory=list)

    def between(self, sender: str, receiver: str, kind: type) -> list[Any]:
        """Return the messages of one kind that `receiver` got from `sender`, in order."""
        return [
            entry.message
            for entry in self.heard
            if entry.sender == sender and entry.receiver == receiver and isinstance(entry.message, kind)
        ]


class RecordingNetwork(LocalNetwork):
    """A local network that keeps every message it carries.

    Parameters
    ----------
    neighbors : mapping of site to its neighbours
    """

    def __init__(self, neighbors: Mapping[str, Any]) -> None:
        super().__init__(neighbors)
        self.record = Record()
        self._exchange = 0

    def _carry(self, outboxes: Mapping[str, Outbox]) -> dict[str, dict[str, AnyMessage]]:
        inboxes = super()._carry(outboxes)
        for receiver, inbox in inboxes.items():
            self.record.heard += [Heard(self._exchange, sender, receiver, m) for sender, m in inbox.items()]
        self._exchange += 1
        return inboxes


def overhear(sites: Sequence[Site], selector: Selector, settings: dekrr.Settings) -> tuple[Record, dict[str, Outcome]]:
    """Train DeKRR on `sites` and return all its messages with what each site ended with."""
    network = RecordingNetwork({site.name: site.neighbors for site in sites})
    outcomes = network.run({site.name: dekrr.train(site, selector, settings) for site in sites})
    return network.record, outcomes
