"""What the operator counts of itself, for Prometheus."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shoal_operator.scaling import Standing
from shoal_operator.scraper import Scrape
from shoal_schema.addresses import Address
from shoal_schema.environment import SettingsError
from shoal_schema.fleet import PATH as FLEET_PATH
from shoal_schema.waiting import ROOMS_PATH, SEEN

_GAUGES: tuple[tuple[str, str, Callable[[Standing], float]], ...] = (
    ("desired", "Replicas decided.", lambda standing: standing.desired),
    ("ready", "Pods that are ready.", lambda standing: standing.ready),
    ("rows", "Rows waiting and running, mean since the tick before.", lambda standing: standing.rows),
    (
        "offered_rows_per_second",
        "Rows asked for, refused ones included.",
        lambda standing: standing.offered_rows_per_s,
    ),
    (
        "target",
        "What a replica is for: rows, or rows a second, whichever asked for more replicas.",
        lambda standing: standing.each,
    ),
    ("panic", "1 while nothing is taken away, as the last seconds asked for twice what was ready.",
     lambda standing: standing.panicking),
)  # fmt: skip


class _Scaling(Collector):
    """Gauges of the law of scaling, by service, read when they are asked for."""

    def __init__(self, standings: Callable[[], Iterable[Standing]]) -> None:
        self._standings = standings

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges (prometheus-client)."""
        standings = list(self._standings())
        for name, description, value in _GAUGES:
            family = GaugeMetricFamily(f"shoal_operator_scaling_{name}", description, labels=["namespace", "service"])
            for standing in standings:
                family.add_metric([standing.key.namespace, standing.key.name], value(standing))
            yield family


class Metrics:
    """The operator's metrics."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._scrapes = Counter(
            "shoal_operator_scrapes",
            "Attempts to read a pod's load; refused: it answered what no proxy answers.",
            ["outcome"],
            registry=self._registry,
        )
        for outcome in Scrape:
            self._scrapes.labels(outcome)

    def count_scrape(self, outcome: Scrape) -> None:
        """Count an attempt to read a pod."""
        self._scrapes.labels(outcome).inc()

    def show_scaling(self, standings: Callable[[], Iterable[Standing]]) -> None:
        """Show what the law of scaling found of each service, as ``standings`` tells when it is asked."""
        self._registry.register(_Scaling(standings))

    def text(self) -> bytes:
        """Return the exposition."""
        return generate_latest(self._registry)


@asynccontextmanager
async def serving(
    metrics: Metrics,
    listen: Address | None,
    rooms: Callable[[str], Awaitable[bytes | None]],
    fleet: Callable[[], bytes | None],
) -> AsyncIterator[None]:
    """Serve ``/metrics``, the waiting rooms' table and what all pods say, while the block runs.

    Args:
        metrics: what is shown.
        listen: where; None means nowhere.
        rooms: returns the table when it is another one than was seen; None where this operator does not lead.
        fleet: likewise, what pods said last.

    Raises:
        SettingsError: nothing can listen there.
    """
    if listen is None:
        yield
        return

    async def show(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

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
    app.router.add_get(ROOMS_PATH, tell_rooms)
    app.router.add_get(FLEET_PATH, tell_fleet)
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
