"""What the operator counts of itself, for Prometheus."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
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

from shoal_operator.planning.observation import Key
from shoal_operator.planning.workqueue import Outcome
from shoal_operator.scaling import Standing
from shoal_operator.scraper import Scrape
from shoal_schema import metrics as declared
from shoal_schema.addresses import Address
from shoal_schema.declaring import Json
from shoal_schema.environment import SettingsError
from shoal_schema.fleet import PATH as FLEET_PATH
from shoal_schema.metrics import LookError, Metric
from shoal_schema.waiting import ROOMS_PATH, SEEN

disable_created_metrics()  # type: ignore[no-untyped-call]  # else a gauge stands beside each counter

Read = Callable[[], Mapping[tuple[str, ...], float]]
"""Returns the values of a gauge now, by the values of its labels."""
_SCALING: Mapping[Metric, Callable[[Standing], float]] = {
    declared.OPERATOR_SCALING_DESIRED: lambda standing: standing.desired,
    declared.OPERATOR_SCALING_READY: lambda standing: standing.ready,
    declared.OPERATOR_SCALING_ROWS: lambda standing: standing.rows,
    declared.OPERATOR_SCALING_OFFERED: lambda standing: standing.offered_rows_per_s,
    declared.OPERATOR_SCALING_TARGET: lambda standing: standing.each,
    declared.OPERATOR_SCALING_PANIC: lambda standing: standing.panicking,
}
"""What the law of scaling found of a service."""
_COUNTS: Mapping[Metric, str] = {
    declared.OPERATOR_SERVICE_REPLICAS: "replicas",
    declared.OPERATOR_SERVICE_REPLICAS_READY: "readyReplicas",
}
"""What a status counts."""


class _Gauge(Collector):
    """A gauge that is read when it is asked for."""

    def __init__(self, metric: Metric, read: Read) -> None:
        self._metric = metric
        self._read = read

    def collect(self) -> Iterable[Family]:
        """Yield the gauge (prometheus-client)."""
        family = GaugeMetricFamily(self._metric.name, self._metric.description, labels=[*self._metric.labels])
        for labels, value in self._read().items():
            family.add_metric(labels, value)
        yield family


def _conditions(statuses: Mapping[Key, Json]) -> Iterator[tuple[str, ...]]:
    for key, status in statuses.items():
        for each in status["conditions"]:
            yield key.namespace, key.name, each["type"], each["status"], each["reason"]


def _counted(statuses: Callable[[], Mapping[Key, Json]], field: str) -> Mapping[tuple[str, ...], float]:
    return {(key.namespace, key.name): status.get(field, 0) for key, status in statuses().items()}


class Metrics:
    """The operator's metrics; `shoal_schema.metrics` says what each means."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._scrapes = self._counter(declared.OPERATOR_SCRAPES, Scrape)
        self._reconciles = self._counter(declared.OPERATOR_LOOKS, Outcome)
        self._reconcile_errors = self._counter(declared.OPERATOR_LOOK_ERRORS, LookError)
        self._api_requests = self._counter(declared.OPERATOR_API_REQUESTS)
        took = declared.OPERATOR_LOOK_SECONDS
        self._reconcile_seconds = Histogram(took.family, took.description, registry=self._registry)

    def _counter(self, metric: Metric, values: Iterable[str] = ()) -> Counter:
        counter = Counter(metric.family, metric.description, [*metric.labels], registry=self._registry)
        for value in values:
            counter.labels(value)
        return counter

    def count_scrape(self, outcome: Scrape) -> None:
        """Count an attempt to read a pod."""
        self._scrapes.labels(outcome).inc()

    def count_reconcile(self, outcome: Outcome, took_s: float) -> None:
        """Count a look at a service."""
        self._reconciles.labels(outcome).inc()
        self._reconcile_seconds.observe(took_s)

    def count_reconcile_error(self, reason: LookError) -> None:
        """Count a look at a service that was cut short."""
        self._reconcile_errors.labels(reason).inc()

    def count_api_request(self, method: str, status: int) -> None:
        """Count a request to the API server."""
        self._api_requests.labels(method, status).inc()

    def show(self, metric: Metric, read: Read) -> None:
        """Show a gauge, as ``read`` tells when it is asked."""
        self._registry.register(_Gauge(metric, read))

    def show_scaling(self, standings: Callable[[], Iterable[Standing]]) -> None:
        """Show what the law of scaling found of each service, as ``standings`` tells when it is asked."""
        for metric, value in _SCALING.items():
            self.show(metric, partial(_by_service, standings, value))

    def show_services(self, statuses: Callable[[], Mapping[Key, Json]]) -> None:
        """Show what the status of each service says, as ``statuses`` tells when it is asked."""
        self.show(declared.OPERATOR_SERVICE_CONDITION, lambda: dict.fromkeys(_conditions(statuses()), 1.0))
        for metric, field in _COUNTS.items():
            self.show(metric, partial(_counted, statuses, field))

    def text(self) -> bytes:
        """Return the exposition."""
        return generate_latest(self._registry)


def _by_service(
    standings: Callable[[], Iterable[Standing]], value: Callable[[Standing], float]
) -> dict[tuple[str, ...], float]:
    return {(each.key.namespace, each.key.name): value(each) for each in standings()}


@asynccontextmanager
async def serving(
    metrics: Metrics,
    listen: Address | None,
    rooms: Callable[[str], Awaitable[bytes | None]],
    fleet: Callable[[], bytes | None],
    unready: Callable[[], str | None],
) -> AsyncIterator[None]:
    """Serve ``/metrics``, ``/readyz``, the waiting rooms' table and what all pods say, while the block runs.

    Args:
        metrics: what is shown.
        listen: where; None means nowhere.
        rooms: returns the table when it is another one than was seen; None where this operator does not lead.
        fleet: likewise, what pods said last.
        unready: returns what is still missing, or None.

    Raises:
        SettingsError: nothing can listen there.
    """
    if listen is None:
        yield
        return
    app = _application(metrics, rooms, fleet, unready)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, listen.host, listen.port).start()
        except OSError as error:
            raise SettingsError(
                f"SHOAL_OPERATOR_METRICS_LISTEN must be a HOST:PORT to bind, not {listen}: {error}"
            ) from None
        yield
    finally:
        await runner.cleanup()


def _application(
    metrics: Metrics,
    rooms: Callable[[str], Awaitable[bytes | None]],
    fleet: Callable[[], bytes | None],
    unready: Callable[[], str | None],
) -> web.Application:
    async def show(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def tell_ready(_: web.Request) -> web.Response:
        missing = unready()
        return web.Response(status=503 if missing else 200, text=f"{missing or 'ready'}\n")

    def told(document: bytes | None) -> web.Response:
        if document is None:
            return web.Response(status=503, text="this operator does not lead, or has not seen every service yet")
        return web.Response(body=document, content_type="application/json")

    async def tell_rooms(request: web.Request) -> web.Response:
        return told(await rooms(request.query.get(SEEN, "")))

    async def tell_fleet(_: web.Request) -> web.Response:
        return told(fleet())

    app = web.Application()
    app.router.add_get("/metrics", show)
    app.router.add_get("/readyz", tell_ready)
    app.router.add_get(ROOMS_PATH, tell_rooms)
    app.router.add_get(FLEET_PATH, tell_fleet)
    return app
