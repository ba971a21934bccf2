"""What a session asks about messages that it does not know: the application's side of it."""

from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol, TypeVar

from ...messages import AnyMessage, Message

Result = TypeVar("Result")
ResultIn = TypeVar("ResultIn", contravariant=True)
Procedure = Generator[Mapping[str, Message], Mapping[str, AnyMessage], Result]
Maker = Callable[[tuple[str, ...], Any], Procedure[Result]]


class Interpreter(Protocol[ResultIn]):
    """Reads messages and results for a session; the application implements it."""

    def check(self, message: AnyMessage, sender: str, exchange: int, sites: frozenset[str]) -> None:
        """Refuse a message that cannot be true of the run (`MessageError`).

        Parameters
        ----------
        message : AnyMessage
        sender : str
        exchange : int
        sites : frozenset of str
            All sites of the run but those that the sender knows to be gone.
        """

    def is_exact(self, message: AnyMessage) -> bool:
        """Return whether a site that starts again sends this message again to the last bit."""

    def is_choice(self, message: Message) -> bool:
        """Return whether a message announces what the site chose, and goes on with after a loss."""

    def residual(self, message: Message) -> float | None:
        """Return the relative residual that a round's message tells (NaN if none yet); None for other messages."""

    def absent(self, result: ResultIn, sites: frozenset[str]) -> str:
        """Return in words which of `sites` did not take part in a result; nothing if all did."""

    def diameter(self, result: ResultIn) -> int:
        """Return the most hops between two sites that took part in a result."""
