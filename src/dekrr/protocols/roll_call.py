"""What sites agree on over edges alone: who is there, bounds, sums, and when to stop.

Nobody is told the number of sites, of rows, or the graph. `roll_call` finds them by flooding names or, where there are
many, by counting over a tree; its diameter is how many exchanges a maximum takes to reach everybody afterwards.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

from ..errors import MessageError
from ..messages import Bounds, Branch, Census, Roll, Tally, Total, expect, expect_kind, expect_senders
from ..scaling import Scaling
from ..types import Array
from .site import Inbox, Procedure, Site

_MOST_ROWS = 1 << 40  # of a site, so that sums of lies can be sent
_MOST_NAMED = 256  # sites that all know by name; where there are more, everybody knows its neighbours only
_AT_A_TIME = 2  # rounds whose largest residual is on its way


@dataclass(frozen=True)
class Roster:
    """What a roll call tells a site about the network.

    Parameters
    ----------
    rows : mapping of site to int
        Rows of every site (N_j); in a network of many of this one and its neighbours.
    whole : Tally
        What there is in all.
    diameter : int
        The most hops between two sites.
    root : str
        The root of the spanning tree: the site whose name sorts first.
    depth : int
        Hops from the root to this site.
    parent : str or None
        This site's neighbour on the way to the root.
    """

    rows: Mapping[str, int]
    whole: Tally
    diameter: int
    root: str
    depth: int
    parent: str | None

    @property
    def height(self) -> int:
        """The most hops from the root to a site."""
        return self.whole.height

    @property
    def names_all(self) -> bool:
        """Whether every site is in `rows`."""
        return len(self.rows) == self.n_sites

    @property
    def n_rows(self) -> int:
        """Rows of all sites together (N)."""
        return self.whole.rows

    @property
    def n_sites(self) -> int:
        """How many sites there are (J)."""
        return self.whole.sites


def roll_call(site: Site) -> Procedure[Roster]:
    """Find all sites, their row counts and the diameter, in 2 diameter + 2 exchanges; of many, by a `census`.

    In exchange k a site hears of the sites k hops away. The first exchange without a new name tells it its
    eccentricity (the hops to the farthest site), and all flood the largest they know. Eccentricities differ by 1 at
    most along an edge. So a site that knows of m, less than the diameter, has one of m + 1 within m hops, which knows
    it after exchange m + 2, and hears of it until exchange 2 m + 2. If it has not, m is the diameter: all know it then,
    and leave together. Whoever knows of more than 256 sites goes over to a census, and takes its neighbours along: it
    is heard of where further names would have been.
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
        if not are_named(len(rows)):
            return (yield from census(site, rows, {}))
        if not news and not counted:
            counted = True
            farthest = max(farthest, exchanges - 1)
            if site.name == root:
                height = exchanges - 1
    in_order = {name: rows[name] for name in sorted(rows)}
    whole = _counted(_of_one(name, n_rows) for name, n_rows in in_order.items())
    return Roster(in_order, msgspec.structs.replace(whole, height=height), farthest, root, depth=depth, parent=parent)


def are_named(n_sites: int) -> bool:
    """Return whether so many sites know each other by name, so that nobody has a reason for a census."""
    return n_sites <= _MOST_NAMED


def _of_one(name: str, n_rows: int) -> Tally:
    return Tally(1, n_rows, math.sqrt(n_rows), (n_rows, name), (n_rows, name), 0)


def _counted(parts: Iterable[Tally]) -> Tally:
    every = list(parts)
    return Tally(
        sites=sum(part.sites for part in every),
        rows=sum(part.rows for part in every),
        roots=sum(part.roots for part in every),
        fewest=min(part.fewest for part in every),
        most=max(part.most for part in every),
        height=max(part.height for part in every),
    )


def census(site: Site, rows: Mapping[str, int], inbox: Inbox) -> Procedure[Roster]:
    """Count sites, rows and edges over a tree, in 3 height + 2 exchanges from when its root begins.

    The first name floods, and each site's way to it is the neighbour it heard it from. That is the shortest way, as
    whoever hears of a census joins it at once. A branch is counted when all neighbours know the same root and all that
    hang on this site have counted theirs; the root's then is the whole, since somebody next to a site that knows of
    another root does not count. The root alone gets all edges, and finds the diameter. It goes down with the whole and
    the height, so that all know when all have it, and leave together.

    Parameters
    ----------
    site : Site
    rows : mapping of site to int
        Of this site, its neighbours, and maybe others.
    inbox : mapping of neighbour to message
        What brought the census here.
    """
    root, depth, parent = site.name, 0, None
    heard: dict[str, Census] = {}
    branches: dict[str, Branch] = {}  # of this root, by who told
    told: Tally | None = None
    whole, diameter = None, 0
    while True:
        _hear(heard, inbox)
        for p in sorted(heard):
            if heard[p].root < root:
                root, depth, parent = heard[p].root, heard[p].depth + 1, p
                branches, told = {}, None
        alike = {p: message for p, message in heard.items() if message.root == root}
        below = {p: message for p, message in alike.items() if message.parent == site.name}
        branches |= {p: message.branch for p, message in below.items() if message.branch is not None}
        branch = None
        if parent is not None:
            whole, diameter = alike[parent].whole, alike[parent].diameter
        if whole is None and told is None and len(alike) == len(site.neighbors) and below.keys() == branches.keys():
            branch = _joined(site, branches)
            told = branch.tally
            if parent is None:
                whole, diameter = told, _diameter(branch)
        if whole is not None:
            break
        plain = Census(root, depth, parent)
        outbox = dict(site.to_all(plain))
        if parent is not None and branch is not None:
            outbox[parent] = msgspec.structs.replace(plain, branch=branch)
        inbox = yield outbox
        expect_senders(inbox, site.neighbors)
    if told is None or not (_has(whole, told, depth) and whole.height <= diameter < whole.sites):
        raise MessageError(f"site {parent!r} tells of a tree that cannot be", parent)
    for _ in range(whole.height - depth):
        inbox = expect((yield site.to_all(Census(root, depth, parent, None, whole, diameter))), Census)
        expect_senders(inbox, site.neighbors)
    around = {name: rows[name] for name in sorted([site.name, *site.neighbors])}
    return Roster(around, whole, diameter, root, depth=depth, parent=parent)


def _hear(heard: dict[str, Census], inbox: Inbox) -> None:
    """Take in what neighbours tell; those that have not heard of the census yet still call the roll."""
    for p, message in inbox.items():
        if p in heard or isinstance(message, Census):
            told = expect_kind(p, message, Census)
            _check_census(p, told, heard.get(p))
            heard[p] = told


def _has(whole: Tally, part: Tally, depth: int) -> bool:
    """Return whether a whole can have a branch that begins so many hops from its root."""
    return (
        whole.sites >= part.sites + depth
        and whole.rows >= part.rows
        and whole.roots >= part.roots
        and whole.height >= part.height + depth
        and whole.fewest <= part.fewest
        and whole.most >= part.most
    )


def _joined(site: Site, branches: Mapping[str, Branch]) -> Branch:
    """Return the branch that hangs on the way from this site to the root."""
    lower = [branches[p] for p in sorted(branches)]
    tallies = [msgspec.structs.replace(part.tally, height=part.tally.height + 1) for part in lower]
    edges = [(site.name, p) for p in sorted(site.neighbors) if site.name < p]
    edges += [edge for part in lower for edge in part.edges]
    return Branch(_counted([_of_one(site.name, site.n_rows), *tallies]), edges)


def _diameter(whole: Branch) -> int:
    """Return the most hops between two sites, or a bound where the edges that were told do not join all of them."""
    n_sites = whole.tally.sites
    index = {name: i for i, name in enumerate(sorted({name for edge in whole.edges for name in edge}))}
    bound = min(2 * whole.tally.height, n_sites - 1)
    if len(index) != n_sites:
        return bound
    ends = np.array([(index[one], index[other]) for one, other in whole.edges])
    graph = csr_array((np.ones(2 * len(ends)), np.vstack([ends, ends[:, ::-1]]).T), shape=(n_sites, n_sites))
    most = 0
    for source in range(n_sites):
        order, before = breadth_first_order(graph, source)
        if len(order) < n_sites:
            return bound
        hops, place = 0, order[-1]
        while place != source:
            hops, place = hops + 1, before[place]
        most = max(most, hops)
    return most if most >= whole.tally.height else bound


def _check_census(sender: str, message: Census, before: Census | None) -> None:
    begins, last_root = message.root == sender, before.root if before is not None else sender
    fits = message.root <= last_root and (message.depth == 0) == begins and (message.parent is None) == begins
    for tally in message.tallies:
        fits &= 0 <= tally.height < tally.sites and 0 <= tally.rows <= _MOST_ROWS * tally.sites
        fits &= 0 <= tally.roots <= tally.rows
    if not fits or message.depth < 0:
        raise MessageError(f"site {sender!r} tells of a tree that cannot be", sender)


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
