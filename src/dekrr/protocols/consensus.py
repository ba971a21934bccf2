"""What sites agree on over edges alone: who is there, bounds, sums, and when to stop.

Nobody is told the number of sites, of rows, or the graph. `roll_call` finds them by flooding;
its diameter is how many exchanges a maximum takes to reach everybody afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import MessageError
from ..messages import Bounds, Roll, Total, expect, expect_senders
from ..scaling import Scaling
from ..types import Array
from .site import Procedure, Site

_AT_A_TIME = 2  # rounds whose largest residual is on its way


@dataclass(frozen=True)
class Roster:
    """What a roll call tells a site about the network.

    Parameters
    ----------
    rows : mapping of site to int
        Rows of every site (N_j).
    diameter : int
        The most hops between two sites.
    root : str
        The root of the spanning tree: the site whose name sorts first.
    height : int
        The most hops from the root to a site.
    depth : int
        Hops from the root to this site.
    parent : str or None
        This site's neighbour on the way to the root.
    """

    rows: Mapping[str, int]
    diameter: int
    root: str
    height: int
    depth: int
    parent: str | None

    @property
    def n_rows(self) -> int:
        """Rows of all sites together (N)."""
        return sum(self.rows.values())

    @property
    def n_sites(self) -> int:
        """How many sites there are (J)."""
        return len(self.rows)


def roll_call(site: Site) -> Procedure[Roster]:
    """Find all sites, their row counts and the diameter, in 2 diameter + 2 exchanges.

    In exchange k a site hears of the sites k hops away. The first exchange without a new name tells it its
    eccentricity (the hops to the farthest site), and all flood the largest they know. Eccentricities differ by 1 at
    most along an edge. So a site that knows of m, less than the diameter, has one of m + 1 within m hops, which knows
    it after exchange m + 2, and hears of it until exchange 2 m + 2. If it has not, m is the diameter: all know it then,
    and leave together.
    """
    rows = {site.name: site.n_rows}
    root, depth, parent = site.name, 0, None
    news = dict(rows)
    farthest = height = exchanges = 0
    counted = False
    while not counted or exchanges < 2 * farthest + 2:
        inbox = expect((yield site.to_all(Roll(news, farthest, height))), Roll)
        expect_senders(inbox, site.neighbors)
        exchanges += 1
        news = {}
        for sender, message in sorted(inbox.items()):
            if exchanges == 1 and message.rows.keys() != {sender}:
                raise MessageError(f"site {sender!r} does not begin with its own rows, and no others", sender)
            if not 0 <= message.height <= message.farthest <= max(0, exchanges - 2):
                raise MessageError(f"site {sender!r} tells of a distance that it cannot know yet", sender)
            new = {name: n_rows for name, n_rows in message.rows.items() if name not in rows}
            if new:
                rows |= new
                news |= new
                first = min(new)
                if first < root:
                    root, depth, parent = first, exchanges, sender
            farthest, height = max(farthest, message.farthest), max(height, message.height)
        if not news and not counted:
            counted = True
            farthest = max(farthest, exchanges - 1)
            if site.name == root:
                height = exchanges - 1
    in_order = {name: rows[name] for name in sorted(rows)}
    return Roster(in_order, farthest, root, height=height, depth=depth, parent=parent)


def agree_on_scaling(site: Site, roster: Roster) -> Procedure[Scaling]:
    """Find the bounds of every column and of the response over all sites, in diameter exchanges."""
    lower, upper = site.rows.bounds.lower, site.rows.bounds.upper
    shapes = dict.fromkeys(site.neighbors, lower.shape)
    for _ in range(roster.diameter):
        inbox = expect((yield site.to_all(Bounds(lower, upper))), Bounds, lower=shapes, upper=shapes)
        lower = np.min([lower, *(message.lower for message in inbox.values())], axis=0)
        upper = np.max([upper, *(message.upper for message in inbox.values())], axis=0)
    return Scaling(lower, upper)


def tree_sum(site: Site, roster: Roster, values: Array) -> Procedure[Array]:
    """Sum vectors of all sites exactly, in 2 height exchanges over the spanning tree.

    Partial sums go up, deepest sites first; the total comes down. Every edge of the tree carries one vector
    each way, whatever the number of sites.
    """
    total = values
    children: list[str] = []
    for step in range(roster.height):
        my_turn = roster.parent is not None and step == roster.height - roster.depth
        inbox = yield {roster.parent: Total(total)} if my_turn and roster.parent else {}
        for child, message in expect(inbox, Total, values=dict.fromkeys(inbox, values.shape)).items():
            if child == roster.parent or step != roster.height - roster.depth - 1:
                raise MessageError(f"site {child!r} sent a partial sum out of turn", child)
            children.append(child)
            total = total + message.values
    for step in range(roster.height):
        inbox = yield dict.fromkeys(children, Total(total)) if step == roster.depth else {}
        due = {roster.parent: values.shape} if roster.parent and step == roster.depth - 1 else {}
        for message in expect(inbox, Total, values=due).values():
            total = message.values
    return total


class Progress:
    """Decides, at all sites in the same round, whether the largest residual is small enough.

    Every site's residual and scale (what it is relative to) ride on the message of the next exchange, and each
    site passes on the largest of that round that it has heard. After `diameter` exchanges that is the largest of all.
    Two rounds are on their way at a time, so that every round, or every (diameter / 2)th, may be the last.

    Parameters
    ----------
    diameter : int
    tol : float
        Settled when the largest residual is at most `tol` times the largest scale; 0 never settles.
    """

    def __init__(self, diameter: int, tol: float) -> None:
        self._diameter = diameter
        self._tol = tol
        self._every = max(1, -(-diameter // _AT_A_TIME))
        self._exchanges = 0
        self.share: tuple[float, ...] = ()  # what rides on the next message: residual, scale, newest round first
        self.relative = np.inf
        self.settled = False

    def after_exchange(self, own: tuple[float, float], neighbors: Mapping[str, tuple[float, ...]]) -> None:
        """Take in what the neighbours passed on and this site's (residual, scale) after this exchange."""
        due = len(self.share)
        for sender, share in neighbors.items():
            if len(share) != due:
                raise MessageError(f"site {sender!r} sent {len(share)} numbers about progress, expected {due}", sender)
        heard = tuple(map(max, self.share, *neighbors.values())) if neighbors else self.share
        newest = self._exchanges % self._every
        if newest == 0:
            heard = own + heard
        oldest = newest + (len(heard) // 2 - 1) * self._every
        if oldest == self._diameter:
            *others, residual, scale = heard
            heard = tuple(others)
            self.relative = residual / scale if scale > 0 else 0.0
            self.settled = self._tol > 0 and self.relative <= self._tol
        self.share = heard
        self._exchanges += 1
