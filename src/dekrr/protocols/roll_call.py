"""Who is there: names and numbers of rows by flooding or, in a large network, a census over a tree.

Nobody is told the number of sites, of rows, or the graph. The diameter that is found is how many exchanges a maximum
takes to reach everybody afterwards. A `Roster` is what a site knows of the network once its sites are counted. In a
large network, nobody knows all names, and sites are counted over a spanning tree.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from ..errors import MessageError
from ..messages import Branch, Census, Roll, Tally, expect, expect_kind, expect_senders
from .site import Inbox, Procedure, Site


@dataclass(frozen=True)
class Roster:
    """What a roll call tells a site about the network."""

    # how many rows each site has (N_j); in a large network of this site and its neighbours alone. A row counts once
    # here, whatever its weight is.
    rows: Mapping[str, int]
    whole: Tally  # what was counted over all sites
    diameter: int  # the largest number of hops between two sites
    root: str  # the root of the spanning tree: the site whose name sorts first
    depth: int  # hops from the root to this site
    parent: str | None  # this site's neighbour on the way to the root
    # where rows have weights, the sum of them at this site and at each neighbour
    weights: Mapping[str, float] | None = None
    total_weight: float | None = None  # where rows have weights, the sum of them over all sites

    def weight_of(self, site: str) -> float:
        """Return the sum of the weights at this site or at a neighbour: the number of rows where they have none."""
        return float(self.rows[site]) if self.weights is None else self.weights[site]

    @property
    def n_counted(self) -> float:
        """What the rows of all sites count together: N of the objective, their number where they have no weights."""
        return float(self.n_rows) if self.total_weight is None else self.total_weight

    @property
    def mean_weight(self) -> float:
        """What a row counts in the mean over all sites' rows; 1 where they have no weights."""
        return self.n_counted / self.n_rows if self.n_counted > 0 else 1.0

    @property
    def alone(self) -> "Roster":
        """The same network, with a tree of this site alone: a sum over it is the site's own, and takes no exchange."""
        return replace(self, whole=msgspec.structs.replace(self.whole, height=0), depth=0, parent=None)

    @property
    def height(self) -> int:
        """The largest number of hops from the root to a site."""
        return self.whole.height

    @property
    def names_all(self) -> bool:
        """Whether every site is in `rows`."""
        return len(self.rows) == self.n_sites

    @property
    def n_rows(self) -> int:
        """How many rows all sites have together (N)."""
        return self.whole.rows

    @property
    def n_sites(self) -> int:
        """How many sites there are (J)."""
        return self.whole.sites


def tally_of(name: str, n_rows: int) -> Tally:
    """Return the tally of one site."""
    return Tally(1, n_rows, math.sqrt(n_rows), (n_rows, name), (n_rows, name), 0)


def joined(parts: Iterable[Tally]) -> Tally:
    """Return the tally of several parts of a tree; its height is that of the highest."""
    tallies = list(parts)
    return Tally(
        sites=sum(tally.sites for tally in tallies),
        rows=sum(tally.rows for tally in tallies),
        roots=sum(tally.roots for tally in tallies),
        fewest=min(tally.fewest for tally in tallies),
        most=max(tally.most for tally in tallies),
        height=max(tally.height for tally in tallies),
    )


_MOST_ROWS = 1 << 40  # of a site, so that sums of lies can be sent


def census(site: Site, rows: Mapping[str, int], inbox: Inbox) -> Procedure[Roster]:
    """Count sites, rows and edges over a spanning tree, in 3 height + 2 exchanges from when its root begins.

    The name that sorts first is flooded, and is the root. A site's parent is the neighbour that it heard the root from.
    That is the shortest way, because a site joins a census as soon as it hears of one. A site counts its branch once
    all its neighbours know the same root and all its children have counted theirs. The root's branch is then the whole:
    a neighbour of a site that knows another root does not count. The root alone gets all edges, and finds the diameter.
    The diameter goes down the tree with the whole and its height. So all sites know when the last one has it, and leave
    together. `rows` are those of this site and its neighbours, maybe others; `inbox` is what told of the census.
    """
    root, depth, parent = site.name, 0, None
    heard: dict[str, Census] = {}
    branches: dict[str, Branch] = {}  # of this root, by sender
    counted: Tally | None = None  # this site's branch
    whole, diameter = None, 0
    while True:
        _hear(heard, inbox)
        for p in sorted(heard):
            if heard[p].root < root:
                root, depth, parent = heard[p].root, heard[p].depth + 1, p
                branches, counted = {}, None
        alike = {p: message for p, message in heard.items() if message.root == root}
        below = {p: message for p, message in alike.items() if message.parent == site.name}
        branches |= {p: message.branch for p, message in below.items() if message.branch is not None}
        branch = None
        if parent is not None:
            whole, diameter = alike[parent].whole, alike[parent].diameter
        if whole is None and counted is None and len(alike) == len(site.neighbors) and below.keys() == branches.keys():
            branch = _joined(site, branches)
            counted = branch.tally
            if parent is None:
                whole, diameter = counted, _diameter(branch)
        if whole is not None:
            break
        plain = Census(root, depth, parent)
        outbox = dict(site.to_all(plain))
        if parent is not None and branch is not None:
            outbox[parent] = msgspec.structs.replace(plain, branch=branch)
        inbox = yield outbox
        expect_senders(inbox, site.neighbors)
    if counted is None or not (_has(whole, counted, depth) and whole.height <= diameter < whole.sites):
        raise MessageError(f"site {parent!r} describes a tree that cannot exist", parent)
    for _ in range(whole.height - depth):
        inbox = expect((yield site.to_all(Census(root, depth, parent, None, whole, diameter))), Census)
        expect_senders(inbox, site.neighbors)
    around = {name: rows[name] for name in sorted([site.name, *site.neighbors])}
    return Roster(around, whole, diameter, root, depth=depth, parent=parent)


def _hear(heard: dict[str, Census], inbox: Inbox) -> None:
    """Take in the neighbours' messages; a neighbour that has not heard of the census yet still calls the roll."""
    for p, message in inbox.items():
        if p in heard or isinstance(message, Census):
            news = expect_kind(p, message, Census)
            _check_census(p, news, heard.get(p))
            heard[p] = news


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
    return Branch(joined([tally_of(site.name, site.n_rows), *tallies]), edges)


def _diameter(whole: Branch) -> int:
    """Return the largest number of hops between two sites, or an upper bound.

    It is a bound in a network of very many sites, and where the edges do not join all sites.
    """
    n_sites = whole.tally.sites
    index = {name: i for i, name in enumerate(sorted({name for edge in whole.edges for name in edge}))}
    bound = min(2 * whole.tally.height, n_sites - 1)
    if len(index) != n_sites:
        return bound
    ends = np.array([(index[one], index[other]) for one, other in whole.edges]).reshape(-1, 2)
    diameter = diameter_at_most(ends, n_sites)
    return diameter if diameter is not None and diameter >= whole.tally.height else bound


def _check_census(sender: str, message: Census, before: Census | None) -> None:
    begins, last_root = message.root == sender, before.root if before is not None else sender
    fits = message.root <= last_root and (message.depth == 0) == begins and (message.parent is None) == begins
    for tally in message.tallies:
        fits &= 0 <= tally.height < tally.sites and 0 <= tally.rows <= _MOST_ROWS * tally.sites
        fits &= 0 <= tally.roots <= tally.rows
    if not fits or message.depth < 0:
        raise MessageError(f"site {sender!r} describes a tree that cannot exist", sender)


_MOST_NAMED = 256  # sites that all know by name; where there are more, everybody knows its neighbours only


class RollCall:
    """The roll of a run, which is called when it is first asked for.

    All sites of a run ask for it at the same exchange.
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
    whole = _counted(tuple(in_order.items()))
    return Roster(in_order, msgspec.structs.replace(whole, height=height), farthest, root, depth=depth, parent=parent)


@lru_cache(maxsize=4)
def _counted(rows: tuple[tuple[str, int], ...]) -> Tally:
    """Return the tally of sites and their numbers of rows: once for all sites of a process."""
    return joined(tally_of(name, n_rows) for name, n_rows in rows)


def are_named(n_sites: int) -> bool:
    """Return whether so many sites all know each other by name, so that no site has a reason for a census."""
    return n_sites <= _MOST_NAMED


_AT_ONCE = 256  # sites whose hops to all others are in memory
_MOST_WORK = 1e9  # sites times edges, beyond which the diameter is bounded


def diameter_at_most(ends: np.ndarray, n_sites: int, most_work: float = _MOST_WORK) -> int | None:
    """Return the diameter of a graph with edges of shape (n_edges, 2), or an upper bound if it would take more work.

    It is None if the graph is not connected. Four searches bound it: the first two find a long shortest path, and a
    site in its middle has few hops to the farthest site.
    """
    if n_sites == 1:
        return 0
    from scipy.sparse import coo_matrix  # of the root of a large network alone
    from scipy.sparse.csgraph import dijkstra

    edges = coo_matrix((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(n_sites, n_sites)).tocsr()

    def hops_from(sources: Any) -> np.ndarray:
        return np.asarray(dijkstra(edges, directed=False, unweighted=True, indices=sources))

    one = hops_from(0)
    if not np.isfinite(one).all():
        return None
    two = hops_from(int(one.argmax()))
    three = hops_from(int(two.argmax()))
    longest = two.max()
    middle = int(np.flatnonzero((two + three == longest) & (two == longest // 2))[0])
    largest = [hops.max() for hops in (one, two, three, hops_from(middle))]
    bound = int(min(2 * min(largest), n_sites - 1))
    if max(largest) == bound or n_sites * len(ends) > most_work:
        return bound
    batches = np.array_split(np.arange(n_sites), -(-n_sites // _AT_ONCE))
    return int(max(hops_from(sources).max() for sources in batches))
