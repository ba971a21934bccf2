"""A record of the messages of a run, the source of the attacker's view; and sites that lie about their features."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...features import FeatureMap
from ...messages import AnyMessage, Chosen, Coefficients, Features, Message, Moments, Offer, Shortlist, Sums
from ...networks.base import Delivery
from ...networks.local import LocalNetwork
from ...privacy.admission import prove
from ...protocols import dekrr
from ...protocols.run import Outcome, Tuning
from ...protocols.site import Procedure, Site
from ...selection import Chooser
from ...settings import DeKRRSettings


@dataclass
class Overheard:
    """Messages of a run, in order, or those between two of some sites: an observer of a local network."""

    only: Collection[str] | None = None
    heard: list[Delivery] = field(default_factory=list)

    def __call__(self, delivery: Delivery) -> None:
        """Keep a message."""
        if self.only is None or (delivery.sender in self.only and delivery.receiver in self.only):
            self.heard.append(delivery)

    def between(self, sender: str, receiver: str, kind: type) -> list[Any]:
        """Return the messages of one kind that `receiver` got from `sender`, in order."""
        return [
            entry.message
            for entry in self.heard
            if entry.sender == sender and entry.receiver == receiver and isinstance(entry.message, kind)
        ]


Forger = Callable[[int], FeatureMap]


def overhear(
    sites: Sequence[Site],
    selector: Chooser,
    settings: DeKRRSettings,
    tuning: Tuning | None = None,
    *,
    only: Collection[str] | None = None,
    forgers: Mapping[str, Forger] | None = None,
) -> tuple[Overheard, dict[str, Outcome]]:
    """Train DeKRR on `sites`; return its messages, or those between two of some sites, and the outcome of each site.

    Sites with a forger lie about their features: ``forger(i)`` returns the map that the site sends when maps are due
    for the (i + 1)th time.
    """
    record = Overheard(only)
    network = LocalNetwork({site.name: site.neighbors for site in sites}, observers=[record])
    procedures = {site.name: dekrr.train(site, selector, settings, tuning) for site in sites}
    for name, forger in (forgers or {}).items():
        site = next(site for site in sites if site.name == name)
        procedures[name] = _forged(procedures[name], site, selector, forger)
    return record, network.run(procedures)


def _forged(procedure: Procedure[Outcome], site: Site, selector: Chooser, forger: Forger) -> Procedure[Outcome]:
    """Follow a procedure, but send forged maps; the answers to them do not reach the procedure."""
    outbox = next(procedure)
    asked = size = forged_size = 0
    while True:
        maps = [message for message in outbox.values() if isinstance(message, Offer | Shortlist)]
        if maps:
            is_shortlist = isinstance(maps[0], Shortlist)
            honest = maps[0].candidates if isinstance(maps[0], Shortlist) else maps[0]
            size, forged = _size(honest), forger(asked)
            offer = _offer(forged, honest, site, selector)
            outbox, asked = dict.fromkeys(outbox, Shortlist(offer) if is_shortlist else offer), asked + 1
            forged_size = forged.n_features
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
