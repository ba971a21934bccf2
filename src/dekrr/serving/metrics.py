"""What Prometheus asks the service for. Requests are counted in plain numbers, which cost less than a client's."""

from bisect import bisect_left
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from .current import CurrentModel

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The metrics of one service. All methods are called from the thread of the event loop.

    Parameters
    ----------
    current : CurrentModel
    """

    def __init__(self, current: CurrentModel) -> None:
        self._current = current
        self._n_answers = self._n_rows = 0
        self._n_refusals: dict[int, int] = {}
        self._seconds = 0.0
        self._buckets = [0] * (len(_SECONDS) + 1)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def answered(self, n_rows: int, seconds: float) -> None:
        """Count a request with an answer."""
        self._n_answers += 1
        self._n_rows += n_rows
        self._seconds += seconds
        self._buckets[bisect_left(_SECONDS, seconds)] += 1

    def refused(self, status: int) -> None:
        """Count a request without an answer."""
        self._n_refusals[status] = self._n_refusals.get(status, 0) + 1

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def collect(self) -> Any:
        """Give the metrics, as Prometheus's client asks for them."""
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
