"""The process: one listener for each service, one for the admin port, and the way from start to stop."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from functools import partial
from typing import Any, Self

import uvicorn
import uvloop
from msgspec import Struct

from shoal_proxy.edge.crowd import connection_limit
from shoal_proxy.guard import Guard
from shoal_proxy.guarded import GuardedProtocol
from shoal_proxy.metrics import Metrics
from shoal_proxy.server import ADMIN_BODY_BYTES, ADMIN_CONNECTIONS, Listener, bind, open_files
from shoal_proxy.waiting.admin import Admin
from shoal_proxy.waiting.door import Desk, Door
from shoal_proxy.waiting.forwarding import Forwarder
from shoal_proxy.waiting.hall import Hall
from shoal_proxy.waiting.protocol import HeldProtocol
from shoal_proxy.waiting.tables import follow_tables
from shoal_schema import environment
from shoal_schema.addresses import Address, TcpAddress
from shoal_schema.declaring import WAITING
from shoal_schema.environment import SettingsError
from shoal_schema.logs import configure
from shoal_schema.processes import LogSettings, ProxyProcess, WaitingProcess
from shoal_schema.waiting import RoomTable
from shoal_schema.wire.patience import Patience

logger = logging.getLogger(__name__)


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
        self._metrics = Metrics()
        self._hall = Hall(settings)
        self._forwarder = Forwarder()
        self._desk = Desk(self._hall, self._forwarder, self._metrics, self._news)
        self._admin = Admin(self._metrics, self._hall.waiting, self._reason)
        self.admin_socket = bind(settings.admin_listen)
        self._guard, self._admin_guard = _guards(settings, self._metrics)
        self._doors: dict[str, tuple[int, Listener, asyncio.Task[None]]] = {}
        self._leave = asyncio.Event()
        self._told = False

    async def run(self) -> None:
        """Serve until told to stop; then take no more, and go when nothing is held."""
        admin = _listener(self._admin.app(), partial(GuardedProtocol, guard=self._admin_guard))
        admin_task = asyncio.create_task(admin.serve([self.admin_socket]))
        tables = asyncio.create_task(follow_tables(self._settings.operator, self._follow))
        await self._leave.wait()
        logger.info("event=leaving requests=%d", self._hall.requests)
        await asyncio.sleep(self._settings.drain_delay_s)  # until every load balancer knows
        logger.info("event=draining requests=%d", self._hall.requests)
        for _, listener, _ in self._doors.values():
            listener.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout_s):
                await asyncio.gather(*(asyncio.shield(task) for _, _, task in self._doors.values()))
        for _, listener, _ in self._doors.values():
            listener.force_exit = True
        tables.cancel()
        admin.leave()
        await asyncio.gather(admin_task, tables, *(task for _, _, task in self._doors.values()), return_exceptions=True)
        await self._forwarder.close()

    def stop(self) -> None:
        """Start to go."""
        self._leave.set()

    def _news(self) -> None:
        self._admin.news()

    def _reason(self) -> str:
        if self._leave.is_set():
            return "this room is about to stop"
        return "" if self._told else "the operator has not told yet which services there are"

    def _follow(self, table: RoomTable) -> None:
        """Open and close ports as a table says, and forward to those who are ready."""
        self._told = True
        for held in self._hall.follow(table.services):
            held.end()
        wanted = {service.name: service.port for service in table.services}
        for name in [name for name, (port, _, _) in self._doors.items() if wanted.get(name) != port]:
            self._doors.pop(name)[1].leave()
        shut = [name for name in wanted if name not in self._doors and not self._open(name, wanted[name])]
        # A version counts as taken when every port of it is open: the operator relies on that.
        self._admin.version = "" if shut else table.version
        for name in wanted:
            self._desk.call(name)
        self._admin.news()

    def _open(self, name: str, port: int) -> bool:
        try:
            sock = bind(Address(self._settings.listen_host, port))
        except OSError as error:
            logger.error("event=port_refused service=%s error=%s", name, error)
            return False
        protocol = partial(HeldProtocol, guard=self._guard)
        listener = _listener(Door(name, self._desk), protocol)
        self._doors[name] = (port, listener, asyncio.create_task(listener.serve([sock])))
        logger.info("event=opened service=%s port=%d", name, port)
        return True


def _guards(settings: WaitingProcess, metrics: Metrics) -> tuple[Guard, Guard]:
    """Return what bounds callers' connections, as a proxy's are, and the admin port's."""
    usual = ProxyProcess()
    patience = Patience(
        usual.head_timeout_s, usual.body_timeout_s, usual.write_timeout_s, usual.idle_timeout_s, usual.min_bytes_per_s
    )
    heads = {"max_head_bytes": usual.max_head_bytes}
    connections = connection_limit(0, open_files())
    doors = Guard(patience, metrics, max_body_bytes=settings.service_max_bytes, max_connections=connections, **heads)
    admin = Guard(patience, metrics, max_body_bytes=ADMIN_BODY_BYTES, max_connections=ADMIN_CONNECTIONS, **heads)
    return doors, admin


def _listener(app: Any, http: Any) -> Listener:
    config = uvicorn.Config(
        app, http=http, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False
    )
    return Listener(config)


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
    try:
        settings = Settings.from_env(os.environ)
        configure(settings.logging.level)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except SettingsError as error:
        print(f"shoal-waiting: {error}", file=sys.stderr)  # noqa: T201 (the last line is what a person reads)
        return 2
    except OSError as error:
        print(f"shoal-waiting: {error.strerror or error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0
