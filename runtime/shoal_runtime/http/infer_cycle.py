"""Handling of one infer request on a connection, without ASGI.

ASGI takes a scope, an event and four awaits per request, which a batch does not need: the connection reads the body,
and the response is one write. Other requests (pipelined, chunked, with Expect: 100-continue, for another path) use
uvicorn's own cycle.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from shoal_runtime.http.server import HttpResponse, head_of


class Application(Protocol):
    """ASGI application that also serves infer requests without ASGI."""

    max_body_bytes: int
    infer_targets: frozenset[bytes]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request through ASGI."""

    async def infer(
        self, headers: Mapping[bytes, bytes], body: bytes | memoryview, arrived_s: float, target: str
    ) -> HttpResponse:
        """Serve an infer request whose body is complete."""


class NoWaiter:
    """Replacement for the event that uvicorn sets on more body or a lost connection; it has no waiters."""

    def set(self) -> None:
        """Do nothing."""


NO_WAITER: Final = NoWaiter()


class InferCycle:
    """Replacement for uvicorn's request cycle, from the head of a request until its response is written.

    Args:
        app: application that runs the batch.
        protocol: protocol of the connection.
        headers: request headers, names in lower case.
        arrived_s: start of the request, in monotonic seconds.
        keep_alive: whether the connection stays open after the response.
    """

    __slots__ = (
        "_app", "_arrived_s", "_headers", "_protocol", "_target", "chunks", "disconnected", "keep_alive",
        "message_event", "response_complete",
    )  # fmt: skip

    def __init__(
        self, app: Application, protocol: Any, headers: Mapping[bytes, bytes], *, arrived_s: float, keep_alive: bool
    ) -> None:
        self._app = app
        self._protocol = protocol
        self._headers = headers
        self._target: bytes = protocol.url
        self._arrived_s = arrived_s
        self.keep_alive = keep_alive
        self.chunks: list[bytes] = []
        """Pieces of a small body."""
        self.message_event = NO_WAITER
        self.disconnected = False
        self.response_complete = False

    def begin(self, large: memoryview | None) -> None:
        """Start a task that runs the batch and writes the response.

        Args:
            large: body that was read into one buffer; None if the body is in ``chunks``.
        """
        body: bytes | memoryview = large if large is not None else b"".join(self.chunks)
        self.chunks = []
        tasks: set[asyncio.Task[None]] = self._protocol.tasks
        task = self._protocol.loop.create_task(self._run(body))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _run(self, body: bytes | memoryview) -> None:
        response = await self._app.infer(self._headers, body, self._arrived_s, self._target.decode("latin-1"))
        protocol = self._protocol
        if protocol.flow.write_paused and not self.disconnected:
            await protocol.flow.drain()
        if self.disconnected:
            return
        lines: list[bytes] = [STATUS_LINE[response.status]]
        for name, value in head_of(response):
            lines.append(b"%b: %b\r\n" % (name, value))
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        # Head and body leave in one system call.
        protocol.transport.writelines([b"".join(lines), response.body])
        self.response_complete = True
        if not self.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()
