"""A server of uvicorn's that shares its process with others, and ends without delay."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

_TICK_S = 0.1  # uvicorn's: ten of them renew the Date header
_LEAVING_TICK_S = 0.005
LAST_REQUESTS_S = 0.1
"""How long connections without a request stay when the server ends: one may be on its way."""


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

    def make_protocol(self) -> asyncio.Protocol:
        """Return what reads a new connection."""
        made: asyncio.Protocol = self.config.http_protocol_class(
            config=self.config, server_state=self.server_state, app_state={}
        )  # type: ignore[call-arg]
        return made

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close what listens, and return when the last connection has been served.

        Whoever could connect is answered: a gateway sends a request again only where it could not.
        """
        connected = [caller for server in self.servers for sock in server.sockets for caller in _accepted(sock)]
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        loop, state = asyncio.get_running_loop(), self.server_state
        for caller in connected:
            await loop.connect_accepted_socket(self.make_protocol, caller)
        if state.connections:
            await asyncio.sleep(LAST_REQUESTS_S)
        for connection in list(state.connections):
            connection.shutdown()
        while (state.connections or state.tasks) and not self.force_exit:  # noqa: ASYNC110 (uvicorn's sets tell nobody)
            await asyncio.sleep(_LEAVING_TICK_S)
        for server in self.servers:
            await server.wait_closed()


def _accepted(listening: socket.socket) -> list[socket.socket]:
    """Return the connections that the kernel has made and nobody has taken; it resets them with the socket's end."""
    callers = []
    with socket.fromfd(listening.fileno(), listening.family, listening.type) as sock, contextlib.suppress(OSError):
        sock.settimeout(0)
        while True:
            callers.append(sock.accept()[0])
    return callers
