"""Counters and histograms of the hot path, and their Prometheus text.

One event loop owns them, so they are plain numbers without locks; prometheus-client turns them into text when asked.
Names and meanings: docs/contracts.md, section 5.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Histogram:
    """Counts per bucket; ``bounds`` are inclusive upper bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count ``value``."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def family(self, name: str, documentation: str) -> HistogramMetricFamily:
        """Return it as prometheus-client knows histograms."""
        labels = [*map(str, map(float, self.bounds)), "+Inf"]
        buckets = list(zip(labels, map(float, accumulate(self.counts)), strict=True))
        return HistogramMetricFamily(name, documentation, buckets=buckets, sum_value=self.total)


class Metrics(Collector):
    """All of the proxy's metrics; ``gauges`` are read from their owners at scrape time."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = defaultdict(int)
        self.rejections: dict[str, int] = defaultdict(int)
        self.batch_rows = Histogram(ROWS)
        self.queue_seconds = Histogram(SECONDS)
        self.batch_seconds = Histogram(SECONDS)
        self.runtime_seconds = Histogram(SECONDS)
        self.rows = 0
        self.elements = 0
        self.padded_elements = 0
        self.retries = 0
        self.coalesced_rows = 0
        self.request_bytes = 0
        self.response_bytes = 0
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def collect(self) -> Iterable[Metric]:
        """Yield every metric, as prometheus-client asks."""
        yield self._requests()
        rejections = CounterMetricFamily("shoal_proxy_rejections", "Requests refused or given up.", labels=["reason"])
        for reason, count in self.rejections.items():
            rejections.add_metric([reason], count)
        yield rejections
        for name, (documentation, read) in self.gauges.items():
            yield GaugeMetricFamily(name, documentation, value=read())
        yield self.batch_rows.family("shoal_proxy_batch_rows", "Rows per batch sent.")
        yield self.queue_seconds.family(
            "shoal_proxy_queue_seconds", "Time from arrival until a batch took the request."
        )
        yield self.batch_seconds.family(
            "shoal_proxy_batch_seconds", "Time from closing a batch until its answers were split."
        )
        yield self.runtime_seconds.family(
            "shoal_proxy_runtime_seconds", "Time from sending a batch until its answer came."
        )
        yield CounterMetricFamily("shoal_proxy_rows", "Rows sent to the runtime.", value=self.rows)
        yield CounterMetricFamily("shoal_proxy_elements", "Elements sent, padding included.", value=self.elements)
        yield CounterMetricFamily(
            "shoal_proxy_padded_elements", "Elements that were padding.", value=self.padded_elements
        )
        yield CounterMetricFamily(
            "shoal_proxy_coalesced_rows", "Rows answered by an identical request's.", value=self.coalesced_rows
        )
        yield CounterMetricFamily("shoal_proxy_retries", "Batches sent again after a failure.", value=self.retries)
        yield CounterMetricFamily("shoal_proxy_request_bytes", "Bytes of request bodies.", value=self.request_bytes)
        yield CounterMetricFamily("shoal_proxy_response_bytes", "Bytes of response bodies.", value=self.response_bytes)

    def _requests(self) -> Metric:
        family = CounterMetricFamily("shoal_proxy_requests", "Requests answered.", labels=["protocol", "status"])
        for (protocol, status), count in self.requests.items():
            family.add_metric([protocol, str(status)], count)
        return family

    def text(self) -> bytes:
        """Return the Prometheus text exposition."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)
