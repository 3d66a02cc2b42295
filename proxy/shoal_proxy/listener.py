"""A server of uvicorn's that shares its process with others, and ends without delay."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

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
