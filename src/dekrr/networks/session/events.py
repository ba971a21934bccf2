"""What happens to a site in a run, each as a struct. Whoever wants to know is a listener: a callable that takes one.

As JSON an event is one object: its name under `event`, and its fields.
"""

from collections.abc import Callable

import msgspec

from ...errors import one_line


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of all events."""


Listener = Callable[[Event], None]


class Resumed(Event, frozen=True, tag="resumed"):
    """The site went through its checkpoint and waits in `exchange`."""

    exchange: int


class Up(Event, frozen=True, tag="up"):
    """A neighbour can be reached."""

    neighbor: str


class Down(Event, frozen=True, tag="down"):
    """A neighbour died, or cannot be reached."""

    neighbor: str


class Refused(Event, frozen=True, tag="refused"):
    """Something from `sender` was refused."""

    sender: str
    reason: str


class Refusing(Event, frozen=True, tag="refusing"):
    """The run cannot start."""

    reason: str


class Agreed(Event, frozen=True, tag="agreed"):
    """All sites agree on the terms: the run starts."""

    sites: list[str]


class Gone(Event, frozen=True, tag="gone"):
    """Sites were declared gone in `exchange`: a new epoch begins without them."""

    sites: list[str]
    reason: str
    exchange: int


class Exchanged(Event, frozen=True, tag="exchange"):
    """An exchange is complete.

    Parameters
    ----------
    exchange : int
        The one that is waited for next.
    round : int
        Rounds of the solver so far.
    residual : float or None
        The largest relative residual heard of, if any was.
    """

    exchange: int
    round: int
    residual: float | None


class Unconfirmed(Event, frozen=True, tag="unconfirmed"):
    """The site keeps its result without the word of the sites `missing` that it stands."""

    missing: list[str]


class CheckpointLost(Event, frozen=True, tag="checkpoint lost"):
    """The checkpoint cannot be written any more; the run goes on without it."""

    reason: str


class TellOnce:
    """Tells once why something from a sender was refused.

    Parameters
    ----------
    listen : callable
        Gets a `Refused` for every new pair of sender and reason, up to a limit.
    """

    _MOST = 1000  # refusals

    def __init__(self, listen: Listener) -> None:
        self._listen = listen
        self._told: set[tuple[str, str]] = set()

    def __call__(self, sender: str, reason: str) -> None:
        """Tell that something from `sender` was refused, and why, unless that was told before."""
        reason = one_line(reason)
        if (sender, reason) not in self._told and len(self._told) < self._MOST:
            self._told.add((sender, reason))
            self._listen(Refused(sender=sender, reason=reason))
