"""A receiver of webhooks on loopback, whose behavior each test writes."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Self


class ReceivedWebhook(NamedTuple):
    """A request that the receiver has read."""

    line: str
    headers: dict[str, str]
    body: bytes


Respond = Callable[[asyncio.StreamWriter, int], Awaitable[None]]
"""Writes the response to the request of this number, from 0."""


def responds(*statuses: int, lines: str = "") -> Respond:
    """Respond with these statuses in order; the last one repeats."""

    async def respond(writer: asyncio.StreamWriter, number: int) -> None:
        status = statuses[min(number, len(statuses) - 1)]
        writer.write(f"HTTP/1.1 {status} X\r\n{lines}content-length: 2\r\n\r\nok".encode())

    return respond


class Receiver:
    """An HTTP server on loopback; ``async with`` starts and stops it."""

    def __init__(self, respond: Respond, context: ssl.SSLContext | None = None) -> None:
        self._respond = respond
        self._context = context
        self.connections = 0
        self.received: list[ReceivedWebhook] = []
        self._arrived = asyncio.Condition()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def arrived(self, count: int) -> list[ReceivedWebhook]:
        """Return the received webhooks once there are ``count``."""
        async with self._arrived, asyncio.timeout(20):
            await self._arrived.wait_for(lambda: len(self.received) >= count)
        return self.received

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:-2])}
            body = await reader.readexactly(int(headers["content-length"]))
            number = len(self.received)
            async with self._arrived:
                self.received.append(ReceivedWebhook(head[0], headers, body))
                self._arrived.notify_all()
            await self._respond(writer, number)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
