"""What a run has lost: sites, and links between sites. The set of both names an epoch.

A neighbour that cannot be reached may be dead, or only the link to it may be broken. The site that waits for it cannot
tell, and declares the *link* lost. A site all of whose links are lost has left the run, as has everything that cannot
be reached from here over the links that are left. A neighbour that breaks the rules is lost itself.
"""

from collections.abc import Iterable, Mapping

_BETWEEN = "|"  # no name of a site has it
Graph = Mapping[str, Iterable[str]]


def link(one: str, other: str) -> str:
    """Return the name of the link between two sites.

    Examples
    --------
    >>> link("b", "a")
    'a|b'
    """
    return _BETWEEN.join(sorted((one, other)))


def ends(lost: str) -> tuple[str, ...]:
    """Return the two ends of a link, or the site itself.

    Examples
    --------
    >>> ends("a|b"), ends("a")
    (('a', 'b'), ('a',))
    """
    return tuple(lost.split(_BETWEEN))


def is_known(lost: str, sites: frozenset[str]) -> bool:
    """Return whether a text names one of the sites, or a link between two of them."""
    named = ends(lost)
    return sites.issuperset(named) and (len(named) == 1 or (len(named) == 2 and lost == link(*named)))


def present(name: str, neighbors: Iterable[str], lost: frozenset[str]) -> tuple[str, ...]:
    """Return the neighbours that are not lost, and the links to which are not lost, sorted."""
    return tuple(sorted(p for p in neighbors if p not in lost and link(name, p) not in lost))


def members(name: str, sites: frozenset[str], graph: Graph, lost: frozenset[str]) -> frozenset[str]:
    """Return the sites that can be reached from a site over what is left of the graph.

    Before the neighbours of all sites are known, these are all sites that are not lost themselves.

    Examples
    --------
    >>> sorted(members("a", frozenset("abc"), {"a": "b", "b": "ac", "c": "b"}, frozenset({"b|c"})))
    ['a', 'b']
    """
    if not sites <= graph.keys():
        return sites - lost
    reached, waiting = {name}, [name]
    while waiting:
        one = waiting.pop()
        news = set(present(one, graph[one], lost)) & sites - reached
        reached |= news
        waiting += news
    return frozenset(reached)
