"""A service on a port: uvicorn, with TLS where it is asked for, and connections that cost little until they ask
something.

A caller may open a connection and send nothing, or a byte now and then. Each such connection takes a descriptor, and
enough of them would keep others out. So headers must arrive within seconds and be short, and of the connections
without a request only so many stay: the one that has waited longest goes.
"""

import asyncio
import gc
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ..errors import SettingsError
from .current import CurrentModel
from .guards import Limits, Tokens, check_place, is_loopback
from .service import Service

_SECONDS_TO_ARRIVE = 20.0  # from the beginning of a connection, or a request's first byte, to the end of the headers
_MOST_WAITING = 400  # descriptors are 1,024 on many systems
_LONGEST_HEAD = 1 << 16  # bytes of request line and headers


def limited() -> type[asyncio.Protocol]:
    """Return a protocol of HTTP for one server; its connections know of each other."""

    class Limited(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        waiting: dict["Limited", None] = {}  # noqa: RUF012 - in the order of their waiting
        _until: asyncio.TimerHandle | None = None
        _head = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end_wait()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._end_wait()  # the application has the request, and its own limit for the body
                return
            self._head += len(data)
            if self._head > _LONGEST_HEAD:
                self.transport.abort()
            else:
                self._wait()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self.waiting[self] = None  # idle, until uvicorn's own limit ends it

        def _wait(self) -> None:
            if self._until is None:
                self._until = self.loop.call_later(_SECONDS_TO_ARRIVE, self.transport.abort)
            self.waiting.setdefault(self)
            if len(self.waiting) > _MOST_WAITING:
                oldest = next(iter(self.waiting))
                oldest._end_wait()
                oldest.transport.abort()

        def _end_wait(self) -> None:
            self._head = 0
            self.waiting.pop(self, None)
            if self._until is not None:
                self._until.cancel()
                self._until = None

    return Limited


_SECONDS_TO_FINISH, _SECONDS_IDLE = 30, 75
_MOST_AT_ONCE = 1000


@dataclass(frozen=True)
class Place:
    host: str = "127.0.0.1"
    port: int = 8080
    tokens: Path | None = None
    certificate: Path | None = None  # the service's own, for TLS
    key: Path | None = None
    authority: Path | None = None  # who signs callers' certificates: mutual TLS
    behind_proxy: bool = False  # a proxy in front of the service does TLS

    def check(self) -> None:
        """Raise `SettingsError` if the parts do not fit each other, or are not safe together."""
        if (self.certificate is None) != (self.key is None):
            raise SettingsError("--certificate and --key belong together")
        if self.authority is not None and self.certificate is None:
            raise SettingsError("--authority checks callers by TLS: give --certificate and --key, too")
        check_place(
            self.host,
            tokens=self.tokens is not None,
            tls=self.certificate is not None,
            mutual=self.authority is not None,
            behind_proxy=self.behind_proxy,
        )


def server_of(model: Path, place: Place, limits: Limits, *, watch: float = 1.0) -> uvicorn.Server:
    """Return a server of a model's file or folder (see `current.find_model`) that is ready to run.

    It looks for a newer model every `watch` seconds.
    """
    place.check()
    tokens = None if place.tokens is None else Tokens(place.tokens)
    any_host = not is_loopback(place.host) or place.authority is not None or place.behind_proxy
    service = Service(CurrentModel(model, limits.max_rows), limits, tokens, watch=watch, any_host=any_host)
    gc.collect()
    gc.freeze()  # a pass over all modules would delay a request
    return uvicorn.Server(_config(service, place))


def _config(service: Service, place: Place) -> uvicorn.Config:
    tls: dict[str, Any] = {}
    if place.certificate is not None:
        tls = {"ssl_certfile": place.certificate, "ssl_keyfile": place.key}
    if place.authority is not None:
        tls |= {"ssl_ca_certs": str(place.authority), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    try:
        config = uvicorn.Config(
            service.app(),
            host=place.host,
            port=place.port,
            lifespan="on",
            ws="none",
            http=limited(),
            access_log=False,
            server_header=False,
            proxy_headers=False,
            log_level="warning",
            limit_concurrency=_MOST_AT_ONCE,
            timeout_keep_alive=_SECONDS_IDLE,
            timeout_graceful_shutdown=_SECONDS_TO_FINISH,
            **tls,
        )
        config.load()
    except (ssl.SSLError, OSError) as error:
        raise SettingsError(f"the certificates cannot be used: {error}") from None
    return config
