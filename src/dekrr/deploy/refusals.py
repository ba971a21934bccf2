"""Peers that fail in the TLS handshake, told by the node too.

They never reach a session: Zenoh refuses them, and says so in its log alone, at every attempt. The log goes to
standard output, which a node has no other use for.
"""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import zenoh

_LEVELS = "error,zenoh_link_tls=warn"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Zenoh ends every such line with a hint about open files, and an expired certificate's with the time in seconds.
_REFUSED = re.compile(r" WARN .*zenoh_link_tls\S*: (.*?)(?:: verification time .*)?(?:\. Hint: .*)?$")


@contextmanager
def told_to(tell: Callable[[str], None]) -> Iterator[None]:
    """Tell why peers were refused while the block runs, and pass the rest of Zenoh's log on to standard error.

    Parameters
    ----------
    tell : callable
        Given the reason at every attempt, in another thread.
    """
    zenoh.init_log_from_env_or(_LEVELS)
    sys.stdout.flush()
    readable, writable = os.pipe()
    output = os.dup(1)
    os.dup2(writable, 1)
    os.close(writable)
    listener = threading.Thread(target=_listen, args=(readable, tell), daemon=True)
    listener.start()
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(output, 1)
        os.close(output)
        listener.join(1.0)


def _listen(readable: int, tell: Callable[[str], None]) -> None:
    with os.fdopen(readable, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            reason = reason_of(line)
            if reason:
                tell(reason)
            else:
                print(line, end="", file=sys.stderr, flush=True)


def reason_of(line: str) -> str:
    """Return why a peer was refused if a line of Zenoh's log says so, else nothing.

    Examples
    --------
    >>> reason_of("2026-01-01T00:00:00Z  WARN acc-0 zenoh_link_tls::unicast: peer sent no certificates. Hint: x.")
    'peer sent no certificates'
    """
    found = _REFUSED.search(_COLOUR.sub("", line).rstrip())
    return found.group(1) if found else ""
