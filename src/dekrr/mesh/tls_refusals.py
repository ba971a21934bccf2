"""Reports of peers that fail in the TLS handshake.

Such a peer never reaches a session: Zenoh refuses it, and reports each attempt in its own log only. That log goes to
standard output, which a node does not use otherwise, so that a node can read it from there.
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
# Zenoh adds a hint about open files to every such line, and for an expired certificate the time in seconds.
_REFUSED = re.compile(r" WARN .*zenoh_link_tls\S*: (.*?)(?:: verification time .*)?(?:\. Hint: .*)?$")


@contextmanager
def told_to(tell: Callable[[str], None]) -> Iterator[None]:
    """Tell, in another thread, why peers are refused while the block runs; what else Zenoh logs is standard error."""
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
    """Return why a peer was refused if a line of Zenoh's log says so, otherwise an empty string.

    Examples
    --------
    >>> reason_of("2026-01-01T00:00:00Z  WARN acc-0 zenoh_link_tls::unicast: peer sent no certificates. Hint: x.")
    'peer sent no certificates'
    """
    found = _REFUSED.search(_COLOUR.sub("", line).rstrip())
    return found.group(1) if found else ""
