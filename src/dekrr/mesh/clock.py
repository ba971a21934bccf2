"""The time, as an argument: a test lets a year pass by it."""

import time


class Clock:
    """The machine's clock.

    Examples
    --------
    >>> Clock().time() > 1.7e9
    True
    """

    def time(self) -> float:
        """Return the seconds since 1970; people may set this clock, forwards and back."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds that only ever grow."""
        return time.monotonic()
