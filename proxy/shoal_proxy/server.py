"""The proxy process: its listeners and tasks, from start to shutdown."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import time
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from random import randrange
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import uvicorn

from shoal_proxy.asynchronous.delivery import make_webhooks
from shoal_proxy.asynchronous.opening import open_asynchronous
from shoal_proxy.asynchronous.peers import PeerResults
from shoal_proxy.batching.batcher import Batcher
from shoal_proxy.batching.order import FairShares
from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.batching.queue import QueueLimits
from shoal_proxy.batching.row_checks.checks import RowChecks
from shoal_proxy.batching.scheduler import Scheduler
from shoal_proxy.certificate import Certificate
from shoal_proxy.credentials import make_access_control
from shoal_proxy.dispatch.dispatcher import Dispatcher
from shoal_proxy.dispatch.exchange import RuntimeLink
from shoal_proxy.dispatch.forwarding import RequestForwarder
from shoal_proxy.dispatch.instances import InstancesLink
from shoal_proxy.dispatch.link import ModelLink
from shoal_proxy.dispatch.unread import UnreadResponses
from shoal_proxy.errors import Draining
from shoal_proxy.explaining.load import demand, expected_wait_s, utilization
from shoal_proxy.explaining.report import last_key
from shoal_proxy.graph.link import GraphLink
from shoal_proxy.http.connection_limits import ConnectionLimits
from shoal_proxy.http.framed_protocol import FramedProtocol
from shoal_proxy.http.handshakes import MAX_SHAKING, TlsListener
from shoal_proxy.http.idle_connections import WANTED_DESCRIPTORS, connection_limit
from shoal_proxy.http.inference import Inference
from shoal_proxy.http.listener import Listener
from shoal_proxy.http.protocol import InferProtocol
from shoal_proxy.lifecycle.drain import ProxyPhase
from shoal_proxy.lifecycle.stay import Stay
from shoal_proxy.observe.access_log import with_access_log
from shoal_proxy.observe.log_writer import writing
from shoal_proxy.observe.metrics import Metrics
from shoal_proxy.observe.tracer import tracer_from
from shoal_proxy.rollout.rollout import Rollout
from shoal_proxy.routes.admin import COMPILED, Admin
from shoal_proxy.routes.app import PublicRoutes, make_app
from shoal_proxy.routes.results import Results
from shoal_proxy.settings import Settings
from shoal_schema.fields.addresses import Address
from shoal_schema.interfaces import metrics as declared
from shoal_schema.interfaces.instances import instance_address
from shoal_schema.interfaces.protocols import HTTP, expand
from shoal_schema.interfaces.rollout import MAX_BYTES as ROLLOUT_MAX_BYTES
from shoal_schema.interfaces.rollout import PATH as ROLLOUT_PATH
from shoal_schema.process.open_files import open_files
from shoal_schema.resource.traffic import RowChecks as RowChecksMode
from shoal_schema.version import VERSION
from shoal_schema.wire.timeouts import TransferTimeouts

if TYPE_CHECKING:
    from shoal_proxy.observe.exporting import Exporter
    from shoal_proxy.rpc.port import GrpcPort

logger = logging.getLogger(__name__)

ADMIN_CONNECTIONS = 64
"""More than the kubelet, Prometheus, the operator and users need; separate from clients' connections."""
ADMIN_REQUEST_S = 10.0
"""Longest time for a head, and for a body below the minimum rate, on the admin port."""

WATCH_AGAIN_S = 5.0
WEBHOOKS_S = 5.0
"""Time after the drain for the first tries of webhooks."""
_GRACE_S = 1.0
"""Time after the drain's timeout for error responses to reach gRPC clients."""


class Watcher(Protocol):
    """An object with a task that keeps its state up to date."""

    async def watch(self) -> None: ...  # noqa: D102


async def keep_watching(watcher: Watcher, again_s: float = WATCH_AGAIN_S) -> None:
    """Run a watcher, and restart it after unexpected errors."""
    while True:
        try:
            await watcher.watch()
            return
        except Exception:
            logger.exception("event=watch_failed watcher=%s", type(watcher).__name__)
        await asyncio.sleep(again_s)


def bind(address: Address) -> socket.socket:
    """Return a socket bound to an address.

    Raises:
        OSError: the address cannot be bound; the message contains it.
    """
    try:
        if address.path:
            sock = socket.socket(socket.AF_UNIX)
            if Path(address.path).is_socket():
                # A process that has ended left its socket file, which would block the address forever.
                with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
                    # Only a refused connection proves that no process listens there.
                    try:
                        probe.connect(address.path)
                    except ConnectionRefusedError:
                        Path(address.path).unlink()
            sock.bind(address.path)
        else:
            host = address.host
            if host == "::":
                # Every address, of both families.
                try:
                    sock = socket.socket(socket.AF_INET6)
                except OSError:  # the kernel has no IPv6
                    sock, host = socket.socket(socket.AF_INET), "0.0.0.0"
                else:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            else:
                sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, address.port))
        sock.listen()  # before `event=listening` is logged, so that clients can connect from then on
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from None
    return sock


_PORTIONS = 8
"""One request takes at most this part of the queue's limit in rows at a time."""


def make_scheduler(settings: Settings) -> Scheduler:
    """Return the scheduler that ``settings`` configure."""
    batching, queue = settings.batching, settings.queue
    objective_ms = batching.latency_objective_milliseconds
    batcher = Batcher(
        QueueLimits(
            settings.queue_rows, queue.max_bytes, max(batching.max_batch_size, settings.queue_rows // _PORTIONS)
        ),
        BatchLimits(
            batching.max_batch_size, batching.max_delay_milliseconds / 1000, batching.in_flight, batching.policy
        ),
        objective_s=NEVER_S if objective_ms is None else objective_ms / 1000,
        shares=FairShares(
            {name.encode(): share for name, share in (queue.fair_share_weights or {}).items()},
            queue.priority_ageing_milliseconds / 1000,
            classes=bool(settings.fair_share_header),
        ),
    )
    # Graphs form no batches whose rows could depend on each other.
    checked = settings.process.graph is None and batching.row_checks is not RowChecksMode.OFF
    checks = RowChecks(randrange) if checked else None
    return Scheduler(batcher, idempotent=batching.idempotent, coalesce=batching.coalesce_identical, checks=checks)


def make_link(settings: Settings) -> ModelLink:
    """Return the link to the configured graph or runtime."""
    if settings.process.graph is not None:
        return GraphLink(settings.process.graph, settings)
    process, batching = settings.process, settings.batching
    links = [
        RuntimeLink(
            instance_address(process.runtime, number),
            settings.name,
            batching.pad_buckets or {},
            in_flight=batching.in_flight,
        )
        for number in range(process.runtime_instances)
    ]
    return links[0] if len(links) == 1 else InstancesLink(links)


def make_certificate(settings: Settings) -> Certificate | None:
    """Return the server certificate; None without TLS.

    Raises:
        CertificateError: the files are not a valid certificate.
    """
    process = settings.process
    if not process.tls_certificate:
        return None
    return Certificate(process.tls_certificate, process.tls_key, process.tls_client_ca)


def make_connection_limits(
    settings: Settings, metrics: Metrics, descriptors: int, unread: UnreadResponses | None = None
) -> tuple[ConnectionLimits, ConnectionLimits]:
    """Return the connection limits of the inference port and the admin port."""
    timeouts = TransferTimeouts(
        settings.process.head_timeout_s,
        settings.process.body_timeout_s,
        settings.process.write_timeout_s,
        settings.process.idle_timeout_s,
        settings.process.min_bytes_per_s,
    )
    if settings.process.tls_certificate:
        # Sockets in a handshake do not count as connections yet.
        descriptors -= min(MAX_SHAKING, descriptors // 4)
    front = ConnectionLimits(
        timeouts,
        metrics,
        max_head_bytes=settings.process.max_head_bytes,
        max_body_bytes=settings.queue.max_body_bytes,
        max_connections=connection_limit(settings.process.max_connections, descriptors),
        max_per_address=settings.process.max_connections_per_address,
        max_age_s=settings.process.connection_age_s,
        unread=unread,
        read_paths=frozenset(path.encode() for page in HTTP.pages if page.reads_body for path in expand(page.path)),
    )
    admin = ConnectionLimits(
        timeouts._replace(
            head_s=min(timeouts.head_s, ADMIN_REQUEST_S),
            body_s=min(timeouts.body_s, ADMIN_REQUEST_S),
        ),
        metrics,
        max_head_bytes=settings.process.max_head_bytes,
        max_body_bytes=ROLLOUT_MAX_BYTES,
        read_paths=frozenset({ROLLOUT_PATH.encode()}),
        max_connections=ADMIN_CONNECTIONS,
        closes_busy=True,  # so that probes always find room
    )
    return front, admin


class Proxy:
    """One proxy process. Must be created and run inside a running event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.certificate = make_certificate(settings)
        self.link = make_link(settings)
        self.scheduler = make_scheduler(settings)
        instance = (settings.process.instance or uuid4().hex).encode()
        self.forwarder = (
            RequestForwarder(settings, self.scheduler.batcher, self.metrics, instance, self.certificate)
            if settings.process.peers
            else None
        )
        self.unread = UnreadResponses(settings.process.max_unsent_bytes, settings.process.write_timeout_s)
        self.dispatcher = Dispatcher(self.link, self.metrics, self.scheduler, self.forwarder, instance, self.unread)
        self.rollout = self._make_rollout()
        self.access_control, self._watched = make_access_control(settings)
        self.metrics.access_control = self.access_control
        self.inference = Inference(settings, self.dispatcher, self.metrics, self.access_control)
        if self.rollout is not None:
            self.rollout.on_plan = lambda plan: self.inference.set_sticky_header(plan.sticky_header.lower().encode())
        self._spans = self._exporter()
        self.pages = PublicRoutes(settings, self.link, self.dispatcher, self.metrics, VERSION, self.access_control)
        descriptors = open_files(WANTED_DESCRIPTORS)
        self.webhooks = make_webhooks(settings, self.metrics)
        self.asynchronous, self.recovery = open_asynchronous(settings, self.dispatcher, self.metrics, self.inference)
        if self.asynchronous is not None:
            self.asynchronous.delivery = self.webhooks
            self.inference.set_asynchronous(self.asynchronous)
            peers = None if self.forwarder is None else PeerResults(self.forwarder.replicas)
            self.pages.results = Results(self.asynchronous, peers)
        self.front_limits, self.admin_limits = make_connection_limits(settings, self.metrics, descriptors, self.unread)
        self.socket = bind(settings.process.listen)
        self.admin_socket = bind(settings.process.admin_listen)
        self.grpc: GrpcPort | None = None
        if settings.proxy.grpc_port is not None:
            # Otherwise gRPC's core logs a line about each client that violates the protocol.
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")
            from shoal_proxy.rpc import port  # noqa: PLC0415 (20 MB, and an extra)

            self.grpc = port.GrpcPort(self.inference, self.pages, settings, self.certificate, self.unread)
        self._leave = asyncio.Event()
        self._hurry = asyncio.Event()
        self._stay = Stay(settings.process.replacement_timeout_s)
        self._stay_changed = asyncio.Event()
        self._drained = asyncio.Event()
        self._settled = asyncio.Event()
        self.dispatcher.on_settled = self._settled.set
        if self.asynchronous is not None:
            self.asynchronous.on_settled = self._settled.set
        self._read_metrics()

    def _make_rollout(self) -> Rollout | None:
        if not self.settings.process.candidates:
            return None
        rollout = Rollout(self.settings, self.dispatcher, self.link, self.certificate)
        self.metrics.read_rollout = lambda: rollout.counters
        return rollout

    def _exporter(self) -> "Exporter | None":
        tracer = tracer_from(os.environ)
        if tracer is None:
            return None
        try:
            from shoal_proxy.observe.exporting import Exporter  # noqa: PLC0415 (0.2 s, and not installed everywhere)
        except ModuleNotFoundError as error:
            logger.warning("event=tracing tracing=off missing=%s remedy=%r", error.name, "pip install 'shoal[tracing]'")
            return None
        self.inference.tracer = self.dispatcher.tracer = tracer
        return Exporter(tracer, os.environ, self.settings.name)

    async def run(self) -> None:
        """Serve until the drain is complete."""
        if self._spans is not None:
            self._spans.start()
        protocol: Any = partial(InferProtocol, inference=self.inference, limits=self.front_limits)
        log, app = self.inference.access_log, make_app(self.pages, self.inference.cors, self.inference.compression)
        config = _config(app if log is None else with_access_log(app, log), http=protocol)
        front = TlsListener(config, self.certificate, self.front_limits) if self.certificate else Listener(config)
        pages = Admin(
            self.metrics,
            self.dispatcher,
            self.settings,
            reason=self.pages.reason,
            started=self.link.started,
            stopping=self,
            rollout=self.rollout,
            instances=lambda: self.link.counts if isinstance(self.link, InstancesLink) else None,
        )
        admin_protocol: Any = partial(FramedProtocol, limits=self.admin_limits)
        admin = Listener(_config(pages.app(), http=admin_protocol))
        watch = asyncio.create_task(self._watch())
        front_task = asyncio.create_task(front.serve([self.socket]))
        if self.grpc is not None:
            await self.grpc.start()
        admin_task = asyncio.create_task(admin.serve([self.admin_socket]))
        # Objects alive now live as long as the process: exclude them from garbage collection during requests.
        gc.collect()
        gc.freeze()
        await self._leave.wait()
        self.link.started.set()  # releases readiness requests that wait for the start
        await self._leave_service(front, front_task)
        if self.webhooks is not None:
            await self.webhooks.finish(WEBHOOKS_S)
        watch.cancel()
        self.link.close()
        if self.forwarder is not None:
            self.forwarder.close()
        if self.rollout is not None:
            self.rollout.close()
        self.dispatcher.close()
        if self.webhooks is not None:
            await self.webhooks.close()
        self._drained.set()
        if self._spans is not None:
            # The exporter may wait for its collector.
            await asyncio.to_thread(self._spans.close)
        # The admin port closes last, so that `POST /drain` gets its response.
        admin.leave()
        await asyncio.gather(admin_task, watch, return_exceptions=True)

    async def _watch(self) -> None:
        """Run all watchers: of the runtime and, if configured, of peers, keys and the certificate."""
        async with asyncio.TaskGroup() as group:
            for each in (
                self.link, self.forwarder, self.rollout, self.certificate, self.asynchronous, self.recovery,
                self.webhooks, *self._watched,
            ):  # fmt: skip
                if each is not None:
                    group.create_task(keep_watching(each))

    def stop(self) -> None:
        """Begin to stop the proxy.

        A second call skips all delays before the drain.
        """
        if self._leave.is_set():
            self._hurry.set()
            self._stay_changed.set()
        self._leave.set()

    async def drain(self) -> None:
        """Drain without waiting for another replica; return when complete."""
        self.stay(0.0)
        self._leave.set()
        await self._drained.wait()

    def stay(self, seconds: float) -> None:
        """Keep a stopping replica serving for ``seconds``; 0 starts the drain."""
        self._stay.grant(seconds, time.monotonic())
        self._stay_changed.set()

    async def _stay_on(self) -> float:
        """Keep serving for the extra time that the operator grants.

        Returns: Monotonic time (s) from which the drain delay counts.
        """
        begun_s = time.monotonic()
        self._stay.begin(begun_s)
        if self._stay.left_s(begun_s):
            self._enter(ProxyPhase.STAYING)
        stayed, arrived_rows = False, self.scheduler.traffic.arrived_rows
        while (left_s := self._stay.left_s(time.monotonic())) and not self._hurry.is_set():
            stayed = stayed or self._stay.granted
            self._stay_changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._stay_changed.wait()
            if arrived_rows != (arrived_rows := self.scheduler.traffic.arrived_rows):
                self._stay.request_arrived(time.monotonic())
        # After a stay, load balancers receive the other replica only now; without one they dropped this at the signal.
        return time.monotonic() if stayed else begun_s

    async def _leave_service(self, front: Listener, front_task: asyncio.Task[None]) -> None:
        delay_from_s = await self._stay_on()
        self._enter(ProxyPhase.LEAVING)
        with contextlib.suppress(TimeoutError):
            delayed_s = time.monotonic() - delay_from_s
            async with asyncio.timeout(max(0.0, self.settings.rollout.drain_delay_seconds - delayed_s)):
                await self._hurry.wait()
        self._enter(ProxyPhase.DRAINING)
        if self.asynchronous is not None:
            self.asynchronous.leave()
        front.leave()
        others = [front_task]
        if self.grpc is not None:
            grace_s = self.settings.rollout.drain_timeout_seconds + _GRACE_S
            others.append(asyncio.create_task(self.grpc.stop(grace_s)))
        try:
            async with asyncio.timeout(self.settings.rollout.drain_timeout_seconds):
                # Shielded from the timeout, after which remaining requests fail below.
                await asyncio.shield(front_task)
                while not (self.dispatcher.settled and (self.asynchronous is None or self.asynchronous.settled)):
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            logger.warning("event=drain_timed_out rows=%d", self.scheduler.queue.rows)
            if self.asynchronous is not None:
                self.asynchronous.stop()
            self.dispatcher.reject_waiting(Draining("this replica stopped before the result was ready"))
            # uvicorn stops waiting for connections.
            front.force_exit = True
        await asyncio.gather(*others, return_exceptions=True)
        if self.asynchronous is not None:
            await self.asynchronous.close()
        self._enter(ProxyPhase.STOPPED)

    def _enter(self, phase: ProxyPhase) -> None:
        self.dispatcher.phase = phase
        logger.info("event=%s waiting_rows=%d", phase, self.scheduler.queue.rows)

    def _read_metrics(self) -> None:
        scheduler, queue = self.scheduler, self.scheduler.queue
        certificate, checks = self.certificate, scheduler.checks
        self.metrics.read = {
            **({declared.CERTIFICATE_EXPIRY: lambda: certificate.expires_s} if certificate else {}),
            declared.QUEUE_ROWS: lambda: queue.rows,
            declared.QUEUE_REQUESTS: lambda: queue.requests,
            declared.QUEUE_BYTES: lambda: queue.size_bytes,
            declared.IN_FLIGHT_ROWS: lambda: scheduler.in_flight_rows,
            declared.IN_FLIGHT_BATCHES: lambda: len(scheduler.running),
            declared.COALESCED_ROWS: lambda: scheduler.coalesced_rows,
            declared.CONNECTIONS: lambda: len(self.front_limits.members),
            declared.UNSENT_BYTES: lambda: self.unread.size_bytes,
            declared.RUNTIME_READY: lambda: self.link.ready,
            declared.RUNTIME_LOSSES: lambda: self.link.losses,
            declared.DEVICE_MEMORY_USED_BYTES: lambda: _part(self.link.device_memory, 0),
            declared.DEVICE_MEMORY_BYTES: lambda: _part(self.link.device_memory, 1),
            declared.BATCH_ROWS_LIMIT: lambda: scheduler.batcher.tables.least_max_rows,
            declared.OBJECTIVE_ATTAINABLE: lambda: scheduler.batcher.can_meet_objective(last_key(scheduler.batcher)),
            declared.UTILIZATION: lambda: utilization(scheduler, time.monotonic()),
            declared.DEMAND: lambda: demand(scheduler, time.monotonic()),
            declared.EXPECTED_WAIT_SECONDS: lambda: expected_wait_s(scheduler, time.monotonic()),
            declared.DRAINING: lambda: self.dispatcher.phase is not ProxyPhase.SERVING,
        }
        if self.asynchronous is not None:
            jobs = self.asynchronous.table
            self.metrics.read |= {
                declared.ASYNC_WAITING: lambda: jobs.waiting,
                declared.ASYNC_WAITING_ROWS: lambda: jobs.waiting_rows,
                declared.ASYNC_HELD: lambda: len(jobs),
                declared.ASYNC_BYTES: lambda: jobs.held_bytes,
            }
        if self.webhooks is not None:
            deliveries = self.webhooks.queue
            self.metrics.read[declared.WEBHOOKS_HELD] = lambda: deliveries.held
        if checks is not None:
            self.metrics.read |= {
                declared.ROWS_CHECKED: lambda: checks.checked_rows,
                declared.ROWS_SUSPECTED: lambda: checks.suspected_rows,
                declared.ROW_VIOLATIONS: lambda: checks.violations,
                declared.ROW_CHECK_SECONDS: lambda: checks.device_s,
                declared.ROWS_INDEPENDENT: lambda: None if checks.unchecked else not checks.violated,
            }


def _part(of: tuple[int, int] | None, number: int) -> int | None:
    return None if of is None else of[number]


def _config(app: Any, *, http: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=http,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
    )


EVERYWHERE = "every_interface"
_EVERYWHERE = (
    "event=listening_everywhere setting=%s address=%s message=this port is reachable from all networks of this "
    "machine; use 127.0.0.1:%d to restrict it to this machine"
)


async def serve(settings: Settings) -> None:
    """Run a proxy until SIGTERM, SIGINT or ``POST /drain``."""
    proxy = Proxy(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, proxy.stop)
    logger.info(
        "event=listening address=%s tls=%s reach=%s admin=%s admin_reach=%s grpc=%s connections=%d compiled=%s",
        _bound(proxy.socket),
        "off" if proxy.certificate is None else "mutual" if proxy.certificate.mutual else "on",
        _reach(proxy.socket),
        _bound(proxy.admin_socket),
        _reach(proxy.admin_socket),
        "off" if proxy.grpc is None else proxy.grpc.address,
        proxy.front_limits.max_connections,
        "yes" if COMPILED else "no",
    )
    for name, sock in (("SHOAL_PROXY_LISTEN", proxy.socket), ("SHOAL_PROXY_ADMIN_LISTEN", proxy.admin_socket)):
        if _reach(sock) == EVERYWHERE:
            logger.info(_EVERYWHERE, name, _bound(sock), sock.getsockname()[1])
    with writing(proxy.inference.access_log):
        await proxy.run()


def _bound(sock: socket.socket) -> str:
    name = sock.getsockname()
    return f"unix:{name}" if isinstance(name, str) else str(Address(name[0], name[1]))


def _reach(sock: socket.socket) -> str:
    """Return a word for the addresses on which a socket accepts connections.

    Such as ``unix`` or ``this_machine``.
    """
    name = sock.getsockname()
    if isinstance(name, str):
        return "unix"
    address = ip_address(name[0].partition("%")[0])
    if address.is_unspecified:
        return EVERYWHERE
    return "this_machine" if address.is_loopback else "one_interface"
