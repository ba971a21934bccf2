"""Standard error for a process that outlives the reader of its log.

Where standard error is a pipe, its reader may go away: a log shipper restarts, a terminal is closed. A site must not
end for that. Everything that is written afterwards is dropped.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO


class SteadyStream(io.TextIOBase):
    """A text stream that drops what cannot be written.

    `stream`: if writing to it fails, its file descriptor is connected to the null device.

    Examples
    --------
    >>> class Closed(io.StringIO):
    ...     def write(self, text): raise BrokenPipeError("no reader")
    >>> SteadyStream(Closed()).write("site a ended")
    12
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, or drop it."""
        try:
            self._stream.write(text)
        except (OSError, ValueError):
            self._let_go()
        return len(text)

    def flush(self) -> None:
        """Flush the stream, or drop what it holds."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._let_go()

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        with suppress(ValueError):
            return self._stream.isatty()
        return False

    def fileno(self) -> int:
        """Return the stream's file descriptor."""
        return self._stream.fileno()

    def writable(self) -> bool:
        """Return True."""
        return True

    def _let_go(self) -> None:
        """Connect the descriptor to the null device, so that what the stream still holds can be flushed at the end."""
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)


@contextmanager
def steady() -> Iterator[None]:
    """Replace `sys.stderr` by a `SteadyStream` while the block runs."""
    before = sys.stderr
    sys.stderr = SteadyStream(before)
    try:
        yield
    finally:
        sys.stderr = before
