"""Who may ask, how often, and how much: bearer tokens, rates, sizes, and where the service may listen."""

import hashlib
import ipaddress
import math
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..disk import replacing
from ..errors import KeysError, SettingsError
from .bodies import Refusal

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_CALLERS = 10_000


@dataclass(frozen=True)
class Limits:
    """What one request, and one caller, may ask for."""

    max_bytes: int = 16 << 20  # of a body
    max_rows: int = 100_000  # of one request
    rate: float | None = None  # requests per second of a caller in the long run; None is no limit
    burst: int = 20  # requests that a caller may make at once, before the rate counts
    seconds_for_body: float = 30.0  # in which a body must arrive


def new_token(path: Path, name: str) -> str:
    """Make a token, append its name and its hash to a file, and return it; the file cannot give it back.

    The name says who gets the token; it is in the log and in no answer.
    """
    if not _NAME.fullmatch(name):
        raise KeysError(
            f"{name!r} cannot name a token: use up to 63 ASCII letters (a to z), digits, dots, dashes, underscores"
        )
    there = read_tokens(path) if path.exists() else {}
    if name in there.values():
        raise KeysError(f"{path} already has a token of the name {name!r}; remove its line first, or choose another")
    token = secrets.token_urlsafe(32)
    lines = path.read_text(encoding="utf-8") if there else "# name and SHA-256 of each token\n"
    with replacing(path, durable=True) as temporary:
        temporary.write_text(f"{lines.rstrip()}\n{name} {_hash(token)}\n", encoding="utf-8")
    return token


def read_tokens(path: Path) -> dict[str, str]:
    """Return the names of the tokens in a file, by their hashes."""
    tokens: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not _NAME.fullmatch(words[0]) or not _DIGEST.fullmatch(words[1]):
            raise KeysError(f"{path}, line {number}: expected a name and a SHA-256; make tokens with dekrr keys token")
        tokens[words[1]] = words[0]
    return tokens


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class Tokens:
    """The tokens of a file; it is read again when it changes, so that a removed token ends at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = 0
        self._by_hash: dict[str, str] = {}
        self.refresh()
        if not self._by_hash:
            raise KeysError(f"{path} has no tokens; make one with: dekrr keys token NAME --file {path}")

    def refresh(self) -> None:
        seen = self._path.stat().st_mtime_ns
        if seen != self._seen:
            self._by_hash, self._seen = read_tokens(self._path), seen

    def caller(self, header: str) -> str:
        """Return the name of the token in an Authorization header; raise `Refusal` if there is none."""
        kind, _, token = header.partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise Refusal(401, "this service asks for a token: send the header Authorization: Bearer TOKEN")
        name = self._by_hash.get(_hash(token.strip()))
        if name is None:
            raise Refusal(401, "the token is not known here")
        return name


class Rates:
    """A bucket of requests for each caller, which refills at the allowed rate.

    Examples
    --------
    >>> rates = Rates(Limits(rate=1.0, burst=2))
    >>> for now in (0.0, 0.0, 1.0):
    ...     rates.take("anna", now)
    >>> rates.take("anna", 1.5)
    Traceback (most recent call last):
        ...
    dekrr.serving.bodies.Refusal: too many requests: at most 1 a second; try again in 1 s
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, caller: str, now: float | None = None) -> None:
        """Count a request of a caller; raise `Refusal` if it has none left."""
        rate, burst = self._limits.rate, float(self._limits.burst)
        if rate is None:
            return
        now = time.monotonic() if now is None else now
        left, before = self._buckets.get(caller, (burst, now))
        left = min(burst, left + (now - before) * rate)
        if left < 1:
            wait = math.ceil((1 - left) / rate)
            raise Refusal(429, f"too many requests: at most {rate:g} a second; try again in {wait} s", retry_after=wait)
        self._buckets[caller] = (left - 1, now)
        if len(self._buckets) > _MOST_CALLERS:
            self._buckets = {
                name: (left, then)
                for name, (left, then) in self._buckets.items()
                if left + (now - then) * rate < burst  # a full bucket is like none
            }


class Gate:
    """Decides whether a request is looked at; without tokens everybody may ask who can connect.

    A service without tokens on a loopback address should not answer requests for any host name: a web page could
    otherwise ask it through the user's browser, under a name that the page's owner points at this machine.
    """

    def __init__(self, limits: Limits, tokens: Tokens | None = None, *, any_host: bool = False) -> None:
        self._tokens = tokens
        self._any_host = any_host or tokens is not None
        self._rates = Rates(limits)

    def admit(self, headers: Mapping[bytes, str], client: Sequence[Any] | None) -> str:
        """Return the caller, the name of a token or an address; raise `Refusal` unless it may ask, and may ask now."""
        if not self._any_host and not is_local(headers.get(b"host", "")):
            raise Refusal(421, "this service answers requests for 127.0.0.1 or localhost only")
        if self._tokens is not None:
            caller = self._tokens.caller(headers.get(b"authorization", ""))
        else:
            caller = client[0] if client else ""
        self._rates.take(caller)
        return caller


@lru_cache(maxsize=64)
def is_local(host: str) -> bool:
    """Return whether a Host header names this machine alone.

    Examples
    --------
    >>> is_local("localhost:8080"), is_local("[::1]:8080"), is_local("example.org")
    (True, True, False)
    """
    return is_loopback(re.sub(r":\d*$", "", host))


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine alone.

    Examples
    --------
    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_place(host: str, *, tokens: bool, tls: bool, mutual: bool, behind_proxy: bool) -> None:
    """Refuse to listen outside this machine without a way to know who asks, and without a way to keep it secret."""
    if is_loopback(host):
        return
    if not tokens and not mutual:
        raise SettingsError(
            f"{host} can be reached from other machines: give --tokens, or --authority for mutual TLS; "
            "without them the service listens on 127.0.0.1 only"
        )
    if not tls and not behind_proxy:
        raise SettingsError(
            f"tokens would cross the network to {host} in the clear: give --certificate and --key, or "
            "--behind-proxy if a proxy in front of it does TLS"
        )
