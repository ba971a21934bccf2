"""What a session of the mesh must know about our messages, so that it need not know the messages.

It implements `dekrr.mesh.session.Interpreter`.
"""

from ..errors import MessageError
from ..messages import (
    AnyMessage,
    Bounds,
    Census,
    Chosen,
    Features,
    Message,
    Offer,
    RawColumns,
    Roll,
    Shortlist,
    residual_of,
)
from ..protocols import roll_call
from ..protocols.run import Outcome

_EXACT = frozenset({Roll, Census, RawColumns, Bounds, Shortlist, Chosen, Features})
_LONGEST_CENSUS = 6  # exchanges a site


class MessageReader:
    """Reads messages and outcomes for a session."""

    def check(self, message: AnyMessage, sender: str, exchange: int, sites: frozenset[str]) -> None:
        """Refuse a roll call or a census that cannot be true of these sites.

        `sites`: all sites of the run but those that the sender knows to be gone.
        """
        if isinstance(message, Roll):
            _check_roll(message, sender, sites)
        elif isinstance(message, Census):
            _check_census(message, sender, exchange, sites)

    def is_exact(self, message: AnyMessage) -> bool:
        """Return whether a site that starts again sends this message again to the last bit."""
        return type(message) in _EXACT

    def is_choice(self, message: Message) -> bool:
        """Return whether a message announces features that the site chose; a shortlist is no choice yet."""
        return isinstance(message, Offer)

    def residual(self, message: Message) -> float | None:
        """Return the relative residual that a round's message tells (NaN if none yet); None for other messages."""
        return residual_of(message)

    def absent(self, outcome: Outcome, sites: frozenset[str]) -> str:
        """Return in words which of `sites` the roll call of an outcome did not find; nothing if it found all."""
        roster = outcome.roster
        if roster.n_sites >= len(sites):
            return ""
        if roster.names_all:
            return f"the sites {', '.join(sorted(sites - roster.rows.keys()))}"
        return f"{len(sites) - roster.n_sites} of {len(sites)} sites"

    def diameter(self, outcome: Outcome) -> int:
        """Return the largest number of hops between two sites."""
        return outcome.roster.diameter


def _check_roll(roll: Roll, sender: str, sites: frozenset[str]) -> None:
    for name, rows in roll.rows.items():
        if name not in sites or rows < 0:
            raise MessageError(f"site {sender!r} names a site {name!r} that cannot exist", sender)
    if not 0 <= roll.height <= roll.farthest < len(sites):
        raise MessageError(f"site {sender!r} reports {roll.farthest} hops between sites, which is impossible", sender)


def _check_census(census: Census, sender: str, exchange: int, sites: frozenset[str]) -> None:
    names, n_sites = {census.root}, 1 + max(census.depth, census.diameter)
    for tally in census.tallies:
        names |= {tally.fewest[1], tally.most[1]}
        n_sites = max(n_sites, tally.sites, tally.height + 1)
    edges = census.branch.edges if census.branch is not None else []
    names.update(*edges)
    fits = not roll_call.are_named(len(sites)) and names <= sites and n_sites <= len(sites)
    if not fits or census.depth > exchange or len(set(edges)) < len(edges):
        raise MessageError(f"site {sender!r} sent a census that cannot be true", sender)
    if exchange > _LONGEST_CENSUS * len(sites):
        raise MessageError(f"site {sender!r} does not finish its census", sender)
