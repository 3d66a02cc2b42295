"""Passes TCP connections on from services to pods, in turn."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from shoal_local.api_client import ENDPOINT_SLICES, SERVICES, ApiClient
from shoal_local.events import EventRecorder
from shoal_local.informer import Informer
from shoal_local.local_network import UNPRIVILEGED_STEP
from shoal_local.objects import Object

SERVICE_NAME = "kubernetes.io/service-name"
LOOPBACK = IPv4Network("127.0.0.0/8")

LOG = logging.getLogger(__name__)
CHUNK_BYTES = 2**16
CONNECT_S = 2.0
PAUSE_S = 0.05
RETRY_S = 10.0
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True, order=True)
class Front:
    """Where a service is called."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Route:
    """Who answers for a front, and whose it is."""

    service: Object
    backends: tuple[tuple[str, int], ...]


def make_routes(
    services: Iterable[Object], slices: Iterable[Object], network: IPv4Network = LOOPBACK
) -> dict[Front, Route]:
    """Return the routes of all services whose address is in the network: others cannot be listened on."""
    by_service: dict[tuple[str, str], list[Object]] = {}
    for one in slices:
        meta = one["metadata"]
        name = (meta.get("labels") or {}).get(SERVICE_NAME, "")
        by_service.setdefault((meta["namespace"], name), []).append(one)
    routes = {}
    for service in services:
        meta, spec = service["metadata"], service["spec"]
        address = spec.get("clusterIP") or "None"
        if address == "None" or IPv4Address(address) not in network:
            continue
        own = by_service.get((meta["namespace"], meta["name"]), [])
        for port in spec.get("ports") or []:
            if port.get("protocol", "TCP") == "TCP":
                found = tuple(sorted(_backends(own, port.get("name") or "")))
                routes[Front(address, port["port"])] = Route(service, found)
    return routes


def _backends(slices: list[Object], port_name: str) -> set[tuple[str, int]]:
    """Return the ready endpoints; when there are none, those that still serve while they end."""
    ready: set[tuple[str, int]] = set()
    ending: set[tuple[str, int]] = set()
    for one in slices:
        numbers = [p["port"] for p in one.get("ports") or [] if (p.get("name") or "") == port_name]
        for endpoint in one.get("endpoints") or []:
            conditions = endpoint.get("conditions") or {}
            found = {(a, n) for a in endpoint["addresses"] for n in numbers}
            if conditions.get("ready"):
                ready |= found
            elif conditions.get("serving") and conditions.get("terminating"):
                ending |= found
    return ready or ending


class Forwarder:
    """Listens for every service that has an address in the network."""

    def __init__(self, client: ApiClient, recorder: EventRecorder, network: IPv4Network = LOOPBACK) -> None:
        self.informers = [Informer(client, SERVICES), Informer(client, ENDPOINT_SLICES)]
        self._recorder = recorder
        self._network = network
        self._routes: dict[Front, Route] = {}
        self._servers: dict[Front, asyncio.Server] = {}
        self._turn: dict[Front, int] = {}
        self._changed = asyncio.Event()
        for informer in self.informers:
            informer.listen(lambda _: self._changed.set())

    async def run(self) -> None:
        """Follow services and their endpoints until cancelled."""
        for informer in self.informers:
            await informer.synced.wait()
        while True:
            self._changed.clear()
            services, slices = (informer.objects.values() for informer in self.informers)
            self._routes = make_routes(services, slices, self._network)
            missing = await self._listen()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if missing else None):
                    await self._changed.wait()
            # A burst of changes costs one pass.
            await asyncio.sleep(PAUSE_S)

    async def _listen(self) -> bool:
        """Open what is missing and close what is not wanted. Return whether something could not be opened."""
        for front in [f for f in self._servers if f not in self._routes]:
            self._servers.pop(front).close()
        for front in [f for f in self._routes if f not in self._servers]:
            await self._open(front)
        return len(self._servers) < len(self._routes)

    async def _open(self, front: Front) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._answer(front, reader, writer)

        service, port = self._routes[front].service, front.port
        try:
            try:
                self._servers[front] = await asyncio.start_server(answer, front.address, port)
            except PermissionError:
                # A plain user may not listen below 1024; a fixed step above is easy to say and to find.
                port += UNPRIVILEGED_STEP
                self._servers[front] = await asyncio.start_server(answer, front.address, port)
                message = f"port {front.port} needs root here: listening on {front.address}:{port} instead"
                self._recorder.post(service, "Normal", "ListensElsewhere", message)
        except OSError as error:
            message = f"cannot listen on {front.address}:{port}: {error.strerror}"
            LOG.warning("%s", message)
            self._recorder.post(service, "Warning", "FailedToListen", message)

    async def _answer(self, front: Front, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            pod = await self._connect(front)
            if pod is not None:
                await _join((reader, writer), pod)
        except (OSError, asyncio.CancelledError):
            # Either side went away, or we are ending: both connections close below.
            pass
        finally:
            writer.close()

    async def _connect(self, front: Front) -> Pair | None:
        """Return a connection to the next pod that takes one; None when no pod does."""
        backends = self._routes[front].backends if front in self._routes else ()
        for _ in backends:
            turn = self._turn.get(front, 0)
            self._turn[front] = turn + 1
            try:
                async with asyncio.timeout(CONNECT_S):
                    return await asyncio.open_connection(*backends[turn % len(backends)])
            except (OSError, TimeoutError):
                continue
        return None


async def _join(caller: Pair, pod: Pair) -> None:
    """Copy both ways until both ends have said all."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(caller[0], pod[1]))
            group.create_task(_copy(pod[0], caller[1]))
    except* OSError:
        # A connection that breaks ends both.
        pass
    finally:
        pod[1].close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
