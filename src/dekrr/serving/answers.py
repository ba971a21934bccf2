"""The answer to one request for predictions, as a plain ASGI endpoint: the framework's own costs more than the model.

Every request takes the model once, at its start, and keeps it to its end."""

import asyncio
import os
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from itertools import accumulate
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from anyio import CapacityLimiter, to_thread
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from ..errors import DataError, SettingsError
from ..model import SiteClassifier, as_rows
from ..types import Array
from .bodies import Problem, Refusal, Reply, media_type_of, n_rows_of, written
from .current import CurrentModel, Version
from .guards import Gate, Limits
from .openapi import has_intervals

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The metrics of one service. All methods are called from the thread of the event loop."""

    def __init__(self, current: CurrentModel) -> None:
        self._current = current
        self._n_answers = self._n_rows = 0
        self._n_refusals: dict[int, int] = {}
        self._seconds = 0.0
        self._buckets = [0] * (len(_SECONDS) + 1)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def answered(self, n_rows: int, seconds: float) -> None:
        self._n_answers += 1
        self._n_rows += n_rows
        self._seconds += seconds
        self._buckets[bisect_left(_SECONDS, seconds)] += 1

    def refused(self, status: int) -> None:
        self._n_refusals[status] = self._n_refusals.get(status, 0) + 1

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Any:
        requests = CounterMetricFamily("dekrr_requests", "Requests for predictions, by HTTP status.", labels=["status"])
        for status, n in {200: self._n_answers, **self._n_refusals}.items():
            requests.add_metric([str(status)], n)
        yield requests
        yield CounterMetricFamily("dekrr_rows", "Rows that were predicted.", value=self._n_rows)
        ends = [*map(str, _SECONDS), "+Inf"]
        yield HistogramMetricFamily(
            "dekrr_request_seconds",
            "Time from the body's arrival to the answer.",
            buckets=list(zip(ends, map(float, accumulate(self._buckets)), strict=True)),
            sum_value=self._seconds,
        )
        current = self._current
        about = GaugeMetricFamily("dekrr_model", "The model that is served.", labels=["version", "site", "method"])
        header = current.version.model.header
        about.add_metric([current.version.name, header.site, header.method], 1.0)
        yield about
        yield GaugeMetricFamily("dekrr_model_since_seconds", "When it was read.", value=current.version.since)
        yield CounterMetricFamily("dekrr_reloads", "Models that took another's place.", value=current.n_reloads)
        yield CounterMetricFamily(
            "dekrr_reload_failures", "Newer models that could not be read.", value=current.n_failures
        )


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PROBLEM = "application/problem+json"
_SMALL = 1 << 14  # bytes of a body that is answered at once, without the way through a thread
_TITLES = {400: "Bad request", 401: "No access", 404: "No such page", 405: "Wrong method", 408: "Too slow"}
_TITLES |= {413: "Too large", 415: "Format not offered", 421: "Wrong host", 422: "Wrong rows", 429: "Too many requests"}
_TITLES |= {500: "A fault of the service"}
_ENCODINGS = ("", "identity")


class _Left(Exception):
    """The caller has closed the connection."""


class Predictions:
    """The ASGI endpoint that predicts."""

    def __init__(self, current: CurrentModel, gate: Gate, limits: Limits, metrics: Metrics) -> None:
        self._current = current
        self._gate = gate
        self._limits = limits
        self._metrics = metrics
        self._threads = CapacityLimiter(max(2, os.cpu_count() or 1))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        try:
            if scope["method"] != "POST":
                raise Refusal(405, "rows come with POST; see / for how", allow="POST")
            scope["caller"] = self._gate.admit(headers, scope["client"])
            body = await self._body(headers, receive)
            began = time.perf_counter()
            version = self._current.version  # of this request, to its end
            arguments = version, body, headers, scope["query_string"]
            if len(body) <= _SMALL:
                content, media_type, n_rows = self._answer(*arguments)
            else:
                answer = partial(self._answer, *arguments)
                content, media_type, n_rows = await to_thread.run_sync(answer, limiter=self._threads)
        except _Left:
            return
        except Refusal as refusal:
            self._metrics.refused(refusal.status)
            await respond(send, refusal.status, *problem(refusal))
            return
        except Exception:
            self._metrics.refused(500)
            raise
        self._metrics.answered(n_rows, time.perf_counter() - began)
        await respond(send, 200, content, {"content-type": media_type, "dekrr-model": version.name})

    def _answer(self, version: Version, body: bytes, headers: dict[bytes, str], query: bytes) -> tuple[bytes, str, int]:
        given = media_type_of(headers.get(b"content-type", ""))
        wanted = media_type_of(headers.get(b"accept", ""), default=given)
        coverage = _coverage(query) if query else None
        rows = version.read_rows(body, given)
        try:
            encoded = as_rows(rows, version.model.header) if isinstance(rows, dict) else rows
            values = version.one_row(encoded) if len(encoded) == 1 else version.model.predict_encoded(encoded)
            interval = None if coverage is None else _interval(version, encoded, coverage)
        except (DataError, SettingsError) as error:
            raise Refusal(422, str(error)) from None
        outside, targets = version.outside(rows, encoded), version.model.header.targets
        answer = Reply(model=version.name, values=values, interval=interval, targets=targets, outside=outside)
        if isinstance(version.model, SiteClassifier):
            answer = answer.of_classes(version.model.classes_, version.model.probabilities_of(values))
        content = written(answer, wanted)
        return content, wanted, n_rows_of(rows)

    async def _body(self, headers: dict[bytes, str], receive: Receive) -> bytes:
        """Return the body of a request; it must be small enough, and come in time."""
        limit = self._limits.max_bytes
        if headers.get(b"content-encoding", "") not in _ENCODINGS:
            raise Refusal(415, "compressed bodies are not taken; send the body as it is")
        declared = headers.get(b"content-length", "")
        if len(declared) > 18 or (declared.isdigit() and int(declared) > limit):
            raise self._too_large()
        task = asyncio.current_task()
        assert task is not None
        late = False

        def stop() -> None:
            nonlocal late
            late = True
            task.cancel()

        deadline = asyncio.get_running_loop().call_later(self._limits.seconds_for_body, stop)
        parts: list[bytes] = []
        size, more = 0, True
        try:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Left
                part = message.get("body", b"")
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise self._too_large()
                more = message.get("more_body", False)
        except asyncio.CancelledError:
            if not late:
                raise
            task.uncancel()
            text = f"the body did not arrive within {self._limits.seconds_for_body:g} seconds"
            raise Refusal(408, text) from None
        finally:
            deadline.cancel()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _too_large(self) -> Refusal:
        return Refusal(413, f"the body has more than {self._limits.max_bytes} bytes; send fewer rows at a time")


def _coverage(query: bytes) -> float:
    given = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    unknown = [name for name in given if name != "coverage"]
    if unknown or not given:
        raise Refusal(422, f"unknown parameter {unknown or query!r}; the only one is coverage")
    try:
        coverage = float(given["coverage"])
    except ValueError:
        coverage = -1.0
    if not 0 < coverage < 1:
        raise Refusal(422, f"coverage must be a number between 0 and 1, got {given['coverage']!r}")
    return coverage


def _interval(version: Version, encoded: Array, coverage: float) -> Any:
    if not has_intervals(version):
        raise Refusal(422, "this model has no intervals; ask without coverage")
    return version.model.interval_encoded(encoded, coverage)


def problem(refusal: Refusal) -> tuple[bytes, dict[str, str]]:
    """Return a refusal as a body and headers, by RFC 9457: why, and where it can be said the row and the column."""
    title = _TITLES.get(refusal.status, "Refused")
    about = Problem(title=title, status=refusal.status, detail=str(refusal), row=refusal.row, column=refusal.column)
    headers = {"content-type": PROBLEM}
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    if refusal.allow is not None:
        headers["allow"] = refusal.allow
    if refusal.retry_after is not None:
        headers["retry-after"] = str(refusal.retry_after)
    if refusal.status in (408, 413):
        headers["connection"] = "close"  # the rest of the body is not read
    return msgspec.json.encode(about), headers


async def respond(send: Send, status: int, content: bytes, headers: dict[str, str]) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    raw.append((b"content-length", str(len(content)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": content})
