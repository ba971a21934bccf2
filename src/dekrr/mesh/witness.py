"""What a standing site writes to its audit trail as it happens: what leaves, what it refuses, what is said.

What others refuse, and which of their runs failed, is logged too.
"""

import hashlib
import logging
from collections import deque

from ..errors import one_line
from .audit_trail import AuditTrail
from .reveals import describe
from .store import Store
from .studies.book import Book
from .studies.gossip import CHANNEL
from .studies.items import Decision, Item, Report
from .studies.run_endings import WHOLE, is_echo

logger = logging.getLogger("dekrr")
_MOST_REFUSALS = 1000  # different ones of a site's life that are told
_REPEATED = 256  # frames about studies to a neighbour that are known again


class Witness:
    """The one that writes."""

    def __init__(self, site: str, trail: AuditTrail, book: Book) -> None:
        self._site = site
        self._trail = trail
        self._book = book
        self._told: set[tuple[str, str]] = set()
        self._sent: dict[str, deque[str]] = {}

    def leaves(self, channel: str, receiver: str, frame: bytes) -> None:
        """Write what is about to leave; it is on disk before it leaves."""
        if channel == CHANNEL:
            digest = hashlib.sha256(frame).hexdigest()
            sent = self._sent.setdefault(receiver, deque(maxlen=_REPEATED))
            if digest in sent:  # a beat, or a frame that was lost: word for word it tells nothing new
                return
            sent.append(digest)
            about = {"message": "statements", "bytes": len(frame), "digest": digest}
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

    def catch_up(self, store: Store) -> None:
        """Write the statements and the choices of versions that are not in the trail yet.

        A crash between the line and the note of it in the store brings the line twice.
        """
        for item in self._book.unheard:
            self._trail.decide("statement", site=item.site, said=item.said, id=item.id)
            self._book.note_heard(item)
            self._log(item)
        for use, label, number, by, reason in store.rows(
            "SELECT id, study, number, by, reason FROM use WHERE NOT audited"
        ):
            digests = [state.digest for state in self._book.studies.values() if state.label == label]
            study = digests[0] if digests else label
            self._trail.decide("version used", study=study, run=number, by=by, reason=reason, id=use)
            store.write("UPDATE use SET audited = 1 WHERE id = ?", use)

    def _log(self, item: Item) -> None:
        body = item.body
        if isinstance(body, Decision) and body.says != "approve":
            said, why = {"refuse": "refuses", "stop": "stops"}[body.says], one_line(body.reason, WHOLE)
            about = self._site, item.site, said, self._label(body.study), body.by, why or "no reason given"
            logger.warning("%s: %s %s study %s, %s: %s", *about)
        elif isinstance(body, Report) and body.outcome == "failed" and item.site != self._site and not is_echo(body):
            label, why = self._label(body.study), one_line(body.reason, WHOLE)
            logger.warning("%s: run %d of %s has failed at %s: %s", self._site, body.number, label, item.site, why)

    def _label(self, digest: str) -> str:
        state = self._book.studies.get(digest)
        return digest[:8] if state is None else state.label
