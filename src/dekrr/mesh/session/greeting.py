"""Agreement before the start: all sites must have the same terms, and have heard so from all their neighbours."""

from collections.abc import Iterable, Mapping

from ...errors import one_line
from .frames import Frame, Hello
from .links import Graph, members
from .peers import Peer
from .plan import Plan

REFUSING = 5.0  # seconds for which a site that refuses the run repeats the reason to its neighbours


class Greeting:
    """A site's knowledge of the agreement of all sites.

    `agreed`: filled with the sites that are known to have the same terms, and to have heard the same from all their
    neighbours. `refusal`: the reason why the run cannot start; empty if there is none. `since`: the time at which the
    site began to greet, or to refuse.
    """

    def __init__(self, plan: Plan, peers: Mapping[str, Peer], agreed: dict[str, tuple[str, ...]]) -> None:
        self.agreed = agreed
        self.refusal = ""
        self.since = 0.0
        self._plan = plan
        self._peers = peers

    def disagreement(self, hello: Hello) -> str:
        """Return why a neighbour's hello prevents the start: other terms, another graph, or a refusal."""
        return (
            one_line(hello.refusal)
            or disagreement(self._plan.name, self._plan.terms, hello.sender, hello.terms)
            or self._contradiction(hello)
        )

    def _contradiction(self, hello: Hello) -> str:
        """Return in what a hello contradicts what is known of the graph.

        A site that tells different sites different neighbours would learn sums over few of them under masks.
        """
        plan = self._plan
        known: Graph = self.agreed | {plan.name: plan.neighbors}
        told = {site: neighbors for site, neighbors in hello.agreed.items() if site in plan.sites}
        for site in sorted(told):
            if site in known and sorted(known[site]) != sorted(told[site]):
                now, before = (", ".join(sorted(one[site])) for one in (told, known))
                return (
                    f"site {hello.sender!r} says that the neighbours of {site!r} are {now}, but {before} was heard "
                    "before: somebody tells different sites different things, or a file was changed since; start all "
                    "sites again"
                )
        graph = {**known, **told}
        for site in sorted(told.keys() - known.keys()):
            for other in sorted(told[site]):
                if other in graph and site not in graph[other]:
                    return f"site {site!r} names {other!r} as its neighbour, but {other!r} does not name {site!r}"
        reached = members(plan.name, plan.sites, graph, frozenset())
        if reached < plan.sites:
            return f"by what the sites say {', '.join(sorted(plan.sites - reached))} cannot be reached over any links"
        return ""

    def refuse(self, reason: str, now: float) -> None:
        """Refuse the run."""
        self.refusal, self.since = reason, now

    def hear_refusal(self, frame: Frame, present: Iterable[str]) -> bool:
        """Note whether the sender of a frame knows of the refusal; return whether all neighbours do."""
        if isinstance(frame, Hello):
            self._peers[frame.sender].refused |= bool(frame.refusal)
        return all(self._peers[name].refused for name in present)

    def hear(self, hello: Hello, present: Iterable[str]) -> bool:
        """Add the sites that agree according to a hello with the same terms; return whether any of them is new."""
        known = len(self.agreed)
        # A run starts only after all sites have heard from all their neighbours.
        for peer in self._peers.values() if hello.exchange >= 0 else [self._peers[hello.sender]]:
            peer.met = True
        for site, neighbors in hello.agreed.items():
            if site in self._plan.sites:
                self.agreed.setdefault(site, neighbors)
        self._count_own(present)
        return len(self.agreed) > known

    def is_complete(self, present: Iterable[str], gone: frozenset[str]) -> bool:
        """Return whether all sites that are not gone agree."""
        return self._count_own(present) and self.agreed.keys() | gone >= self._plan.sites

    def has_refused_long_enough(self, now: float) -> bool:
        """Return whether the neighbours had time to hear of the refusal."""
        return now - self.since > REFUSING

    def absence(self, present: Iterable[str], gone: frozenset[str], now: float) -> str:
        """Return which sites are missing if `start_patience` is over, otherwise an empty string."""
        if now - self.since <= self._plan.start_patience:
            return ""
        away = sorted(self._plan.sites - self.agreed.keys() - gone)
        missing = f"not in touch with all neighbours: {', '.join(away)}"
        strangers = self._strangers(present)
        if strangers:
            missing = f"not heard of: {', '.join(strangers)}"
        return (
            f"site {self._plan.name!r} waited {self._plan.start_patience:g} s for the run to start; {missing}. "
            "Are they started, and do their files name the same run, and each other as neighbours?"
        )

    def _strangers(self, present: Iterable[str]) -> list[str]:
        """Return the neighbours that have not said hello."""
        return [name for name in present if not self._peers[name].met]

    def _count_own(self, present: Iterable[str]) -> bool:
        """Add this site to those that agree if all its neighbours have said hello; return whether they have."""
        if self._strangers(present):
            return False
        self.agreed[self._plan.name] = self._plan.neighbors
        return True


def disagreement(name: str, terms: Mapping[str, str], other: str, their_terms: Mapping[str, str]) -> str:
    """Return the terms on which two sites do not agree, in words; an empty string if they agree.

    Examples
    --------
    >>> disagreement("a", {"alpha": "0.1", "seed": "0"}, "b", {"alpha": "0.2", "seed": "0"})
    "sites 'a' and 'b' do not agree: alpha is 0.1 at 'a' and 0.2 at 'b'"
    """
    differences = [
        f"{key} is {terms.get(key, 'not there')} at {name!r} and {their_terms.get(key, 'not there')} at {other!r}"
        for key in sorted({*terms, *their_terms})
        if terms.get(key) != their_terms.get(key)
    ]
    return f"sites {name!r} and {other!r} do not agree: {'; '.join(differences)}" if differences else ""
