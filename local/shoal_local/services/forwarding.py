"""TCP forwarding from the addresses of services to pods, round robin; the command of its process."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import click

from shoal_local.api_client import ApiClient, read_kubeconfig
from shoal_local.events import EventRecorder
from shoal_local.informer import Informer
from shoal_local.objects import SERVICE_NAME, Object
from shoal_local.processes import run_part
from shoal_schema.process.arguments import FILE

UNPRIVILEGED_STEP = 8000
"""Added to a port below 1024 that only root may listen on: 80 becomes 8080."""


def local_port(port: int) -> int:
    """Return the port, plus `UNPRIVILEGED_STEP` if only root may listen on it."""
    with socket.socket() as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except PermissionError:
            return port + UNPRIVILEGED_STEP
        except OSError:
            pass  # In use, so not forbidden.
    return port


LOOPBACK = IPv4Network("127.0.0.0/8")

logger = logging.getLogger(__name__)
CHUNK_BYTES = 2**16
CONNECT_S = 2.0
PAUSE_S = 0.05
"""Between two reconciliations, so that a burst of changes costs one."""
RETRY_S = 10.0
"""Until an address that could not be listened on is tried again."""
ListenAddress = tuple[str, int]
"""Address and port of a service."""


@dataclass(frozen=True, slots=True)
class Route:
    """The service of a listen address, and the addresses of its pods."""

    service: Object
    backends: tuple[tuple[str, int], ...]


def make_routes(
    services: Iterable[Object], slices: Iterable[Object], network: IPv4Network = LOOPBACK
) -> dict[ListenAddress, Route]:
    """Return the routes of services with an address in ``network``."""
    by_service: dict[tuple[str, str], list[Object]] = {}
    for one in slices:
        meta = one["metadata"]
        name = (meta.get("labels") or {}).get(SERVICE_NAME, "")
        # A service may have several slices.
        by_service.setdefault((meta["namespace"], name), []).append(one)
    routes = {}
    for service in services:
        meta, spec = service["metadata"], service["spec"]
        address = spec.get("clusterIP") or "None"
        if address == "None" or IPv4Address(address) not in network:
            continue
        own = by_service.get((meta["namespace"], meta["name"]), [])
        for port in spec.get("ports") or []:
            # UDP is not forwarded.
            if port.get("protocol", "TCP") == "TCP":
                # Without a ready endpoint, those that still serve while they terminate.
                ready, terminating = _backends(own, port.get("name") or "")
                routes[address, port["port"]] = Route(service, tuple(sorted(ready or terminating)))
    return routes


def _backends(slices: list[Object], port_name: str) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """Return the ready endpoints of a port, and the endpoints that serve while they terminate."""
    ready: set[tuple[str, int]] = set()
    terminating: set[tuple[str, int]] = set()
    for one in slices:
        numbers = [p["port"] for p in one.get("ports") or [] if (p.get("name") or "") == port_name]
        for endpoint in one.get("endpoints") or []:
            conditions = endpoint.get("conditions") or {}
            found = {(a, n) for a in endpoint["addresses"] for n in numbers}
            if conditions.get("ready"):
                ready |= found
            elif conditions.get("serving") and conditions.get("terminating"):
                terminating |= found
    return ready, terminating


class Forwarder:
    """A TCP listener on the address of every service in the network."""

    def __init__(self, client: ApiClient, recorder: EventRecorder, network: IPv4Network = LOOPBACK) -> None:
        self.informers = [Informer(client, "Service"), Informer(client, "EndpointSlice")]
        self._recorder = recorder
        self._network = network
        self._routes: dict[ListenAddress, Route] = {}
        self._servers: dict[ListenAddress, asyncio.Server] = {}
        self._turn: dict[ListenAddress, int] = {}
        self._changed = asyncio.Event()
        for informer in self.informers:
            informer.listen(lambda _: self._changed.set())

    async def run(self) -> None:
        """Open and close listeners as services change, until cancelled."""
        for informer in self.informers:
            await informer.synced.wait()
        while True:
            self._changed.clear()
            services, slices = (informer.objects.values() for informer in self.informers)
            self._routes = make_routes(services, slices, self._network)
            # Close the addresses of deleted services; open those of new ones.
            for listen_address in [f for f in self._servers if f not in self._routes]:
                self._servers.pop(listen_address).close()
            for listen_address in [f for f in self._routes if f not in self._servers]:
                await self._open(listen_address)
            missing = len(self._servers) < len(self._routes)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if missing else None):
                    await self._changed.wait()
            await asyncio.sleep(PAUSE_S)

    async def _open(self, listen_address: ListenAddress) -> None:
        async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._forward(listen_address, reader, writer)

        service, (address, port) = self._routes[listen_address].service, listen_address
        try:
            try:
                self._servers[listen_address] = await asyncio.start_server(on_connection, address, port)
            except PermissionError:
                # Only root may listen below 1024. A constant offset is easy to document and to remember.
                port += UNPRIVILEGED_STEP
                self._servers[listen_address] = await asyncio.start_server(on_connection, address, port)
                message = f"port {listen_address[1]} needs root here: listening on {address}:{port} instead"
                self._recorder.post(service, "Normal", "ListensElsewhere", message)
        except OSError as error:
            logger.warning("event=listen_failed address=%s:%d error=%s", address, port, error)
            message = f"cannot listen on {address}:{port}: {error.strerror}"
            self._recorder.post(service, "Warning", "FailedToListen", message)

    async def _forward(
        self, listen_address: ListenAddress, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            pod = None
            backends = self._routes[listen_address].backends if listen_address in self._routes else ()
            for _ in backends:
                turn = self._turn.get(listen_address, 0)
                self._turn[listen_address] = turn + 1
                # A pod that does not accept the connection is skipped.
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(CONNECT_S):
                        pod = await asyncio.open_connection(*backends[turn % len(backends)])
                    break
            if pod is not None:
                try:
                    async with asyncio.TaskGroup() as group:
                        group.create_task(_copy(reader, pod[1]))
                        group.create_task(_copy(pod[0], writer))
                finally:
                    pod[1].close()
        except* (OSError, asyncio.CancelledError):
            # The client or the pod closed its connection, or the forwarder stops: both connections close.
            pass
        finally:
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    # Half-close: the other direction may still transfer data.
    if writer.can_write_eof():
        writer.write_eof()


async def work(kubeconfig: Path, network: IPv4Network) -> None:
    """Forward connections until cancelled."""
    async with ApiClient(read_kubeconfig(kubeconfig), "shoal-services") as client, asyncio.TaskGroup() as group:
        recorder = EventRecorder(client, "shoal-services")
        forwarder = Forwarder(client, recorder, network)
        for informer in forwarder.informers:
            group.create_task(informer.run())
        group.create_task(recorder.run())
        group.create_task(forwarder.run())


@click.command()
@click.option("--kubeconfig", type=FILE, required=True, help="how to reach the API server")
@click.option("--service-cidr", type=IPv4Network, metavar="CIDR", default=LOOPBACK, help="addresses of services")
def command(kubeconfig: Path, service_cidr: IPv4Network) -> int:
    """Forward connections from services to pods."""
    return run_part(work(kubeconfig, service_cidr))
