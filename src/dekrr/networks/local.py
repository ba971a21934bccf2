"""All sites in this process, in lockstep: the default network, and the one that checks the others' honesty.

Every message is really encoded and decoded, so that its bytes are those that would travel and a procedure
cannot reach into its neighbour's memory. An outbox addressed to anybody but a neighbour is refused.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import MessageError
from ..messages import AnyMessage, Message, decode, encode
from ..protocols.site import Outbox, Procedure, Result

Edge = tuple[Any, Any]


@dataclass
class Traffic:
    """What went over each directed edge.

    Parameters
    ----------
    bytes : Counter of (sender, receiver)
        Encoded messages, without a network's framing.
    messages : Counter of (sender, receiver)
    bytes_by_kind, messages_by_kind : Counter of str
        The same by kind of message.
    """

    bytes: Counter[Edge] = field(default_factory=Counter)
    messages: Counter[Edge] = field(default_factory=Counter)
    bytes_by_kind: Counter[str] = field(default_factory=Counter)
    messages_by_kind: Counter[str] = field(default_factory=Counter)

    def count(self, edge: Edge, kind: str, size: int) -> None:
        """Add one message of `size` bytes."""
        self.bytes[edge] += size
        self.messages[edge] += 1
        self.bytes_by_kind[kind] += size
        self.messages_by_kind[kind] += 1

    @property
    def total_bytes(self) -> int:
        """Bytes over all edges."""
        return self.bytes.total()

    def relabelled(self, labels: Mapping[str, Any]) -> "Traffic":
        """Return the same with each site's name replaced by its label."""
        return Traffic(
            Counter({(labels[a], labels[b]): size for (a, b), size in self.bytes.items()}),
            Counter({(labels[a], labels[b]): count for (a, b), count in self.messages.items()}),
            self.bytes_by_kind,
            self.messages_by_kind,
        )

    def sent_by(self, site: Any) -> int:
        """Bytes that one site sent."""
        return sum(size for (sender, _), size in self.bytes.items() if sender == site)


class LocalNetwork:
    """Runs one procedure per site, exchange by exchange.

    Parameters
    ----------
    neighbors : mapping of site to its neighbours
        The graph; for instance a networkx graph.

    Examples
    --------
    >>> import numpy as np
    >>> from dekrr.protocols.consensus import roll_call
    >>> from dekrr.protocols.site import Site
    >>> from dekrr.rows import ArrayRows
    >>> rows = ArrayRows(np.zeros((3, 1)), np.zeros(3))
    >>> network = LocalNetwork({"a": ["b"], "b": ["a", "c"], "c": ["b"]})
    >>> sites = [Site(name, tuple(network.neighbors[name]), rows) for name in "abc"]
    >>> rosters = network.run({site.name: roll_call(site) for site in sites})
    >>> rosters["a"].n_rows, rosters["c"].diameter
    (9, 2)
    """

    def __init__(self, neighbors: Mapping[str, Any]) -> None:
        self.neighbors = {site: frozenset(neighbors[site]) for site in neighbors}
        self.traffic = Traffic()

    def run(self, procedures: Mapping[str, Procedure[Result]]) -> dict[str, Result]:
        """Drive all procedures to their end and return what each returned."""
        results: dict[str, Result] = {}
        inboxes: dict[str, dict[str, AnyMessage]] | None = None
        exchange = 0
        try:
            while len(results) < len(procedures):
                outboxes: dict[str, Outbox] = {}
                for name, procedure in procedures.items():
                    try:
                        outboxes[name] = next(procedure) if inboxes is None else procedure.send(inboxes[name])
                    except StopIteration as stop:
                        results[name] = stop.value
                    except Exception as error:
                        error.add_note(f"at site {name!r}, after exchange {exchange}")
                        raise
                if results and outboxes:
                    raise MessageError(
                        f"sites {sorted(results)} ended after {exchange} exchanges while {sorted(outboxes)} go on"
                    )
                inboxes = self._carry(outboxes)
                exchange += 1
        finally:
            for procedure in procedures.values():
                procedure.close()
        return results

    def _carry(self, outboxes: Mapping[str, Outbox]) -> dict[str, dict[str, AnyMessage]]:
        inboxes: dict[str, dict[str, AnyMessage]] = {name: {} for name in outboxes}
        for sender, outbox in outboxes.items():
            encoded: dict[int, bytes] = {}
            for receiver, message in outbox.items():
                self._check(sender, receiver, message)
                if id(message) not in encoded:
                    encoded[id(message)] = encode(message)
                data = encoded[id(message)]
                self.traffic.count((sender, receiver), type(message).__name__, len(data))
                inboxes[receiver][sender] = decode(data, sender)
        return inboxes

    def _check(self, sender: str, receiver: str, message: Message) -> None:
        if receiver not in self.neighbors[sender]:
            raise MessageError(
                f"site {sender!r} wants to send {type(message).__name__} to {receiver!r}, which is not its neighbour; "
                f"its neighbours are {sorted(self.neighbors[sender])}"
            )
