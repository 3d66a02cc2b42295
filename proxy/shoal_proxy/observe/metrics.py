"""Counters and histograms of the proxy, and their Prometheus text.

Only the event loop's thread changes them, so they are plain numbers without locks. prometheus-client formats them at a
scrape. `shoal_schema.interfaces.metrics` declares them.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from shoal_proxy.access.control import AccessControl
from shoal_proxy.batching.pending import Delivery, RequestResult
from shoal_proxy.batching.rates import Executions
from shoal_proxy.errors import ModelFailed, RowsFailed
from shoal_schema.interfaces import metrics as declared
from shoal_schema.interfaces.load import LATENCY_BOUNDS_S

SECONDS = LATENCY_BOUNDS_S
LONG_SECONDS = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Histogram:
    """Histogram of values in buckets with inclusive upper ``bounds``."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count ``value`` in its bucket."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def family(self, name: str, documentation: str) -> HistogramMetricFamily:
        """Return the histogram as a prometheus-client family."""
        return HistogramMetricFamily(name, documentation, buckets=self.buckets, sum_value=self.total)

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Return upper bounds with cumulative counts, for prometheus-client."""
        labels = [*map(str, map(float, self.bounds)), "+Inf"]
        return list(zip(labels, map(float, accumulate(self.counts)), strict=True))


def _labelled(metric: declared.Metric, counts: Mapping[Any, int]) -> Metric:
    family = CounterMetricFamily(metric.family, metric.description, labels=list(metric.labels))
    for values, count in counts.items():
        family.add_metric([str(value) for value in values], count)
    return family


class Metrics(Collector):
    """All metrics of the proxy.

    ``read`` has functions that return the values of further metrics at a scrape.
    """

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = defaultdict(int)
        self.rejections: dict[str, int] = defaultdict(int)
        self.forwarded: dict[str, int] = defaultdict(int)
        self.webhooks: dict[str, int] = defaultdict(int)
        self.access_control: AccessControl | None = None
        """Has the counts by client, where access is restricted."""
        self.batch_rows = Histogram(ROWS)
        self.request_seconds = Histogram(SECONDS)
        self.queue_seconds = Histogram(SECONDS)
        self.batch_seconds = Histogram(SECONDS)
        self.runtime_seconds = Histogram(SECONDS)
        self.executions = Executions()
        self.failed_s = 0.0
        """Total time from arrival to error of failed requests."""
        self.step_seconds: dict[str, Histogram] = defaultdict(lambda: Histogram(SECONDS))
        """A graph's, by step."""
        self.step_failures: dict[str, int] = defaultdict(int)
        self.rows = 0
        self.elements = 0
        self.padded_elements = 0
        self.late_answers = 0
        self.failed_rows = 0
        self.retries = 0
        self.async_requests: dict[declared.AsyncOutcome, int] = defaultdict(int)
        self.async_results_expired = 0
        self.async_wait_seconds = Histogram(LONG_SECONDS)
        self.request_bytes = 0
        self.response_bytes = 0
        self.read_rollout: Callable[[], Mapping[declared.Metric, Mapping[tuple[str], int]]] | None = None
        """Returns the counters of a rollout, by label; None if there can be no candidate."""
        self.read: dict[declared.Metric, Callable[[], float | None]] = {}

    def rejected(self, reason: declared.RejectionReason | None) -> None:
        """Count a rejected request by reason; ignore errors without a reason."""
        if reason is not None:
            self.rejections[reason] += 1

    def returned(self, deliveries: Sequence[Delivery], now_s: float) -> None:
        """Count the outcomes of the requests of a batch."""
        for pending, outcome in deliveries:
            if isinstance(outcome, RequestResult):
                if pending.shadow:
                    continue  # no client waited for it
                self.request_seconds.observe(now_s - pending.arrived_s)
                if now_s > pending.soft_deadline_s:
                    self.late_answers += 1
            elif isinstance(outcome, RowsFailed):
                for error in outcome.errors:
                    self.failed_rows += error.status >= 500  # below 500 the client's row was invalid
            elif isinstance(outcome, ModelFailed):
                self.failed_rows += pending.rows

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics (prometheus-client)."""
        yield _labelled(declared.REQUESTS, self.requests)
        yield _labelled(
            # All reasons, so that rates exist before the first rejection.
            declared.REJECTIONS,
            {(reason,): self.rejections.get(reason, 0) for reason in declared.RejectionReason},
        )
        if self.access_control is not None:
            yield _labelled(declared.CALLER_REQUESTS, self.access_control.requests)
            yield _labelled(
                declared.CALLER_ROWS, {(caller,): count for caller, count in self.access_control.rows.items()}
            )
        yield _labelled(declared.FORWARDED, {(outcome,): count for outcome, count in self.forwarded.items()})
        yield _labelled(
            declared.ASYNC_REQUESTS,
            {(outcome,): self.async_requests.get(outcome, 0) for outcome in declared.AsyncOutcome},
        )
        yield _labelled(
            declared.WEBHOOKS, {(outcome,): self.webhooks.get(outcome, 0) for outcome in declared.WebhookOutcome}
        )
        if self.read_rollout is not None:
            for metric, rows in self.read_rollout().items():
                yield _labelled(metric, rows)
        for metric, read in self.read.items():
            # Values are read at the scrape, so that no code has to update them.
            family = GaugeMetricFamily if metric.kind is declared.MetricKind.GAUGE else CounterMetricFamily
            yield family(metric.family, metric.description, value=read())
        for metric, histogram in (
            (declared.BATCH_ROWS, self.batch_rows),
            (declared.REQUEST_SECONDS, self.request_seconds),
            (declared.QUEUE_SECONDS, self.queue_seconds),
            (declared.BATCH_SECONDS, self.batch_seconds),
            (declared.RUNTIME_SECONDS, self.runtime_seconds),
            (declared.ASYNC_WAIT_SECONDS, self.async_wait_seconds),
        ):
            yield histogram.family(metric.family, metric.description)
        if self.step_seconds or self.step_failures:
            step_seconds = declared.STEP_SECONDS
            steps = HistogramMetricFamily(
                step_seconds.family, step_seconds.description, labels=list(step_seconds.labels)
            )
            for step, histogram in self.step_seconds.items():
                steps.add_metric([step], histogram.buckets, histogram.total)
            yield steps
            yield _labelled(declared.STEP_FAILURES, {(step,): count for step, count in self.step_failures.items()})
        for metric, count in (
            (declared.ROWS, self.rows),
            (declared.ELEMENTS, self.elements),
            (declared.PADDED_ELEMENTS, self.padded_elements),
            (declared.LATE_ANSWERS, self.late_answers),
            (declared.FAILED_ROWS, self.failed_rows),
            (declared.RETRIES, self.retries),
            (declared.REQUEST_BYTES, self.request_bytes),
            (declared.RESPONSE_BYTES, self.response_bytes),
            (declared.ASYNC_RESULTS_EXPIRED, self.async_results_expired),
        ):
            yield CounterMetricFamily(metric.family, metric.description, value=count)

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        # Without process and platform metrics, and without a description pass at registration.
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)
