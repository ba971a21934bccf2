"""A record of the messages of a run, the source of the attacker's view; and sites that lie about their features."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...features import FeatureMap
from ...messages import AnyMessage, Chosen, Coefficients, Features, Message, Moments, Offer, Shortlist, Sums
from ...networks.base import Delivery
from ...networks.local import LocalNetwork
from ...privacy.admission import AskedMaps, prove
from ...protocols.run import Outcome
from ...protocols.site import Procedure, Site
from ...selection import Chooser


@dataclass
class Overheard:
    """Messages of a run, in order, or those between two of some sites: an observer of a local network."""

    only: Collection[str] | None = None
    heard: list[Delivery] = field(default_factory=list)

    def __call__(self, delivery: Delivery) -> None:
        if self.only is None or (delivery.sender in self.only and delivery.receiver in self.only):
            self.heard.append(delivery)

    def between(self, sender: str, receiver: str, kind: type) -> list[Any]:
        return [
            entry.message
            for entry in self.heard
            if entry.sender == sender and entry.receiver == receiver and isinstance(entry.message, kind)
        ]


def overhear(
    sites: Iterable[Site], procedure: Callable[[Site], Procedure[Outcome]], only: Collection[str] | None = None
) -> tuple[Overheard, dict[str, Outcome]]:
    """Run the sites' procedures; return the messages, or those between two of some sites, and the outcomes."""
    fresh = [replace(site, ledger=AskedMaps()) for site in sites]
    record = Overheard(only)
    network = LocalNetwork({site.name: site.neighbors for site in fresh}, observers=[record])
    return record, network.run({site.name: procedure(site) for site in fresh})


Forger = Callable[[int], FeatureMap]
"""Returns the map that a lying site sends when maps are due for the (i + 1)th time."""


def forged(procedure: Procedure[Outcome], site: Site, selector: Chooser, forger: Forger) -> Procedure[Outcome]:
    """Follow a procedure, but send forged maps; the answers to them do not reach the procedure."""
    outbox = next(procedure)
    asked = size = forged_size = 0
    while True:
        maps = [message for message in outbox.values() if isinstance(message, Offer | Shortlist)]
        if maps:
            honest = maps[0].candidates if isinstance(maps[0], Shortlist) else maps[0]
            size, lie = _size(honest), forger(asked)
            offer = _offer(lie, honest, site, selector)
            message = Shortlist(offer) if isinstance(maps[0], Shortlist) else offer
            outbox, asked, forged_size = dict.fromkeys(outbox, message), asked + 1, lie.n_features
        inbox = yield {p: _resized(message, forged_size) for p, message in outbox.items()}
        try:
            outbox = procedure.send({p: _emptied(message, size) for p, message in inbox.items()})
        except StopIteration as stop:
            outcome: Outcome = stop.value
            return outcome


def _size(offer: Offer) -> int:
    return int(offer.frequencies.shape[1]) if isinstance(offer, Features) else len(offer.indices)


def _offer(forged: FeatureMap, honest: Offer, site: Site, selector: Chooser) -> Offer:
    if isinstance(honest, Chosen):
        return prove(selector, forged, site.seed, site.name, honest.n_neighbors)
    return Features(forged.frequencies, forged.phases, forged.amplitudes, honest.n_neighbors)


def _resized(message: Message, size: int) -> Message:
    """Return a message of the honest procedure, resized to the forged map."""
    if isinstance(message, Sums):
        return Sums(message.gram, np.zeros((message.cross.shape[0], size)))
    if isinstance(message, Coefficients) and message.values.ndim == 1:
        return Coefficients(np.zeros(size), message.progress)
    return message


def _emptied(message: AnyMessage, size: int) -> AnyMessage:
    """Return sums of zeros, in the shape that the honest procedure expects."""
    if isinstance(message, Moments):
        return Moments(np.zeros(size * (size + 1) // 2), np.zeros(size))
    if isinstance(message, Sums):
        return Sums(np.zeros(size * (size + 1) // 2), np.zeros((size, message.cross.shape[1])))
    return message
