"""The process: one listener for each service, one for the admin port, and the way from start to stop."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
from functools import partial
from typing import Any, Self

import uvloop
from msgspec import Struct

from shoal_proxy.edge.crowd import WANTED_DESCRIPTORS, connection_limit
from shoal_proxy.guard import Guard
from shoal_proxy.guarded import GuardedProtocol
from shoal_proxy.metrics import Metrics
from shoal_proxy.server import ADMIN_BODY_BYTES, ADMIN_CONNECTIONS, bind
from shoal_proxy.waiting.accepting import accept
from shoal_proxy.waiting.admin import Admin
from shoal_proxy.waiting.door import Desk
from shoal_proxy.waiting.doors import Doors, make_listener
from shoal_proxy.waiting.forwarding import Forwarder
from shoal_proxy.waiting.hall import Hall
from shoal_proxy.waiting.protocol import HeldProtocol
from shoal_proxy.waiting.tables import follow_tables
from shoal_schema import environment
from shoal_schema import metrics as declared
from shoal_schema.addresses import TcpAddress
from shoal_schema.declaring import WAITING
from shoal_schema.environment import SettingsError
from shoal_schema.logs import configure, form_asked, say_why
from shoal_schema.open_files import open_files
from shoal_schema.processes import LogSettings, ProxyProcess, WaitingProcess
from shoal_schema.waiting import RoomTable
from shoal_schema.wire.patience import Patience

logger = logging.getLogger(__name__)


_AGAIN_S = 1.0
"""A port that could not be opened is tried again after so long: who had it may have gone."""


class Settings(Struct, frozen=True):
    """Everything that can be set."""

    process: WaitingProcess
    logging: LogSettings

    @classmethod
    def from_env(cls, environ: Any) -> Self:
        """Return the settings that ``environ`` gives.

        Raises:
            SettingsError: a value is malformed or out of range, or a name is misspelt.
        """
        return environment.read(cls, environ, WAITING)


class WaitingRoom:
    """Everything one process holds. Create and `run` it inside a running event loop."""

    def __init__(self, settings: WaitingProcess) -> None:
        self._settings = settings
        metrics = Metrics()
        self._hall = Hall(settings)
        self._forwarder = Forwarder()
        self._admin = Admin(metrics, self._hall.waiting, self._reason)
        self._desk = Desk(self._hall, self._forwarder, metrics, self._admin.news)
        self.admin_socket = bind(settings.admin_listen)
        doors, admin = _guards(settings, metrics)
        self._admin_listener = make_listener(self._admin.app(), partial(GuardedProtocol, guard=admin))
        self._doors = Doors(settings.listen_host, self._desk, partial(HeldProtocol, guard=doors))
        metrics.read = {
            declared.QUEUE_REQUESTS: lambda: self._hall.requests,
            declared.QUEUE_BYTES: lambda: self._hall.size_bytes,
            declared.CONNECTIONS: lambda: len(doors.members),
        }
        self._table: RoomTable | None = None
        self._told = asyncio.Event()
        self._leave = asyncio.Event()

    async def run(self) -> None:
        """Serve until told to stop; then take no more, and go when nothing is held."""
        admin = asyncio.create_task(self._admin_listener.serve([self.admin_socket]))
        doors = asyncio.create_task(self._doors.serve())
        tables = asyncio.create_task(follow_tables(self._settings.operator, self._tell))
        follow = asyncio.create_task(self._follow())
        await self._leave.wait()
        logger.info("event=leaving requests=%d", self._hall.requests)
        await asyncio.sleep(self._settings.drain_delay_s)  # until every load balancer knows
        logger.info("event=draining requests=%d", self._hall.requests)
        self._doors.listener.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout_s):
                await asyncio.shield(doors)
        self._doors.listener.force_exit = True
        for task in (tables, follow):
            task.cancel()
        self._admin_listener.leave()
        await asyncio.gather(admin, tables, follow, doors, return_exceptions=True)
        await self._forwarder.close()

    def stop(self) -> None:
        """Start to go."""
        self._leave.set()

    def _reason(self) -> str:
        if self._leave.is_set():
            return "this room is about to stop"
        return "" if self._table else "the operator has not told yet which services there are"

    def _tell(self, table: RoomTable) -> None:
        self._table = table
        self._told.set()

    async def _follow(self) -> None:
        """Open and close ports as tables say, and forward to pods that are ready."""
        while True:
            await self._told.wait()
            self._told.clear()
            assert self._table is not None
            table = self._table
            services, refused = accept(table.services, self._doors.names, self._settings.max_services)
            for held in self._hall.follow(services):
                held.end()
            closed = await self._doors.open({service.port: service.name for service in services})
            # A version counts as taken when every port of it is open, or told to be refused: the operator relies on it.
            self._admin.version, self._admin.refused = table.version, {**closed, **refused}
            for service in services:
                self._desk.call(service.name)
            self._admin.news()
            if closed:
                asyncio.get_running_loop().call_later(_AGAIN_S, self._told.set)


def _guards(settings: WaitingProcess, metrics: Metrics) -> tuple[Guard, Guard]:
    """Return what bounds callers' connections, as a proxy's are, and the admin port's."""
    usual = ProxyProcess()
    patience = Patience(
        usual.head_timeout_s, usual.body_timeout_s, usual.write_timeout_s, usual.idle_timeout_s, usual.min_bytes_per_s
    )
    heads: Any = {"max_head_bytes": usual.max_head_bytes}
    descriptors = open_files(WANTED_DESCRIPTORS)
    # One for each service's port, and one for each request's way to a pod.
    others = min(settings.max_services + settings.max_requests, descriptors // 2)
    connections = connection_limit(0, descriptors - others)
    doors = Guard(patience, metrics, max_body_bytes=settings.service_max_bytes, max_connections=connections, **heads)
    admin = Guard(patience, metrics, max_body_bytes=ADMIN_BODY_BYTES, max_connections=ADMIN_CONNECTIONS, **heads)
    return doors, admin


async def serve(settings: Settings) -> None:
    """Run a waiting room until SIGTERM or SIGINT."""
    room = WaitingRoom(settings.process)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, room.stop)
    name = room.admin_socket.getsockname()
    logger.info("event=listening admin=%s operator=%s", TcpAddress(name[0], name[1]), settings.process.operator)
    gc.freeze()
    await room.run()


def run() -> int:
    """Run until told to stop; return the exit status."""
    configure(form=form_asked(os.environ))
    try:
        settings = Settings.from_env(os.environ)
        configure(settings.logging.level, settings.logging.form)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except SettingsError as error:
        say_why("shoal-waiting", error)  # the last line is what a person reads
        return 2
    except OSError as error:
        say_why("shoal-waiting", error.strerror or error)
        return 1
    return 0
