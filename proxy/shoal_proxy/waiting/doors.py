"""The ports of all services, in one server: by the port that a request came to, it is known whose it is."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import uvicorn

from shoal_proxy.listener import Listener
from shoal_proxy.server import bind
from shoal_proxy.waiting.door import Desk, Door, Receive, Send
from shoal_schema.addresses import Address
from shoal_schema.waiting import MAX_REASON_LENGTH

logger = logging.getLogger(__name__)


def make_listener(app: Any, protocol: Any) -> Listener:
    """Return a server of an ASGI application."""
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


class Doors:
    """What listens for all services.

    Args:
        host: where.
        protocol: makes what reads a connection.
    """

    def __init__(self, host: str, desk: Desk, protocol: Any) -> None:
        self._host = host
        self._desk = desk
        self.names: Mapping[int, str] = {}
        """Whose each port is."""
        self._servers: dict[int, asyncio.Server] = {}
        self._refused: dict[str, str] = {}
        # One for all: each has a clock of its own, which ticks.
        self.listener = make_listener(self._answer, protocol)

    async def serve(self) -> None:
        """Answer until the listener is told to leave, and what came before is answered."""
        await self.listener.serve([])

    async def open(self, names: Mapping[int, str]) -> dict[str, str]:
        """Listen at these ports, each a service's, and no longer at others; return by service why one is not open."""
        self.names = names
        for port in self._servers.keys() - names.keys():
            server = self._servers.pop(port)
            self.listener.servers.remove(server)
            server.close()
        missing = [port for port in names if port not in self._servers]
        found = {names[port]: await self._open(port) for port in missing}
        self._refused = {name: why for name, why in found.items() if why}
        return self._refused

    async def _open(self, port: int) -> str:
        """Listen at a port; return why that is not possible, or nothing where it is."""
        await asyncio.sleep(0)  # a long table must not keep those waiting who are here
        listener = self.listener
        if listener.should_exit:
            return "this room is about to stop"

        try:
            sock = bind(Address(self._host, port))
        except OSError as error:
            why = str(error.strerror or error)[:MAX_REASON_LENGTH]
            if self._refused.get(self.names[port]) != why:
                logger.warning("event=port_refused service=%s error=%s", self.names[port], error)
            return why
        server = await asyncio.get_running_loop().create_server(listener.make_protocol, sock=sock)
        self._servers[port] = server
        listener.servers.append(server)
        logger.info("event=opened service=%s port=%d", self.names[port], port)
        return ""

    async def _answer(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await Door(self.names.get(scope["server"][1], ""), self._desk)(scope, receive, send)
