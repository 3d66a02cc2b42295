"""One infer request on one connection, without ASGI.

uvicorn makes a scope, an event and four awaits of each request. A batch needs none of that: the connection reads its
body, and its answer is one write. What else a request may be (in a pipeline, chunked, waiting for 100 Continue, for
another path) goes the usual way.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from shoal_runtime.server import Answer, head_of


class Application(Protocol):
    """What a connection asks: an ASGI application, which answers some targets without ASGI too."""

    max_body_bytes: int
    infer_targets: frozenset[bytes]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request (ASGI)."""

    async def answer_batch(
        self, headers: Mapping[bytes, bytes], body: bytes | memoryview, arrived_s: float, target: str
    ) -> Answer:
        """Answer one infer request, whose body is here."""


class NobodyWaits:
    """What uvicorn's protocol sets when a body goes on or a connection closes, where nothing awaits it."""

    def set(self) -> None:
        """Do nothing."""


NOBODY_WAITS: Final = NobodyWaits()


class InferCycle:
    """Stands where uvicorn has its cycle, from the request's head until the answer is written.

    Args:
        protocol: the connection.
        headers: names in lower case.
        arrived_s: when the request began, in monotonic seconds.
        keep_alive: whether the connection stays open after it.
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
        """What has come of a small body."""
        self.message_event = NOBODY_WAITS
        self.disconnected = False
        self.response_complete = False

    def begin(self, large: memoryview | None) -> None:
        """Run the batch, whose body is here: ``large``, or in ``chunks``."""
        body: bytes | memoryview = large if large is not None else b"".join(self.chunks)
        self.chunks = []
        tasks: set[asyncio.Task[None]] = self._protocol.tasks
        task = self._protocol.loop.create_task(self._run(body))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _run(self, body: bytes | memoryview) -> None:
        answer = await self._app.answer_batch(self._headers, body, self._arrived_s, self._target.decode("latin-1"))
        flow = self._protocol.flow
        if flow.write_paused and not self.disconnected:
            await flow.drain()
        if not self.disconnected:
            self._write(answer)

    def _write(self, answer: Answer) -> None:
        lines: list[bytes] = [STATUS_LINE[answer.status]]
        for name, value in head_of(answer):
            lines.append(b"%b: %b\r\n" % (name, value))
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        protocol = self._protocol
        protocol.transport.writelines([b"".join(lines), answer.body])
        self.response_complete = True
        if not self.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()
