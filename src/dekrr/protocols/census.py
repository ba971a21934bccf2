"""Counting the sites of a large network over a spanning tree, where nobody knows all names."""

from collections.abc import Mapping

import msgspec
import numpy as np

from ..errors import MessageError
from ..hops import diameter_at_most
from ..messages import Branch, Census, Tally, expect, expect_kind, expect_senders
from .roster import Roster, joined, tally_of
from .site import Inbox, Procedure, Site

_MOST_ROWS = 1 << 40  # of a site, so that sums of lies can be sent


def census(site: Site, rows: Mapping[str, int], inbox: Inbox) -> Procedure[Roster]:
    """Count sites, rows and edges over a spanning tree, in 3 height + 2 exchanges from when its root begins.

    The name that sorts first is flooded, and is the root. A site's parent is the neighbour that it heard the root from.
    That is the shortest way, because a site joins a census as soon as it hears of one. A site counts its branch once
    all its neighbours know the same root and all its children have counted theirs. The root's branch is then the whole:
    a neighbour of a site that knows another root does not count. The root alone gets all edges, and finds the diameter.
    The diameter goes down the tree with the whole and its height. So all sites know when the last one has it, and
    leave together.

    Parameters
    ----------
    site : Site
    rows : mapping of site to int
        How many rows this site has, its neighbours, and maybe others.
    inbox : mapping of neighbour to message
        The messages that told this site of the census.
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
