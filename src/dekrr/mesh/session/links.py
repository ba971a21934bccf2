"""What a run has lost: sites, and links between sites. The set of both names an epoch.

A neighbour that cannot be reached may be dead, or only the link to it may be broken. The site that waits for it cannot
tell, and declares the *link* lost. A site all of whose links are lost has left the run, as has everything that cannot
be reached from here over the links that are left.

A site that finds a neighbour breaking the rules *accuses* it, and has no link to it from then on. One site's word does
not put another one out: that takes two accusers, or one of a site that has two neighbours at most.
"""

from collections.abc import Iterable, Mapping

_BETWEEN, _ACCUSES = "|", ">"  # no name of a site has them
_FEW = 2  # neighbours, of which one is enough to accuse a site
Graph = Mapping[str, Iterable[str]]


def link(one: str, other: str) -> str:
    """Return the name of the link between two sites.

    Examples
    --------
    >>> link("b", "a")
    'a|b'
    """
    return _BETWEEN.join(sorted((one, other)))


def accusation(accuser: str, accused: str) -> str:
    """Return the name of a site's word that a neighbour breaks the rules.

    Examples
    --------
    >>> accusation("b", "a")
    'b>a'
    """
    return f"{accuser}{_ACCUSES}{accused}"


def ends(lost: str) -> tuple[str, ...]:
    """Return the two ends of what is lost: of a link, or the accuser and the accused.

    Examples
    --------
    >>> ends("a|b"), ends("b>a")
    (('a', 'b'), ('b', 'a'))
    """
    return tuple(lost.replace(_ACCUSES, _BETWEEN).split(_BETWEEN))


def witnesses(lost: str) -> tuple[str, ...]:
    """Return who can know first that something is lost: both ends of a link, or the accuser."""
    return ends(lost)[:1] if _ACCUSES in lost else ends(lost)


def suspects(lost: str) -> tuple[str, ...]:
    """Return who may be at fault, or dead: both ends of a link, or the accused."""
    return ends(lost)[1:] if _ACCUSES in lost else ends(lost)


def is_known(lost: str, sites: frozenset[str]) -> bool:
    """Return whether a text names a link between two of the sites, or one as accused by another."""
    named = ends(lost)
    is_one = len(named) == 2 and named[0] != named[1] and lost in (link(*named), accusation(*named))
    return is_one and sites.issuperset(named)


def evicted(lost: frozenset[str], graph: Graph) -> frozenset[str]:
    """Return the sites that are out by what others say of them.

    Examples
    --------
    >>> graph = {"a": "bc", "b": "acd", "c": "abd", "d": "bc"}
    >>> [sorted(evicted(frozenset(said), graph)) for said in (["b>a"], ["a>b"], ["a>b", "d>b"], ["a|b", "a>c"])]
    [['a'], [], ['b'], []]
    """
    accused: dict[str, int] = {}
    for each in lost:
        if _ACCUSES in each:
            name = ends(each)[1]
            accused[name] = accused.get(name, 0) + 1
    return frozenset(
        name for name, count in accused.items() if count > 1 or (name in graph and len(tuple(graph[name])) <= _FEW)
    )


def present(name: str, neighbors: Iterable[str], lost: frozenset[str], graph: Graph) -> tuple[str, ...]:
    """Return the neighbours that are not out, and the links to which are not lost, sorted."""
    if not lost:
        return tuple(sorted(neighbors))
    out = evicted(lost, graph)
    if name in out:
        return ()
    around = {end for each in lost if name in ends(each) for end in ends(each)}
    return tuple(sorted(p for p in neighbors if p not in out and p not in around))


def members(name: str, sites: frozenset[str], graph: Graph, lost: frozenset[str]) -> frozenset[str]:
    """Return the sites that can be reached from a site over what is left of the graph.

    Before the neighbours of all sites are known, these are all sites that are not lost themselves.

    Examples
    --------
    >>> sorted(members("a", frozenset("abc"), {"a": "b", "b": "ac", "c": "b"}, frozenset({"b|c"})))
    ['a', 'b']
    """
    if not sites <= graph.keys():
        return sites - evicted(lost, graph)
    reached, waiting = {name}, [name]
    while waiting:
        one = waiting.pop()
        news = set(present(one, graph[one], lost, graph)) & sites - reached
        reached |= news
        waiting += news
    return frozenset(reached)
