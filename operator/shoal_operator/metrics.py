"""The operator's own metrics, and its HTTP endpoints."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial

from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from shoal_operator.children.observation import Key
from shoal_operator.loop.workqueue import Outcome
from shoal_operator.scaling.load_state import LastDecision
from shoal_operator.scaling.scraper import ScrapeOutcome
from shoal_schema.fields.addresses import Address
from shoal_schema.fields.declaring import Json
from shoal_schema.interfaces import metrics as declared
from shoal_schema.interfaces.activator import SEEN, TABLE_PATH
from shoal_schema.interfaces.fleet import PATH as FLEET_PATH
from shoal_schema.interfaces.metrics import Metric, ReconcileError
from shoal_schema.process.environment import SettingsError

disable_created_metrics()  # type: ignore[no-untyped-call]  # no gauge of the creation time beside each counter

Read = Callable[[], Mapping[tuple[str, ...], float]]
"""Returns a gauge's current values, by the values of its labels."""
_SCALING: Mapping[Metric, Callable[[LastDecision], float]] = {
    declared.OPERATOR_SCALING_DESIRED: lambda standing: standing.desired,
    declared.OPERATOR_SCALING_READY: lambda standing: standing.ready,
    declared.OPERATOR_SCALING_ROWS: lambda standing: standing.rows,
    declared.OPERATOR_SCALING_OFFERED: lambda standing: standing.offered_rows_per_s,
    declared.OPERATOR_SCALING_TARGET: lambda standing: standing.each,
    declared.OPERATOR_SCALING_PANIC: lambda standing: standing.panicking,
}
"""Gauges of the autoscaler's last decision."""
_COUNTS: Mapping[Metric, str] = {
    declared.OPERATOR_SERVICE_REPLICAS: "replicas",
    declared.OPERATOR_SERVICE_REPLICAS_READY: "readyReplicas",
}
"""Gauges of fields of the status."""


class _Gauge(Collector):
    """A gauge whose values are read at each scrape."""

    def __init__(self, metric: Metric, read: Read) -> None:
        self._metric = metric
        self._read = read

    def collect(self) -> Iterable[Family]:
        family = GaugeMetricFamily(self._metric.name, self._metric.description, labels=[*self._metric.labels])
        for labels, value in self._read().items():
            family.add_metric(labels, value)
        yield family


def _counts(statuses: Callable[[], Mapping[Key, Json]], field: str) -> Mapping[tuple[str, ...], float]:
    return {(key.namespace, key.name): status.get(field, 0) for key, status in statuses().items()}


class Metrics:
    """The operator's metrics; `shoal_schema.interfaces.metrics` describes each."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._scrapes = self._counter(declared.OPERATOR_SCRAPES, ScrapeOutcome)
        self._reconciles = self._counter(declared.OPERATOR_RECONCILES, Outcome)
        self._reconcile_errors = self._counter(declared.OPERATOR_RECONCILE_ERRORS, ReconcileError)
        self._api_requests = self._counter(declared.OPERATOR_API_REQUESTS)
        took = declared.OPERATOR_RECONCILE_SECONDS
        self._reconcile_seconds = Histogram(took.family, took.description, registry=self._registry)

    def _counter(self, metric: Metric, values: Iterable[str] = ()) -> Counter:
        counter = Counter(metric.family, metric.description, [*metric.labels], registry=self._registry)
        # Every label value exists from the start, so that rates see the first increment.
        for value in values:
            counter.labels(value)
        return counter

    def count_scrape(self, outcome: ScrapeOutcome) -> None:
        """Count one request to a pod."""
        self._scrapes.labels(outcome).inc()

    def count_reconcile(self, outcome: Outcome, took_s: float) -> None:
        """Count one reconciliation."""
        self._reconciles.labels(outcome).inc()
        self._reconcile_seconds.observe(took_s)

    def count_reconcile_error(self, reason: ReconcileError) -> None:
        """Count one failed reconciliation."""
        self._reconcile_errors.labels(reason).inc()

    def count_api_request(self, method: str, status: int) -> None:
        """Count one request to the API server."""
        self._api_requests.labels(method, status).inc()

    def show(self, metric: Metric, read: Read) -> None:
        """Register a gauge whose values ``read`` returns at each scrape."""
        self._registry.register(_Gauge(metric, read))

    def show_scaling(self, last_decisions: Callable[[], Iterable[tuple[Key, LastDecision]]]) -> None:
        """Register the gauges of the autoscaler's last decision for each service."""
        for metric, value in _SCALING.items():
            self.show(metric, partial(_by_service, last_decisions, value))

    def show_services(self, statuses: Callable[[], Mapping[Key, Json]]) -> None:
        """Register the gauges of each service's status."""

        def conditions() -> dict[tuple[str, ...], float]:
            # One series with value 1 per condition; status and reason are labels.
            return {
                (key.namespace, key.name, each["type"], each["status"], each["reason"]): 1.0
                for key, status in statuses().items()
                for each in status["conditions"]
            }

        self.show(declared.OPERATOR_SERVICE_CONDITION, conditions)
        for metric, field in _COUNTS.items():
            self.show(metric, partial(_counts, statuses, field))

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)


def _by_service(
    last_decisions: Callable[[], Iterable[tuple[Key, LastDecision]]], value: Callable[[LastDecision], float]
) -> dict[tuple[str, ...], float]:
    return {(key.namespace, key.name): value(each) for key, each in last_decisions()}


@asynccontextmanager
async def serving(
    metrics: Metrics,
    listen: Address | None,
    routing_table: Callable[[str], Awaitable[bytes | None]],
    loads: Callable[[], bytes | None],
    unready: Callable[[], str | None],
) -> AsyncIterator[None]:
    """Serve metrics, readiness, the routing table and loads during a block.

    Args:
        metrics: the metrics that ``/metrics`` returns.
        listen: address to bind; None serves nothing.
        routing_table: returns the routing table once it differs from the version that an activator has; None where
            this operator does not lead.
        loads: returns the pods' last load; None where this operator does not lead.
        unready: returns why the operator is not ready, or None.

    Raises:
        SettingsError: the address cannot be bound.
    """
    if listen is None:
        yield
        return
    # Access logs off: Prometheus and activators poll.
    app = _application(metrics, routing_table, loads, unready)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, listen.host, listen.port).start()
        except OSError as error:
            raise SettingsError(
                f"SHOAL_OPERATOR_METRICS_LISTEN {listen} cannot be bound: {error}. Set a free HOST:PORT of this pod"
            ) from None
        yield
    finally:
        await runner.cleanup()


def _application(
    metrics: Metrics,
    routing_table: Callable[[str], Awaitable[bytes | None]],
    loads: Callable[[], bytes | None],
    unready: Callable[[], str | None],
) -> web.Application:
    async def show(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def show_readiness(_: web.Request) -> web.Response:
        missing = unready()
        return web.Response(status=503 if missing else 200, text=f"{missing or 'ready'}\n")

    def respond(document: bytes | None) -> web.Response:
        if document is None:
            text = "this operator is not the leader, or has not reconciled every service yet"
            return web.Response(status=503, text=text)
        return web.Response(body=document, content_type="application/json")

    async def get_routing_table(request: web.Request) -> web.Response:
        return respond(await routing_table(request.query.get(SEEN, "")))

    async def get_loads(_: web.Request) -> web.Response:
        return respond(loads())

    app = web.Application()
    app.router.add_get("/metrics", show)
    app.router.add_get("/readyz", show_readiness)
    app.router.add_get(TABLE_PATH, get_routing_table)
    app.router.add_get(FLEET_PATH, get_loads)
    return app
