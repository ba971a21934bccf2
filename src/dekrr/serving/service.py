"""The HTTP service: an ASGI application that answers requests with the current model."""

import asyncio
import base64
import hashlib
import logging
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.resources import files
from typing import Any

import msgspec
from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..errors import DekrrError, one_line
from .answers import MEDIA_TYPE, Message, Metrics, Predictions, Receive, Scope, Send, problem
from .bodies import JSON, Refusal
from .current import CurrentModel
from .guards import Gate, Limits, Tokens
from .openapi import openapi, schema_of

logger = logging.getLogger("dekrr.serving")
access = logging.getLogger("dekrr.serving.access")
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Service:
    """Answers requests for predictions of those whom `Gate` admits.

    It looks at the model's file every `watch` seconds; with 0, on SIGHUP alone.
    """

    def __init__(
        self,
        current: CurrentModel,
        limits: Limits | None = None,
        tokens: Tokens | None = None,
        *,
        watch: float = 1.0,
        any_host: bool = False,
    ) -> None:
        limits = limits or Limits()
        self.current = current
        self.metrics = Metrics(current)
        self._tokens = tokens
        self._watch = watch
        self._gate = Gate(limits, tokens, any_host=any_host)
        self._predictions = Predictions(current, self._gate, limits, self.metrics)
        self._reading = asyncio.Lock()
        self._page, self._page_headers = _page()

    def app(self) -> Application:
        """Return the ASGI application. Requests for predictions go straight to their endpoint, all others by routes."""
        encode, tokens = msgspec.json.encode, self._tokens is not None
        others = Starlette(
            routes=[
                Route("/schema", self._guarded(lambda: encode(schema_of(self.current.version)), JSON)),
                Route(
                    "/openapi.json", self._guarded(lambda: encode(openapi(self.current.version, tokens=tokens)), JSON)
                ),
                Route("/metrics", self._guarded(self.metrics.text, MEDIA_TYPE)),
                Route("/health", self._health),
                Route("/docs", self._index),
                Route("/", self._index),
            ],
            exception_handlers={HTTPException: _http_problem},
            lifespan=self._lifespan,
        )

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["path"] == "/predict":
                await self._predictions(scope, receive, send)
            else:
                await others(scope, receive, send)

        async def logged(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or not access.isEnabledFor(logging.INFO):
                await application(scope, receive, send)
                return
            status, began = 0, time.perf_counter()

            async def noting(message: Message) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            try:
                await application(scope, receive, noting)
            finally:
                client = scope.get("caller") or (scope.get("client") or ("-", 0))[0]
                what, seconds = one_line(f"{scope['method']} {scope['path']}"), time.perf_counter() - began
                access.info('%s "%s" %s %.1f ms', client, what, status or "left", 1e3 * seconds)

        return logged

    async def refresh(self, *, force: bool = False) -> None:
        async with self._reading:
            await to_thread.run_sync(partial(self.current.refresh, force=force))
            if self._tokens is not None:
                try:
                    await to_thread.run_sync(self._tokens.refresh)
                except (DekrrError, OSError) as error:
                    logger.warning("the tokens stay as they were: %s", error)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Watch for a newer model as long as the service runs."""
        loop = asyncio.get_running_loop()
        kept: set[asyncio.Task[None]] = set()

        def hang_up() -> None:
            task = loop.create_task(self.refresh(force=True))
            kept.add(task)
            task.add_done_callback(kept.discard)

        with suppress(NotImplementedError, RuntimeError, ValueError, AttributeError):  # no signals here
            loop.add_signal_handler(signal.SIGHUP, hang_up)
        watching = loop.create_task(self._keep_watching()) if self._watch else None
        yield
        if watching is not None:
            watching.cancel()

    async def _keep_watching(self) -> None:
        while True:
            await asyncio.sleep(self._watch)
            try:
                await self.refresh()
            except Exception:
                logger.exception("checking the model's file failed")

    def _guarded(self, content: Callable[[], bytes], media_type: str) -> Callable[[Request], Any]:
        """Return an endpoint that gives `content()` to those who may ask."""

        async def endpoint(request: Request) -> Response:
            headers = {name: value.decode("latin-1") for name, value in request.headers.raw}
            try:
                request.scope["caller"] = self._gate.admit(headers, request.scope["client"])
            except Refusal as refusal:
                return _response(refusal)
            return Response(content(), media_type=media_type)

        return endpoint

    async def _health(self, request: Request) -> Response:
        version = self.current.version
        about: dict[str, Any] = {"status": "ok", "model": version.name, "since": round(version.since, 3)}
        if self.current.trouble:
            about |= {"status": "stale", "trouble": "a newer model cannot be read; see the log"}
        return Response(msgspec.json.encode(about), media_type=JSON)

    async def _index(self, request: Request) -> Response:
        return Response(self._page, headers=self._page_headers, media_type="text/html; charset=utf-8")


def _response(refusal: Refusal) -> Response:
    content, headers = problem(refusal)
    return Response(content, refusal.status, headers)


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"there is no {request.url.path}; see /" if error.status_code == 404 else str(error.detail)
    return _response(Refusal(error.status_code, text, allow=(error.headers or {}).get("Allow")))


def _page() -> tuple[bytes, dict[str, str]]:
    """Return the page that describes the service, and headers that keep it from loading anything else."""
    page = files(__package__).joinpath("page.html").read_bytes()
    script = re.search(rb"<script>(.*?)</script>", page, flags=re.S)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1]).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
    policy += "connect-src 'self'; img-src data:"
    return page, {"content-security-policy": policy, "x-content-type-options": "nosniff"}
