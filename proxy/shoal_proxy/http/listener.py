"""uvicorn server without signal handlers, which shuts down without delay."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

_TICK_S = 0.1  # uvicorn's; it renews the Date header every ten ticks
_LEAVING_TICK_S = 0.005
LAST_REQUESTS_S = 0.1
"""Time that idle connections stay open at shutdown; a request may be in transit."""


class Listener(uvicorn.Server):
    """uvicorn server for a process with several servers.

    It has no signal handlers, and does not wait for uvicorn's poll (every 0.1 s) to shut down.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._leave = asyncio.Event()

    def leave(self) -> None:
        """Stop accepting connections, finish all requests, and shut down."""
        self.should_exit = True
        self._leave.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers (uvicorn)."""
        yield

    async def main_loop(self) -> None:
        """Tick until the server must exit (uvicorn)."""
        tick = 0
        while not await self.on_tick(tick):
            tick += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._leave.wait()

    def make_protocol(self) -> asyncio.Protocol:
        """Return the protocol object of a new connection."""
        made: asyncio.Protocol = self.config.http_protocol_class(
            config=self.config, server_state=self.server_state, app_state={}
        )  # type: ignore[call-arg]
        return made

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listening sockets, and wait for all connections (uvicorn).

        Connections in the kernel's backlog are served too: closing the socket would reset them, and a gateway retries
        a request only where it could not connect.
        """
        connected: list[socket.socket] = []
        for server in self.servers:
            for listening in server.sockets:
                with socket.fromfd(listening.fileno(), listening.family, listening.type) as accepting:
                    accepting.settimeout(0)
                    with contextlib.suppress(OSError):
                        while True:
                            connected.append(accepting.accept()[0])
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        loop, state = asyncio.get_running_loop(), self.server_state
        for client in connected:
            await loop.connect_accepted_socket(self.make_protocol, client)
        if state.connections:
            await asyncio.sleep(LAST_REQUESTS_S)
        for connection in list(state.connections):
            connection.shutdown()
        while (state.connections or state.tasks) and not self.force_exit:  # noqa: ASYNC110 (uvicorn's sets have no event)
            await asyncio.sleep(_LEAVING_TICK_S)
        for server in self.servers:
            await server.wait_closed()
