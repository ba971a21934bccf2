"""What a standing site writes to its audit trail as it happens: what leaves, what it refuses, what is said."""

import hashlib
import logging

from ..errors import one_line
from .audit_trail import AuditTrail
from .leaving import describe
from .studies.gossip import CHANNEL
from .studies.items import Item
from .studies.versions import Use

logger = logging.getLogger("dekrr")
_MOST_REFUSALS = 1000  # different ones of a site's life that are told


class Witness:
    """The one that writes.

    Parameters
    ----------
    site : str
    trail : AuditTrail
    """

    def __init__(self, site: str, trail: AuditTrail) -> None:
        self._site = site
        self._trail = trail
        self._told: set[tuple[str, str]] = set()

    def leaves(self, channel: str, receiver: str, frame: bytes) -> None:
        """Write what is about to leave; it is on disk before it leaves."""
        if channel == CHANNEL:
            about = {"message": "statements", "bytes": len(frame), "digest": hashlib.sha256(frame).hexdigest()}
        else:
            about = describe(frame)
        self._trail.add("left", to=receiver, run=channel, **about)
        self._trail.write()

    def refuse(self, neighbor: str, reason: str) -> None:
        """Write and log something that was refused, once."""
        reason = one_line(reason)
        if (neighbor, reason) not in self._told and len(self._told) < _MOST_REFUSALS:
            self._told.add((neighbor, reason))
            logger.warning("%s refused something from %s: %s", self._site, neighbor, reason)
            self._trail.add("refused", sender=neighbor, reason=reason)

    def used(self, study: str, use: Use) -> None:
        """Write that a person has put another version of a study's model to use, once."""
        if use.id not in self._trail.statements:
            self._trail.statements.add(use.id)
            self._trail.decide("version used", study=study, run=use.number, by=use.by, reason=use.reason, id=use.id)

    def hear(self, item: Item) -> None:
        """Write a statement when it is first heard of."""
        if item.id not in self._trail.statements:
            self._trail.statements.add(item.id)
            self._trail.decide("statement", site=item.site, said=item.said, id=item.id)
