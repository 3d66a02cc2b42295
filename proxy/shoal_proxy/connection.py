"""One kept HTTP/1.1 connection to the runtime, one exchange at a time.

A small client on httptools rather than httpx, because each batch passes here: httpx costs about 0.7 ms a call, this
about 0.01.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import httptools

from shoal_proxy.errors import NotExecuted, RuntimeLost

LOST = "the connection to the runtime was lost"


@dataclass(frozen=True, slots=True)
class Response:
    """The runtime's answer; header names in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes | bytearray


class Connection(asyncio.Protocol):
    """The protocol of one connection. ``on_lost`` is called once, whoever closed it."""

    def __init__(self, on_lost: Callable[[Connection], None]) -> None:
        self._on_lost = on_lost
        self._answer: asyncio.Future[Response] | None = None
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self.idle_since_s = 0.0
        self.announced = False
        """The runtime said with its last answer that it closes the connection: no sign of trouble."""

    @property
    def usable(self) -> bool:
        """Tell whether the next exchange may use this connection."""
        return self._transport is not None and not self._transport.is_closing() and self._answer is None

    async def exchange(self, head: bytes, parts: Sequence[bytes | memoryview] = ()) -> Response:
        """Send a request and return its response.

        Cancelling closes the connection, since the answer could not be told from the next one's.

        Raises:
            NotExecuted: nothing was sent.
            RuntimeLost: the connection was lost before the whole answer came.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise NotExecuted(LOST)
        self._answer = asyncio.get_running_loop().create_future()
        transport.writelines([head, *parts])
        try:
            return await self._answer
        except BaseException:
            self.close()
            raise
        finally:
            self._answer = None

    def close(self) -> None:
        """Close without waiting; an exchange under way fails."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (asyncio)."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the exchange under way and report (asyncio)."""
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(RuntimeLost(LOST if exc is None else f"{LOST}: {exc}"))
        self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        """Feed the parser (asyncio)."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(RuntimeLost(f"the runtime does not speak HTTP/1.1: {error}"))
            self.close()

    def on_message_begin(self) -> None:
        """Start a new answer (httptools)."""
        self._headers, self._chunks = {}, []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header (httptools)."""
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body (httptools)."""
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        """Hand the answer over (httptools)."""
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks = []
        status = self._parser.get_status_code()
        keep = self._parser.should_keep_alive()
        if status >= 200 and self._answer is not None and not self._answer.done():
            self._answer.set_result(Response(status, self._headers, body))
        self.announced = not keep
        if not keep and self._transport is not None:
            self._transport.close()
