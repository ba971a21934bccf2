"""Who is there: names and numbers of rows by flooding or, in a large network, a census over a tree.

Nobody is told the number of sites, of rows, or the graph. The diameter that is found is how many exchanges a maximum
takes to reach everybody afterwards.
"""

import msgspec

from ..errors import MessageError
from ..messages import Census, Roll, expect, expect_senders
from .census import census
from .roster import Roster, joined, tally_of
from .site import Procedure, Site

_MOST_NAMED = 256  # sites that all know by name; where there are more, everybody knows its neighbours only


class RollCall:
    """The roll of a run, which is called when it is first asked for.

    All sites of a run ask for it at the same exchange.

    Parameters
    ----------
    site : Site
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._roster: Roster | None = None

    @property
    def is_over(self) -> bool:
        """Whether the roll has been called, so that all rows are counted."""
        return self._roster is not None

    def found(self, roster: Roster) -> None:
        """Keep what has been found besides."""
        self._roster = roster

    def roster(self) -> Procedure[Roster]:
        """Return what the roll call finds; it takes exchanges the first time alone."""
        if self._roster is None:
            self._roster = yield from roll_call(self._site)
        return self._roster


def roll_call(site: Site) -> Procedure[Roster]:
    """Find all sites, their numbers of rows and the diameter, in 2 diameter + 2 exchanges; of many, by a `census`.

    In exchange k a site hears of the sites k hops away. The first exchange without a new name tells the site its
    eccentricity (the hops to the farthest site), and all sites flood the largest that they know. Eccentricities differ
    by 1 at most along an edge. So a site that knows of m, less than the diameter, has a site of eccentricity m + 1
    within m hops. That site knows it after exchange m + 2, and this site hears of it until exchange 2 m + 2. If it has
    not, m is the diameter. All sites know that in the same exchange, and leave together.

    A site that knows of more than 256 sites goes over to a census. Its neighbours hear of the census where they would
    have heard of further names, and follow.
    """
    rows = {site.name: site.n_rows}
    root, depth, parent = site.name, 0, None
    news = dict(rows)
    farthest = height = exchanges = 0
    counted = False
    while not counted or exchanges < 2 * farthest + 2:
        mixed = yield site.to_all(Roll(news, farthest, height))
        expect_senders(mixed, site.neighbors)
        exchanges += 1
        if exchanges > 1 and any(isinstance(message, Census) for message in mixed.values()):
            return (yield from census(site, rows, mixed))
        inbox = expect(mixed, Roll)
        news = {}
        for sender, message in sorted(inbox.items()):
            if exchanges == 1 and message.rows.keys() != {sender}:
                raise MessageError(f"site {sender!r} did not begin with its own rows alone", sender)
            if not 0 <= message.height <= message.farthest <= max(0, exchanges - 2):
                raise MessageError(f"site {sender!r} reports a distance that it cannot know yet", sender)
            new = {name: n_rows for name, n_rows in message.rows.items() if name not in rows}
            if new:
                rows |= new
                news |= new
                first = min(new)
                if first < root:
                    root, depth, parent = first, exchanges, sender
            farthest, height = max(farthest, message.farthest), max(height, message.height)
        if not are_named(len(rows)):
            return (yield from census(site, rows, {}))
        if not news and not counted:
            counted = True
            farthest = max(farthest, exchanges - 1)
            if site.name == root:
                height = exchanges - 1
    in_order = {name: rows[name] for name in sorted(rows)}
    whole = joined(tally_of(name, n_rows) for name, n_rows in in_order.items())
    return Roster(in_order, msgspec.structs.replace(whole, height=height), farthest, root, depth=depth, parent=parent)


def are_named(n_sites: int) -> bool:
    """Return whether so many sites all know each other by name, so that no site has a reason for a census."""
    return n_sites <= _MOST_NAMED
