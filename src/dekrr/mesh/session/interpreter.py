"""The application's side of a session: it answers the session's questions about messages."""

from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol, TypeVar

from ...messages import AnyMessage, Message

Result = TypeVar("Result")
ResultIn = TypeVar("ResultIn", contravariant=True)
Procedure = Generator[Mapping[str, Message], Mapping[str, AnyMessage], Result]
Maker = Callable[[tuple[str, ...], Any], Procedure[Result]]


class Interpreter(Protocol[ResultIn]):
    """Reads messages and results for a session, which does not know them; the application implements it."""

    def check(self, message: AnyMessage, sender: str, exchange: int, sites: frozenset[str]) -> None:
        """Raise `MessageError` for a message that cannot be true in this run.

        `sites`: all sites of the run, without those that the sender knows to be gone.
        """

    def is_exact(self, message: AnyMessage) -> bool:
        """Return whether a restarted site sends the same message again, bit for bit."""

    def is_choice(self, message: Message) -> bool:
        """Return whether a message announces the site's choice of features, which it keeps after a loss."""

    def residual(self, message: Message) -> float | None:
        """Return the relative residual in a message of a round (NaN if it has none yet); None for other messages."""

    def absent(self, result: ResultIn, sites: frozenset[str]) -> str:
        """Return, in words, which of `sites` did not take part in a result; an empty string if all did."""

    def diameter(self, result: ResultIn) -> int:
        """Return the diameter of the graph of the sites that took part in a result, in hops."""
