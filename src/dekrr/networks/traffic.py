"""The traffic of a run: numbers of messages and bytes, by directed edge and by kind of message."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

Edge = tuple[Any, Any]


class Traffic:
    """The encoded messages over each directed edge; the framing of a network is not counted.

    Examples
    --------
    >>> traffic = Traffic()
    >>> traffic.count("a", "b", "Sums", 100)
    >>> traffic.count("a", "b", "Coefficients", 10)
    >>> traffic.bytes
    Counter({('a', 'b'): 110})
    >>> traffic.messages_by_kind
    Counter({'Sums': 1, 'Coefficients': 1})
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[Any, Any, str], list[int]] = {}  # messages and bytes

    def count(self, sender: Any, receiver: Any, kind: str, size: int) -> None:
        """Add one message of `size` bytes."""
        key = sender, receiver, kind
        counted = self._counts.get(key)
        if counted is None:
            counted = self._counts[key] = [0, 0]
        counted[0] += 1
        counted[1] += size

    def rows(self) -> list[tuple[Any, Any, str, int, int]]:
        """Return sender, receiver, kind of message, number of messages and bytes, for each kind on each edge."""
        return [(*key, *counted) for key, counted in self._items()]

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[Any, Any, str, int, int]]) -> "Traffic":
        """Return the traffic of `rows`; no edge may have a kind twice."""
        traffic = cls()
        traffic._counts = {(a, b, kind): [count, size] for a, b, kind, count, size in rows}
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
        traffic = Traffic()
        traffic._counts = {(labels[a], labels[b], kind): [*counted] for (a, b, kind), counted in self._items()}
        return traffic

    def plus(self, other: "Traffic") -> "Traffic":
        """Return this traffic and another together."""
        traffic = Traffic()
        for key, (messages, size) in [*self._items(), *other._items()]:
            counted = traffic._counts.setdefault(key, [0, 0])
            counted[0] += messages
            counted[1] += size
        return traffic

    def sent_by(self, site: Any) -> int:
        """Bytes that one site sent."""
        return sum(size for (sender, _, _), (_, size) in self._items() if sender == site)
