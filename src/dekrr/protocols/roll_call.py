"""Who is there: names and numbers of rows by flooding or, in a large network, a census over a tree.

Nobody is told the number of sites, of rows, or the graph. The diameter that is found is how many exchanges a maximum
takes to reach everybody afterwards. A `Roster` is what a site knows of the network once its sites are counted. In a
large network, nobody knows all names, and sites are counted over a spanning tree.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

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


_WORDS = 8  # of 64 searches each, side by side: a site's part of a search stays in one line of the cache
_COLUMNS = 32  # neighbours that are taken one by one
_MOST_WORK = 3e10  # words, beyond which the diameter is bounded


def diameter_at_most(ends: np.ndarray, n_sites: int, most_work: float = _MOST_WORK) -> int | None:
    """Return the diameter of a graph with edges of shape (n_edges, 2), or an upper bound if it would take more work.

    It is None if the graph is not connected.

    Examples
    --------
    >>> path = np.array([[0, 1], [1, 2], [2, 3], [3, 4]])
    >>> diameter_at_most(path, 5), diameter_at_most(path, 5, most_work=0), diameter_at_most(path, 6)
    (4, 4, None)
    """
    if n_sites == 1:
        return 0
    starts, around = _neighbors(ends, n_sites)
    if len(starts) != n_sites:
        return None
    bounds = _bounds(starts, around)
    if bounds is None:
        return None
    farthest, bound = bounds
    if farthest == bound or len(around) * (n_sites / 64) * bound > most_work:
        return bound
    return _exact(starts, around)


def _neighbors(ends: np.ndarray, n_sites: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the neighbours of all sites, one after another, and where those of each site start."""
    both = np.vstack([ends, ends[:, ::-1]])
    both = np.unique(both[:, 0] * n_sites + both[:, 1])
    _, starts = np.unique(both // n_sites, return_index=True)
    return starts, both % n_sites


def _hops_from(source: int, starts: np.ndarray, around: np.ndarray) -> np.ndarray:
    """Return the number of hops from a source to each site; -1 where there is no way."""
    hops = np.full(len(starts), -1)
    front = np.zeros(len(starts), dtype=bool)
    hops[source], front[source], level = 0, True, 0
    while front.any():
        level += 1
        front = np.logical_or.reduceat(front[around], starts) & (hops < 0)
        hops[front] = level
    return hops


def _bounds(starts: np.ndarray, around: np.ndarray) -> tuple[int, int] | None:
    """Return a lower and an upper bound of the diameter by four searches; None where not all sites are joined.

    The first two searches find a long shortest path. A site in its middle has a small eccentricity.
    """
    one = _hops_from(0, starts, around)
    if one.min() < 0:
        return None
    two = _hops_from(int(one.argmax()), starts, around)
    far = int(two.argmax())
    three = _hops_from(far, starts, around)
    longest = int(two.max())
    on_a_path = two + three == longest
    middle = int(np.flatnonzero(on_a_path & (two == longest // 2))[0])
    four = _hops_from(middle, starts, around)
    largest = [int(hops.max()) for hops in (one, two, three, four)]
    return max(largest), min(2 * min(largest), len(starts) - 1)


def _exact(starts: np.ndarray, around: np.ndarray) -> int:
    n_sites, farthest = len(starts), 0
    spread = _Spread(starts, around)
    for first in range(0, n_sites, 64 * _WORDS):
        sources = np.arange(first, min(first + 64 * _WORDS, n_sites))
        place = sources - first
        front = np.zeros((n_sites, _WORDS), dtype=np.uint64)
        front[spread.place[sources], place // 64] = np.uint64(1) << (place % 64).astype(np.uint64)
        unseen, level = ~front, 0
        while True:
            front = spread(front) & unseen
            if not front.any():
                break
            unseen ^= front
            level += 1
        farthest = max(farthest, level)
    return farthest


class _Spread:
    """One hop of all searches: each site gets the bits of all its neighbours.

    Sites are sorted by their number of neighbours. The i-th neighbours of all sites that have so many are taken at
    once. What a hub has beyond `_COLUMNS` neighbours is taken together.
    """

    def __init__(self, starts: np.ndarray, around: np.ndarray) -> None:
        degrees = np.diff(np.append(starts, len(around)))
        order = np.argsort(-degrees, kind="stable")
        self.place = np.empty_like(order)  # where each site is after sorting
        self.place[order] = np.arange(len(order))
        around, starts, degrees = self.place[around], starts[order], degrees[order]
        self._columns = [around[starts[degrees > i] + i] for i in range(min(degrees[0], _COLUMNS))]
        hubs = np.flatnonzero(degrees > _COLUMNS)
        rest = [around[starts[hub] + _COLUMNS : starts[hub] + degrees[hub]] for hub in hubs]
        self._rest = np.concatenate(rest) if rest else np.empty(0, dtype=np.intp)
        self._starts = np.cumsum([0, *map(len, rest)])[:-1]

    def __call__(self, front: np.ndarray) -> np.ndarray:
        first, *others = self._columns
        spread = front.take(first, axis=0)
        for column in others:
            spread[: len(column)] |= front.take(column, axis=0)
        if len(self._rest):
            spread[: len(self._starts)] |= np.bitwise_or.reduceat(front[self._rest], self._starts, axis=0)
        return np.asarray(spread)
