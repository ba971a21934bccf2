"""All sites in this process, in lockstep: the default network, and the reference for the others.

Every message is encoded and decoded. So the bytes counted are those that would travel, and a procedure cannot reach
into its neighbour's memory. An outbox with a message to a site that is not a neighbour is refused.

Between two exchanges sites do not depend on each other, so that they can compute in parallel. The result does not
depend on the number of threads.
"""

import contextlib
from collections.abc import Iterable, Mapping

from ..errors import MessageError
from ..messages import AnyMessage, decode, encode
from ..protocols.site import Outbox, Procedure, Result
from .base import Delivery, Neighbors, Observer
from .threads import Step, free_cores, sharing_out
from .traffic import Traffic

__all__ = ["LocalNetwork"]


class LocalNetwork:
    """Runs one procedure per site, exchange by exchange.

    Parameters
    ----------
    neighbors : mapping of site to its neighbours
        The graph; for instance a networkx graph.
    n_threads : int, optional
        The number of sites that may compute at the same time; by default the number of cores.
    observers : iterable of callables, optional
        Each is called with every `Delivery`, in the order in which messages are carried.

    Examples
    --------
    >>> from dekrr.networks.local import LocalNetwork
    >>> import numpy as np
    >>> from dekrr.protocols.roll_call import roll_call
    >>> from dekrr.protocols.site import Site
    >>> from dekrr.rows import ArrayRows
    >>> rows = ArrayRows(np.zeros((3, 1)), np.zeros(3))
    >>> network = LocalNetwork({"a": ["b"], "b": ["a", "c"], "c": ["b"]})
    >>> sites = [Site(name, tuple(network.neighbors[name]), rows) for name in "abc"]
    >>> rosters = network.run({site.name: roll_call(site) for site in sites})
    >>> rosters["a"].n_rows, rosters["c"].diameter
    (9, 2)
    """

    def __init__(
        self, neighbors: Neighbors, n_threads: int | None = None, *, observers: Iterable[Observer] = ()
    ) -> None:
        self.neighbors = {site: frozenset(neighbors[site]) for site in neighbors}
        self.traffic = Traffic()
        self._observers = tuple(observers)
        self._n_threads = max(1, min(len(self.neighbors), n_threads or free_cores()))

    def run(self, procedures: Mapping[str, Procedure[Result]]) -> dict[str, Result]:
        """Drive all procedures to their end, and return the result of each site."""
        results: dict[str, Result] = {}
        inboxes: dict[str, dict[str, AnyMessage]] | None = None
        exchange = 0
        with contextlib.ExitStack() as stack:
            for procedure in procedures.values():
                stack.callback(procedure.close)
            advance = stack.enter_context(sharing_out(self._n_threads, alone=len(procedures) == 1))
            while len(results) < len(procedures):
                steps = [Step(name, procedures[name], inboxes, exchange) for name in procedures]
                advance(steps)
                outboxes: dict[str, Outbox] = {}
                for step in steps:
                    if step.error is not None:  # the first in the order of sites, not in the order of time
                        raise step.error
                    if step.ended:
                        results[step.name] = step.result
                    else:
                        outboxes[step.name] = step.outbox
                del steps, step
                if results and outboxes:
                    raise MessageError(
                        f"sites {sorted(results)} ended after {exchange} exchanges while {sorted(outboxes)} go on"
                    )
                inboxes = self._carry(exchange, outboxes)
                exchange += 1
        return results

    def _carry(self, exchange: int, outboxes: dict[str, Outbox]) -> dict[str, dict[str, AnyMessage]]:
        """Return the inboxes. The outboxes are emptied one by one, so that each message is in memory only once."""
        inboxes: dict[str, dict[str, AnyMessage]] = {name: {} for name in outboxes}
        for sender in list(outboxes):
            outbox = outboxes.pop(sender)
            if not self.neighbors[sender].issuperset(outbox):
                self._refuse(sender, outbox)
            carried: dict[int, tuple[str, int, AnyMessage]] = {}  # a message to several neighbours is decoded once
            for receiver, message in outbox.items():
                known = carried.get(id(message))
                if known is None:
                    data = encode(message)
                    known = carried[id(message)] = type(message).__name__, len(data), decode(data, sender)
                kind, size, arrived = known
                self.traffic.count(sender, receiver, kind, size)
                for observer in self._observers:
                    observer(Delivery(exchange, sender, receiver, arrived, size))
                inboxes[receiver][sender] = arrived
        return inboxes

    def _refuse(self, sender: str, outbox: Outbox) -> None:
        receiver, message = next((to, what) for to, what in outbox.items() if to not in self.neighbors[sender])
        raise MessageError(
            f"site {sender!r} wants to send {type(message).__name__} to {receiver!r}, which is not its neighbour; "
            f"its neighbours are {sorted(self.neighbors[sender])}"
        )
