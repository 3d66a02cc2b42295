"""The operator process: kopf's watches, the workers, the autoscaler and the Lease."""

import asyncio
import contextlib
import datetime
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable

import kopf

from shoal_operator.batch.progress import make_progress_reader
from shoal_operator.batch.reconciler import BatchReconciler
from shoal_operator.children.observation import Key
from shoal_operator.cluster.api_server import ApiServer
from shoal_operator.cluster.connection import connect, log_in
from shoal_operator.cluster.objects import KubernetesCluster
from shoal_operator.errors import ApiError
from shoal_operator.loop.discovery import Discovery
from shoal_operator.loop.echoes import Echoes
from shoal_operator.loop.health import diagnose, unready
from shoal_operator.loop.leadership import Leadership, renew_heartbeat
from shoal_operator.loop.lease import Election
from shoal_operator.loop.watches import EventHandlers, make_registry, make_settings
from shoal_operator.loop.workers import Workers
from shoal_operator.loop.workqueue import WorkQueue
from shoal_operator.metrics import Metrics, Read, serving
from shoal_operator.models.resolving import Registries, Resolver
from shoal_operator.reconciliation.graph_states import GraphStates
from shoal_operator.reconciliation.reconciler import Reconciler
from shoal_operator.reconciliation.reporting import ReportedStatus
from shoal_operator.rollout.judging import Judging
from shoal_operator.rollout.staying import StaySender
from shoal_operator.rollout.upgrading import Upgrading
from shoal_operator.scaling.autoscaler import Autoscaler
from shoal_operator.scaling.scraper import Scraper, allow_connections
from shoal_operator.settings import Settings
from shoal_operator.zero.scale_to_zero import ScaleToZero
from shoal_schema.fields.declaring import Json
from shoal_schema.interfaces import metrics as declared
from shoal_schema.interfaces.metrics import Metric
from shoal_schema.resource import BATCH_PLURAL

logger = logging.getLogger(__name__)

_RETRY_S = 0.5


class Operation:
    """The components of one operator process, and their start and stop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._queue = WorkQueue(settings.process.resync_s)
        self._records = self._queue.records
        election = Election(settings.process.identity)
        self._leadership = Leadership(election, settings.process.namespace, time.monotonic, _utc_now)
        self._echoes = Echoes()
        self._metrics = Metrics()
        self._server = ApiServer(connect, count=self._metrics.count_api_request)
        self._cluster = KubernetesCluster(self._server, self._leadership.may_write, self._echoes.expect)
        self._scraper = Scraper(count=self._metrics.count_scrape)
        self._workers = Workers(
            self._queue,
            lambda key: (self._batches if key.plural == BATCH_PLURAL else self._reconciler).reconcile(key),
            time.monotonic,
            self._metrics,
        )
        window_s = settings.process.scale_down_window_s
        self._scale_to_zero = ScaleToZero(self._records, settings.process, self._workers.mark_scaled, time.monotonic)
        self._autoscaler = Autoscaler(
            self._records,
            self._scraper,
            self._workers.mark_scaled,
            time.monotonic,
            window_s=window_s,
            scale_to_zero=self._scale_to_zero,
        )
        self._registries = Registries(os.environ)
        self._resolver = Resolver(
            self._registries.resolve,
            self._workers.mark,
            self._records,
            time.monotonic,
            interval_s=settings.process.follow_interval_s,
            environment=os.environ,
        )
        self._upgrading = Upgrading(self._cluster, self._records, settings.process, self._workers.mark, _utc_now)
        self._graphs = GraphStates(Scraper(), self._records, self._workers.mark)
        self._stays = StaySender(self._records)
        self._judging = Judging(self._records, self._workers.mark_scaled, _utc_now, time.monotonic)
        self._reconciler = Reconciler(
            self._cluster,
            settings.process,
            _utc_now,
            clock=time.monotonic,
            records=self._records,
            names=self._resolver,
            scale_to_zero=self._scale_to_zero,
            upgrading=self._upgrading,
            graphs=self._graphs,
            stays=self._stays,
            judging=self._judging,
        )
        self._progresses = make_progress_reader(self._records, time.monotonic)
        self._batches = BatchReconciler(
            self._cluster,
            self._records,
            settings.process,
            self._resolver,
            self._progresses,
            _utc_now,
            time.monotonic,
        )
        self._discovery = Discovery(self._workers.mark_all)
        self._watching = asyncio.Event()
        self._last_heartbeat_s: float | None = None
        self._show_metrics()

    async def run(self) -> None:
        """Run the operator until a signal ends kopf, or a task fails."""
        allow_connections()
        listen = self._settings.process.metrics_listen
        async with serving(
            self._metrics,
            listen,
            self._scale_to_zero.routing_table,
            self._autoscaler.fleet_report,
            lambda: unready(
                is_connected=self._leadership.is_connected(),
                watching=self._last_heartbeat_s is not None,
                leading=self._leadership.may_write(),
                settled=self._upgrading.settled,
            ),
        ):
            # Watches run on standbys too, so that a new leader need not list everything first.
            watches = asyncio.create_task(self._watch(), name="watches")
            leading = self._leadership.lead(self._cluster, lambda: asyncio.create_task(self._work(), name="work"))
            lead = asyncio.create_task(leading, name="leadership")
            signals = asyncio.create_task(self._take_signals(lead.cancel), name="signals")
            try:
                # Neither ends by itself: raise the error of the one that did.
                done, _ = await asyncio.wait({watches, lead}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    with contextlib.suppress(asyncio.CancelledError):
                        task.result()
            finally:
                signals.cancel()
                lead.cancel()
                watches.cancel()
                await asyncio.gather(lead, watches, return_exceptions=True)
                await self._resolver.close()
                await self._registries.close()
                await self._scraper.close()
                await self._progresses.close()
                await self._graphs.close()
                await self._stays.close()
                await self._server.close()

    async def _take_signals(self, stop: Callable[[], object]) -> None:
        """Call ``stop`` at SIGTERM or SIGINT, once kopf has started."""
        # By then kopf has installed its own handlers, which these replace.
        await self._watching.wait()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)

    async def _work(self) -> None:
        await self._restore()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._workers.run(self._settings.process.workers))
            tasks.create_task(self._discovery.run(self._cluster))
            if self._settings.heartbeat != self._settings.lease:
                tasks.create_task(renew_heartbeat(self._cluster, self._settings.heartbeat, _utc_now))
            tasks.create_task(self._scale_to_zero.run(self._cluster))
            tasks.create_task(self._judging.run())
            tasks.create_task(self._autoscaler.run(self._cluster, self._settings.process.scrape_interval_s))

    async def _restore(self) -> None:
        """Read the state that statuses keep, before the first reconciliation; try again until it succeeds."""
        while True:
            try:
                services = await self._cluster.list_services(self._settings.process.watch_namespaces)
                await self._scale_to_zero.start(self._cluster, services)
            except ApiError as error:
                logger.warning("event=services_unread error=%s", error)
                await asyncio.sleep(_RETRY_S)
            else:
                self._upgrading.load(services)
                return

    async def _watch(self) -> None:
        namespaces = self._settings.process.watch_namespaces
        event_handlers = EventHandlers(self._workers.mark, self._record_heartbeat, self._echoes)
        listen = self._settings.process.health_listen
        await kopf.operator(
            registry=make_registry(
                event_handlers,
                log_in,
                lambda: diagnose(
                    time.monotonic(),
                    last_event_s=self._last_heartbeat_s,
                    is_connected=self._leadership.is_connected(),
                    began_s=self._queue.oldest_running_s(),
                ),
            ),
            settings=make_settings(self._settings.heartbeat.name, namespaced=bool(namespaces)),
            insights=self._discovery.insights,
            ready_flag=self._watching,
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            liveness_endpoint=f"http://{listen}/healthz" if listen else None,
        )

    def _record_heartbeat(self) -> None:
        if self._last_heartbeat_s is None:
            logger.info("event=watches watches=heard lease=%s", self._settings.heartbeat)
        self._last_heartbeat_s = time.monotonic()

    def _show_metrics(self) -> None:
        """Register the gauges; gauges of services have values only while this operator is the leader."""

        def show(metric: Metric, read: Read) -> None:
            self._metrics.show(metric, lambda: read() if self._leadership.may_write() else {})

        self._metrics.show(declared.OPERATOR_LEADER, lambda: {(): float(self._leadership.may_write())})
        show(declared.OPERATOR_SERVICES, lambda: Counter(self._upgrading.readiness()))
        show(declared.OPERATOR_UPGRADES, lambda: {(name,): n for name, n in self._upgrading.counts().items()})
        show(declared.OPERATOR_QUEUE_SERVICES, lambda: {(): len(self._queue.due_since_s(time.monotonic()))})
        show(declared.OPERATOR_QUEUE_AGE_SECONDS, self._queue_age_s)
        show(declared.OPERATOR_SCRAPE_AGE_SECONDS, lambda: {(): self._autoscaler.oldest_reading_s()})
        self._metrics.show_scaling(lambda: self._autoscaler.last_decisions() if self._leadership.may_write() else ())
        self._metrics.show_services(lambda: self._statuses() if self._leadership.may_write() else {})

    def _statuses(self) -> dict[Key, Json]:
        """Return the desired status of each service, by its last reconciliation."""
        return {key: each.status for key, each in self._records.of(ReportedStatus) if each.status is not None}

    def _queue_age_s(self) -> dict[tuple[str, ...], float]:
        now_s = time.monotonic()
        return {(): now_s - min(self._queue.due_since_s(now_s), default=now_s)}


def _utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
