"""The ports of all services, in one server; the port of a request determines its service."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import uvicorn

from shoal_proxy.activator.accepting import HandOvers, JobHandler
from shoal_proxy.activator.handler import RequestReleaser
from shoal_proxy.http.listener import Listener
from shoal_proxy.listening import bind
from shoal_schema.fields.addresses import Address
from shoal_schema.interfaces.activator import MAX_REASON_LENGTH

logger = logging.getLogger(__name__)


def make_listener(app: Any, protocol: Any) -> Listener:
    """Create a server for an ASGI application and a connection protocol."""
    config = uvicorn.Config(
        app,
        interface="asgi3",
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )
    config.load()
    return Listener(config)


class ServiceListeners:
    """The listening sockets of all services.

    Args:
        host: the address to listen on.
        releaser: shared by the handlers of all requests.
        hand_overs: the asynchronous requests of all services.
        protocol: returns the asyncio protocol of a new connection.
    """

    def __init__(self, host: str, releaser: RequestReleaser, hand_overs: HandOvers, protocol: Any) -> None:
        self._host = host
        self.names: Mapping[int, str] = {}
        """The service of each port."""
        self._servers: dict[int, asyncio.Server] = {}
        self._refused: dict[str, str] = {}
        # One listener for all ports: each would run a timer of its own.
        self.listener = make_listener(
            lambda scope, *channel: JobHandler(self.names.get(scope["server"][1], ""), releaser, hand_overs)(
                scope, *channel
            ),
            protocol,
        )

    async def serve(self) -> None:
        """Serve until shutdown; return once all accepted requests have a response."""
        await self.listener.serve([])

    async def open(self, names: Mapping[int, str]) -> dict[str, str]:
        """Listen on exactly the ports in ``names``; return failures by service."""
        self.names = names
        for port in self._servers.keys() - names.keys():
            # Established connections stay; their requests are rejected by `RequestHolder`.
            server = self._servers.pop(port)
            self.listener.servers.remove(server)
            server.close()
        missing = [port for port in names if port not in self._servers]
        found = {names[port]: await self._open(port) for port in missing}
        self._refused = {name: why for name, why in found.items() if why}
        return self._refused

    async def _open(self, port: int) -> str:
        """Listen on a port; return the reason of a failure, else an empty text."""
        await asyncio.sleep(0)  # a long table must not block the requests that are already here
        listener = self.listener
        if listener.should_exit:
            return "this activator is stopping"

        try:
            sock = bind(Address(self._host, port))
        except OSError as error:
            why = str(error.strerror or error)[:MAX_REASON_LENGTH]
            # Retries of the same port fail alike: the reason is logged once.
            if self._refused.get(self.names[port]) != why:
                logger.warning("event=port_refused service=%s error=%s", self.names[port], error)
            return why
        server = await asyncio.get_running_loop().create_server(listener.make_protocol, sock=sock)
        self._servers[port] = server
        listener.servers.append(server)
        logger.info("event=opened service=%s port=%d", self.names[port], port)
        return ""
