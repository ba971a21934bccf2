"""The interface of a network: an object that drives the sites' procedures and carries their messages.

A procedure (`dekrr.protocols.site`) is a generator. It yields an outbox, a mapping of neighbour to message. It receives
an inbox, a mapping of neighbour to the message from that neighbour. A network guarantees six things to procedures:

1. It advances all procedures in lockstep. All outboxes of an exchange are delivered before any procedure goes on.
2. Every message is encoded (`dekrr.messages.encode`) and decoded on arrival, or handed over, so that no
   site can change what another has, and every message passes the checks on arrival.
3. A message to a site that is not a neighbour is a `MessageError`. Nothing of it is delivered.
4. An inbox has an entry for every neighbour that sent something, and for no other site. Its entries are in the order
   of all sites, because sums of floating-point numbers depend on the order.
5. All procedures end after the same exchange. Otherwise the run ends with a `MessageError`.
6. An error in one procedure ends the run and reaches the caller. All procedures are closed.

`LocalNetwork` is the reference implementation. A further network is one file with one class, which has `run` and
`traffic`, and one line in tests/test_conformance.py, whose tests every network passes.

A network may drive some of the sites in this process and the others elsewhere (`dekrr.networks.mpi`). Such a network is
a `PartialNetwork`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..messages import AnyMessage
from ..protocols.site import Procedure, Result

Edge = tuple[Any, Any]


class Traffic:
    """The encoded messages over each directed edge; the framing of a network is not counted."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Any, Any, str], list[int]] = {}  # messages and bytes

    def count(self, sender: Any, receiver: Any, kind: str, size: int, n_messages: int = 1) -> None:
        """Add messages of `size` bytes together."""
        counted = self._counts.setdefault((sender, receiver, kind), [0, 0])
        counted[0] += n_messages
        counted[1] += size

    def rows(self) -> list[tuple[Any, Any, str, int, int]]:
        """Return sender, receiver, kind of message, number of messages and bytes, for each kind on each edge."""
        return [(*key, *counted) for key, counted in self._items()]

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[Any, Any, str, int, int]]) -> "Traffic":
        """Return the traffic of `rows`, all together."""
        traffic = cls()
        for sender, receiver, kind, n_messages, size in rows:
            traffic.count(sender, receiver, kind, size, n_messages)
        return traffic

    @property
    def bytes(self) -> Counter[Edge]:
        """Bytes by (sender, receiver)."""
        return self._total(by=slice(2), what=1)

    @property
    def messages(self) -> Counter[Edge]:
        """Messages by (sender, receiver)."""
        return self._total(by=slice(2), what=0)

    @property
    def bytes_by_kind(self) -> Counter[str]:
        """Bytes by kind of message."""
        return self._total(by=2, what=1)

    @property
    def messages_by_kind(self) -> Counter[str]:
        """Messages by kind of message."""
        return self._total(by=2, what=0)

    def __repr__(self) -> str:
        return f"Traffic({self.messages.total()} messages, {self.total_bytes} bytes, {len(self.bytes)} directed edges)"

    def _items(self) -> list[tuple[tuple[Any, Any, str], list[int]]]:
        return list(self._counts.items())  # a copy, as another thread may be adding to it

    def _total(self, by: slice | int, what: int) -> Counter[Any]:
        total: Counter[Any] = Counter()
        for key, counted in self._items():
            total[key[by]] += counted[what]
        return total

    @property
    def total_bytes(self) -> int:
        """Bytes over all edges."""
        return sum(size for _, (_, size) in self._items())

    def relabelled(self, labels: Mapping[str, Any]) -> "Traffic":
        """Return the same traffic with each site's name replaced by its label."""
        return Traffic.of_rows((labels[a], labels[b], *rest) for a, b, *rest in self.rows())

    def plus(self, other: "Traffic") -> "Traffic":
        """Return this traffic and another together."""
        return Traffic.of_rows([*self.rows(), *other.rows()])

    def sent_by(self, site: Any) -> int:
        """Bytes that one site sent."""
        return sum(size for (sender, _, _), (_, size) in self._items() if sender == site)


__all__ = ["Delivery", "Neighbors", "Network", "Observer"]

Neighbors = Mapping[str, Collection[str]]


class Network(Protocol):
    """A network: all that an estimator or an experiment needs of it.

    Examples
    --------
    A network for a single site, which has no neighbours:

    >>> from dekrr.networks.base import Connect
    >>> from dekrr.networks.base import Traffic
    >>> class Hermit:
    ...     def __init__(self, neighbors):
    ...         self.traffic = Traffic()
    ...
    ...     def run(self, procedures):
    ...         ((name, procedure),) = procedures.items()
    ...         inbox = None
    ...         try:
    ...             while True:
    ...                 procedure.send(inbox)
    ...                 inbox = {}
    ...         except StopIteration as stop:
    ...             return {name: stop.value}
    >>> def wait(exchanges):
    ...     for _ in range(exchanges):
    ...         yield {}
    ...     return "done"
    >>> connect: Connect = Hermit
    >>> connect({"a": []}).run({"a": wait(3)})
    {'a': 'done'}
    """

    @property
    def traffic(self) -> Traffic:
        """The messages and bytes over each directed edge since the network was made."""

    def run(self, procedures: Mapping[str, Procedure[Result]]) -> dict[str, Result]:
        """Drive one procedure per site to its end, and return the result of each site."""


@runtime_checkable
class PartialNetwork(Network, Protocol):
    """A network that drives some of the sites in this process. `run` takes and returns what belongs to these sites."""

    here: frozenset[str]
    """The sites that are driven in this process."""

    gathers: bool
    """Whether results are to be known in all processes."""

    def share(self, data: bytes) -> list[bytes]:
        """Return the data of all processes, in each of them; all processes must come here together."""


Connect = Callable[[Neighbors], Network]
"""A function that makes a network from a graph; a class such as `LocalNetwork` is one."""


class Delivery(NamedTuple):
    """One message as its receiver decoded it.

    Parameters
    ----------
    exchange : int
        The number of the exchange within its run, from 0.
    n_bytes : int
        The length of the encoded message.
    """

    exchange: int
    sender: str
    receiver: str
    message: AnyMessage
    n_bytes: int


Observer = Callable[[Delivery], None]
"""A function that is called with every message, after it is decoded and before its receiver gets it."""
