"""The events of a session, as structs. A listener is a callable that takes an event.

In JSON an event is one object: its name under `event`, and its fields.
"""

from collections.abc import Callable

import msgspec

from ...errors import one_line


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base class of all events."""


Listener = Callable[[Event], None]


class Resumed(Event, frozen=True, tag="resumed"):
    """The site has replayed its checkpoint and waits in `exchange`."""

    exchange: int


class Up(Event, frozen=True, tag="up"):
    """A neighbour can be reached."""

    neighbor: str


class Down(Event, frozen=True, tag="down"):
    """A neighbour has died or cannot be reached."""

    neighbor: str


class Refused(Event, frozen=True, tag="refused"):
    """A frame from `sender` was refused."""

    sender: str
    reason: str


class Refusing(Event, frozen=True, tag="refusing"):
    """The run cannot start."""

    reason: str


class Agreed(Event, frozen=True, tag="agreed"):
    """All sites agree on the terms: the run starts."""

    sites: list[str]


class Gone(Event, frozen=True, tag="gone"):
    """Sites or links are lost in `exchange`: a new epoch begins without them.

    A link is named by its two ends, "a|b". Sites that cannot be reached over the links that are left are gone.
    """

    sites: list[str]
    links: list[str]
    reason: str
    exchange: int


class Exchanged(Event, frozen=True, tag="exchange"):
    """An exchange is complete."""

    exchange: int  # the exchange that the site waits for next
    round: int  # the number of rounds of the solver so far
    residual: float | None  # the largest relative residual that the site knows; None if it knows none


class Unconfirmed(Event, frozen=True, tag="unconfirmed"):
    """The site keeps its result, although the sites `missing` have not confirmed that it is final."""

    missing: list[str]


class CheckpointLost(Event, frozen=True, tag="checkpoint lost"):
    """The checkpoint can no longer be written; the run goes on without it."""

    reason: str


class TellOnce:
    """Reports each pair of a sender and a reason for a refusal once.

    `listen`: gets a `Refused` for every new pair of sender and reason, up to a limit.
    """

    _MAX_REPORTS = 1000

    def __init__(self, listen: Listener) -> None:
        self._listen = listen
        self._reported: set[tuple[str, str]] = set()

    def __call__(self, sender: str, reason: str) -> None:
        """Report that a frame from `sender` was refused, and why, unless that was reported before."""
        reason = one_line(reason)
        if (sender, reason) not in self._reported and len(self._reported) < self._MAX_REPORTS:
            self._reported.add((sender, reason))
            self._listen(Refused(sender=sender, reason=reason))
