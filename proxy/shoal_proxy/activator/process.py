"""The activator's process: the listeners of services and of the admin port, from start to shutdown."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
from functools import partial
from typing import Any, Self

import anyio.lowlevel
import uvloop
from msgspec import Struct

from shoal_proxy.activator.accepting import HandOvers
from shoal_proxy.activator.admin import Admin
from shoal_proxy.activator.forwarding import Forwarder
from shoal_proxy.activator.handler import RequestReleaser
from shoal_proxy.activator.holder import RequestHolder
from shoal_proxy.activator.jobs import AcceptedJobs
from shoal_proxy.activator.listeners import ServiceListeners, make_listener
from shoal_proxy.activator.protocol import HeldProtocol
from shoal_proxy.activator.tables import follow_tables
from shoal_proxy.activator.validation import validate_services
from shoal_proxy.http.connection_limits import ConnectionLimits
from shoal_proxy.http.framed_protocol import FramedProtocol
from shoal_proxy.http.idle_connections import WANTED_DESCRIPTORS, connection_limit
from shoal_proxy.listening import bind
from shoal_proxy.observe.metrics import Metrics
from shoal_proxy.parts import ADMIN_CONNECTIONS
from shoal_schema.fields.addresses import TcpAddress
from shoal_schema.fields.declaring import ACTIVATOR
from shoal_schema.interfaces import metrics as declared
from shoal_schema.interfaces.activator import ActivatorTable
from shoal_schema.process import environment
from shoal_schema.process.environment import SettingsError
from shoal_schema.process.logs import configure, log_exit_reason, requested_format
from shoal_schema.process.open_files import open_files
from shoal_schema.process.settings.activator import ActivatorProcess
from shoal_schema.process.settings.log import LogSettings
from shoal_schema.process.settings.proxy import ProxyProcess
from shoal_schema.wire.timeouts import TransferTimeouts

logger = logging.getLogger(__name__)


_RETRY_S = 1.0
"""The pause before a port that could not be opened is tried again."""
ADMIN_BODY_BYTES = 65_536


class Settings(Struct, frozen=True):
    """The settings of the activator process, by section."""

    process: ActivatorProcess
    logging: LogSettings

    @classmethod
    def from_env(cls, environ: Any) -> Self:
        """Return the settings in ``environ``.

        Raises:
            SettingsError: a value is malformed or out of range, or a name is unknown.
        """
        return environment.read(cls, environ, ACTIVATOR)


class Activator:
    """The activator process; create and `run` it inside a running event loop."""

    def __init__(self, settings: ActivatorProcess) -> None:
        self._settings = settings
        metrics = Metrics()
        self._holder = RequestHolder(settings)
        self._forwarder = Forwarder()
        self._admin = Admin(metrics, self._holder.waiting, self._reason)
        self._releaser = RequestReleaser(self._holder, self._forwarder, metrics, self._admin.news)
        self.admin_socket = bind(settings.admin_listen)
        # Clients' connections have the same limits as at a proxy.
        usual = ProxyProcess()
        timeouts = TransferTimeouts(
            usual.head_timeout_s, usual.body_timeout_s, usual.write_timeout_s, usual.idle_timeout_s,
            usual.min_bytes_per_s,
        )  # fmt: skip
        heads: Any = {"max_head_bytes": usual.max_head_bytes}
        descriptors = open_files(WANTED_DESCRIPTORS)
        # Reserved: a descriptor for each service's port, and one for each forwarded request.
        others = min(settings.max_services + settings.max_requests, descriptors // 2)
        connections = connection_limit(0, descriptors - others)
        clients = ConnectionLimits(
            timeouts, metrics, max_body_bytes=settings.service_max_bytes, max_connections=connections, **heads
        )
        admin = ConnectionLimits(
            timeouts, metrics, max_body_bytes=ADMIN_BODY_BYTES, max_connections=ADMIN_CONNECTIONS, **heads
        )
        self._admin_listener = make_listener(self._admin.app(), partial(FramedProtocol, limits=admin))
        self._hand_overs = HandOvers(AcceptedJobs(settings.max_requests, settings.service_max_requests))
        self._listeners = ServiceListeners(
            settings.listen_host, self._releaser, self._hand_overs, partial(HeldProtocol, limits=clients)
        )
        metrics.read = {
            declared.QUEUE_REQUESTS: lambda: self._holder.requests,
            declared.QUEUE_BYTES: lambda: self._holder.size_bytes,
            declared.CONNECTIONS: lambda: len(clients.members),
        }
        self._table: ActivatorTable | None = None
        self._table_changed = asyncio.Event()
        self._leave = asyncio.Event()

    async def run(self) -> None:
        """Serve until `stop`; then close the ports, and return once no request is held."""
        # Imports what httpcore would import at the first forwarded request: up to a second from a cold disk.
        await anyio.lowlevel.checkpoint()
        admin = asyncio.create_task(self._admin_listener.serve([self.admin_socket]))
        services = asyncio.create_task(self._listeners.serve())
        tables = asyncio.create_task(follow_tables(self._settings.operator, self._receive))
        follow = asyncio.create_task(self._follow())
        await self._leave.wait()
        logger.info("event=leaving requests=%d", self._holder.requests)
        await asyncio.sleep(self._settings.drain_delay_s)  # until load balancers have removed this pod
        logger.info("event=draining requests=%d", self._holder.requests)
        self._listeners.listener.leave()
        with contextlib.suppress(TimeoutError):
            # The listener is shielded from the timeout, and ended by `force_exit` below.
            async with asyncio.timeout(self._settings.drain_timeout_s):
                await asyncio.shield(services)
                await self._hand_overs.settle()
        self._listeners.listener.force_exit = True
        for task in (tables, follow):
            task.cancel()
        self._admin_listener.leave()
        await asyncio.gather(admin, tables, follow, services, return_exceptions=True)
        if left := len(self._hand_overs.jobs):
            logger.warning("event=asynchronous_requests_lost count=%d", left)
        await self._forwarder.close()

    def stop(self) -> None:
        """Start the shutdown, which `run` performs."""
        self._leave.set()

    def _reason(self) -> str:
        if self._leave.is_set():
            return "this activator is stopping"
        return "" if self._table else "no table of services has been received from the operator"

    def _receive(self, table: ActivatorTable) -> None:
        self._table = table
        self._table_changed.set()

    async def _follow(self) -> None:
        """Apply each new table of services.

        Opens and closes ports, and forwards held requests to ready pods.
        """
        while True:
            await self._table_changed.wait()
            self._table_changed.clear()
            assert self._table is not None
            table = self._table
            services, refused = validate_services(table.services, self._listeners.names, self._settings.max_services)
            # Requests of services that left the table are rejected.
            self._hand_overs.peers = table.peers
            for held in self._holder.follow(services):
                held.end()
            closed = await self._listeners.open({service.port: service.name for service in services})
            # The version is published once each of its ports is open or reported as refused: the operator relies on it.
            self._admin.version, self._admin.refused = table.version, {**closed, **refused}
            for service in services:
                self._releaser.release(service.name)
            self._admin.news()
            if closed:
                asyncio.get_running_loop().call_later(_RETRY_S, self._table_changed.set)


async def serve(settings: Settings) -> None:
    """Run an activator until SIGTERM or SIGINT."""
    room = Activator(settings.process)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, room.stop)
    name = room.admin_socket.getsockname()
    logger.info("event=listening admin=%s operator=%s", TcpAddress(name[0], name[1]), settings.process.operator)
    # Objects alive now live as long as the process, so garbage collection skips them.
    gc.freeze()
    await room.run()


def run() -> int:
    """Run the activator until it is stopped; return the exit status."""
    configure(form=requested_format(os.environ))
    try:
        settings = Settings.from_env(os.environ)
        configure(settings.logging.level, settings.logging.form)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except SettingsError as error:
        log_exit_reason("shoal-waiting", error)
        return 2
    except OSError as error:
        log_exit_reason("shoal-waiting", error.strerror or error)
        return 1
    return 0
