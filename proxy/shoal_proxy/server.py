"""The proxy process: its listeners and tasks, from start to shutdown."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import uvicorn

from shoal_proxy.asynchronous.delivery import make_webhooks
from shoal_proxy.asynchronous.opening import open_asynchronous
from shoal_proxy.asynchronous.peers import PeerResults
from shoal_proxy.credentials import make_access_control
from shoal_proxy.dispatch.dispatcher import Dispatcher
from shoal_proxy.dispatch.forwarding import RequestForwarder
from shoal_proxy.dispatch.instances import InstancesLink
from shoal_proxy.dispatch.unread import UnreadResponses
from shoal_proxy.errors import Draining
from shoal_proxy.gauges import gauges_of
from shoal_proxy.http.framed_protocol import FramedProtocol
from shoal_proxy.http.handshakes import TlsListener
from shoal_proxy.http.idle_connections import WANTED_DESCRIPTORS
from shoal_proxy.http.inference import Inference
from shoal_proxy.http.listener import Listener
from shoal_proxy.http.protocol import InferProtocol
from shoal_proxy.lifecycle.drain import ProxyPhase
from shoal_proxy.lifecycle.stay import Stay
from shoal_proxy.listening import EVERYWHERE, bind, bound_address, reach
from shoal_proxy.observe.access_log import with_access_log
from shoal_proxy.observe.log_writer import writing
from shoal_proxy.observe.metrics import Metrics
from shoal_proxy.observe.tracer import tracer_from
from shoal_proxy.parts import make_certificate, make_connection_limits, make_link, make_scheduler
from shoal_proxy.rollout.rollout import Rollout
from shoal_proxy.routes.admin import COMPILED, Admin
from shoal_proxy.routes.app import PublicRoutes, make_app
from shoal_proxy.routes.results import Results
from shoal_proxy.settings import Settings
from shoal_schema.process.open_files import open_files
from shoal_schema.version import VERSION

if TYPE_CHECKING:
    from shoal_proxy.observe.exporting import Exporter
    from shoal_proxy.rpc.port import GrpcPort

logger = logging.getLogger(__name__)

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
        self.metrics.read = gauges_of(self)

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
        bound_address(proxy.socket),
        "off" if proxy.certificate is None else "mutual" if proxy.certificate.mutual else "on",
        reach(proxy.socket),
        bound_address(proxy.admin_socket),
        reach(proxy.admin_socket),
        "off" if proxy.grpc is None else proxy.grpc.address,
        proxy.front_limits.max_connections,
        "yes" if COMPILED else "no",
    )
    for name, sock in (("SHOAL_PROXY_LISTEN", proxy.socket), ("SHOAL_PROXY_ADMIN_LISTEN", proxy.admin_socket)):
        if reach(sock) == EVERYWHERE:
            logger.info(_EVERYWHERE, name, bound_address(sock), sock.getsockname()[1])
    with writing(proxy.inference.access_log):
        await proxy.run()
