"""Two listeners in one event loop, and the way from start to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import logging
import signal
import socket
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvicorn

from shoal_proxy.admin import Admin
from shoal_proxy.app import Pages, make_app
from shoal_proxy.batching.batcher import Batcher
from shoal_proxy.batching.order import Shares
from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.batching.queue import QueueLimits
from shoal_proxy.dispatcher import Dispatcher
from shoal_proxy.errors import Draining
from shoal_proxy.explaining.report import last_key
from shoal_proxy.inference import Inference
from shoal_proxy.lifecycle.drain import Phase
from shoal_proxy.metrics import Metrics
from shoal_proxy.protocol import InferProtocol
from shoal_proxy.settings import Address, Settings
from shoal_proxy.upstream import RuntimeLink

logger = logging.getLogger("shoal.proxy")

KEEP_ALIVE_S = 620
"""Longer than any load balancer's own: the side that reuses a connection must be the one that closes it."""

_TICK_S = 0.1  # uvicorn's: ten of them renew the Date header
_LEAVING_TICK_S = 0.005


class Listener(uvicorn.Server):
    """A uvicorn server without signal handlers, as two share the process; told to leave, it does so without delay.

    uvicorn's own looks every 0.1 s whether it should go, and again whether everybody has gone.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._leave = asyncio.Event()

    def leave(self) -> None:
        """Take no more connections, answer what has been asked, and end."""
        self.should_exit = True
        self._leave.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    async def main_loop(self) -> None:
        """Tick until told to leave."""
        tick = 0
        while not await self.on_tick(tick):
            tick += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._leave.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close what listens, and return when the last connection has been served."""
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        while (state.connections or state.tasks) and not self.force_exit:  # noqa: ASYNC110 (uvicorn's sets tell nobody)
            await asyncio.sleep(_LEAVING_TICK_S)
        for server in self.servers:
            await server.wait_closed()


def bind(address: Address) -> socket.socket:
    """Return a bound socket; raises ``OSError`` with the address in its text."""
    try:
        if address.path:
            sock = socket.socket(socket.AF_UNIX)
            _remove_stale(address.path)
            sock.bind(address.path)
        else:
            sock, host = _tcp_socket(address.host)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, address.port))
        sock.listen()  # so that the log tells the truth: whoever connects from now on is answered
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from None
    return sock


def _tcp_socket(host: str) -> tuple[socket.socket, str]:
    """Return a socket and the host to bind it to: ``::`` is every address, of both families where there are two."""
    if host != "::":
        return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET), host
    try:
        sock = socket.socket(socket.AF_INET6)
    except OSError:  # a kernel without IPv6
        return socket.socket(socket.AF_INET), "0.0.0.0"
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return sock, host


def _remove_stale(path: str) -> None:
    """Remove the socket that a stopped process has left: nobody would ever be able to listen there again."""
    if not Path(path).is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
        except OSError:
            return


def make_batcher(settings: Settings) -> Batcher:
    """Return the batching brain that ``settings`` ask for."""
    return Batcher(
        QueueLimits(settings.queue_max_rows, settings.queue_max_bytes),
        BatchLimits(settings.max_batch_size, settings.max_delay_ms / 1000, settings.in_flight, settings.policy),
        objective_s=settings.latency_objective_ms / 1000 or NEVER_S,
        shares=Shares(
            dict(settings.fair_share_weights),
            settings.priority_ageing_ms / 1000,
            classes=bool(settings.fair_share_header),
        ),
    )


class Proxy:
    """Everything one proxy process holds. Create and `run` it inside a running event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.link = RuntimeLink(settings.runtime, settings.model_name, settings.pad_buckets)
        self.dispatcher = Dispatcher(
            self.link,
            self.metrics,
            make_batcher(settings),
            idempotent=settings.idempotent,
            coalesce=settings.coalesce,
        )
        self.inference = Inference(settings, self.dispatcher, self.metrics)
        self.pages = Pages(settings, self.link, self.dispatcher, version("shoal"))
        self.socket = bind(settings.listen)
        self.admin_socket = bind(settings.admin_listen)
        self._leave = asyncio.Event()
        self._hurry = asyncio.Event()
        self._drained = asyncio.Event()
        self._settled = asyncio.Event()
        self.dispatcher.on_settled = self._settled.set
        self._watch_gauges()

    async def run(self) -> None:
        """Serve until told to stop, then drain."""
        protocol: Any = partial(InferProtocol, inference=self.inference, settings=self.settings)
        front = _listener(make_app(self.pages), http=protocol)
        named = self.settings.instance
        pages = Admin(self.metrics, self.dispatcher, reason=self.pages.reason, drain=self.drain, instance=named)
        admin = _listener(pages.app(), http="httptools")
        watch = asyncio.create_task(self.link.watch())
        front_task = asyncio.create_task(front.serve([self.socket]))
        admin_task = asyncio.create_task(admin.serve([self.admin_socket]))
        # What is alive now lives as long as the process: keep the collector from walking it during requests.
        gc.collect()
        gc.freeze()
        await self._leave.wait()
        await self._leave_service(front, front_task)
        watch.cancel()
        self.link.upstream.close()
        self.dispatcher.close()
        self._drained.set()
        admin.leave()
        await asyncio.gather(admin_task, watch, return_exceptions=True)

    def stop(self) -> None:
        """Start the drain; a second call ends the delay before it."""
        if self._leave.is_set():
            self._hurry.set()
        self._leave.set()

    async def drain(self) -> None:
        """Start the drain, unless it has started, and wait until it is done."""
        self._leave.set()
        await self._drained.wait()

    async def _leave_service(self, front: Listener, front_task: asyncio.Task[None]) -> None:
        self._enter(Phase.LEAVING)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_delay_s):
                await self._hurry.wait()
        self._enter(Phase.DRAINING)
        front.leave()
        try:
            async with asyncio.timeout(self.settings.drain_timeout_s):
                await asyncio.shield(front_task)
                while not self.dispatcher.settled:
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            logger.warning("event=drain_timed_out rows=%d", self.dispatcher.queue.rows)
            self.dispatcher.refuse_waiting(Draining("this replica had to stop before the answer came"))
            front.force_exit = True
        await asyncio.gather(front_task, return_exceptions=True)
        self._enter(Phase.STOPPED)

    def _enter(self, phase: Phase) -> None:
        self.dispatcher.phase = phase
        logger.info("event=%s waiting_rows=%d", phase, self.dispatcher.queue.rows)

    def _watch_gauges(self) -> None:
        dispatcher, queue = self.dispatcher, self.dispatcher.queue
        self.metrics.gauges = {
            "shoal_proxy_queue_rows": ("Rows waiting.", lambda: queue.rows),
            "shoal_proxy_queue_requests": ("Requests waiting.", lambda: queue.requests),
            "shoal_proxy_queue_bytes": ("Bytes of waiting inputs.", lambda: queue.size_bytes),
            "shoal_proxy_in_flight_rows": (
                "Rows at the runtime.",
                lambda: dispatcher.in_flight_rows,
            ),
            "shoal_proxy_in_flight_batches": (
                "Batches at the runtime.",
                lambda: dispatcher.in_flight,
            ),
            "shoal_proxy_runtime_ready": (
                "1 when the runtime is connected and warm.",
                lambda: self.link.ready,
            ),
            "shoal_proxy_batch_rows_limit": (
                "Rows that a batch may have, after what the model and its memory allow.",
                lambda: dispatcher.batcher.tables.least_max_rows,
            ),
            "shoal_proxy_objective_attainable": (
                "0 when even a request alone takes longer than the latency objective.",
                lambda: dispatcher.batcher.attainable(last_key(dispatcher.batcher)),
            ),
            "shoal_proxy_draining": (
                "1 from the start of the drain.",
                lambda: dispatcher.phase is not Phase.SERVING,
            ),
        }


def _listener(app: Any, *, http: Any) -> Listener:
    config = uvicorn.Config(
        app,
        http=http,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    return Listener(config)


async def serve(settings: Settings) -> None:
    """Run a proxy until SIGTERM or SIGINT, or ``POST /drain``."""
    proxy = Proxy(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, proxy.stop)
    logger.info(
        "event=listening address=%s admin=%s compiled=%s",
        _bound(proxy.socket),
        _bound(proxy.admin_socket),
        "no" if inspect.isfunction(InferProtocol.data_received) else "yes",
    )
    await proxy.run()


def _bound(sock: socket.socket) -> str:
    name = sock.getsockname()
    return f"unix:{name}" if isinstance(name, str) else str(Address(name[0], name[1]))
