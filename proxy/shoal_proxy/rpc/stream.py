"""ModelStreamInfer: concurrent requests on one call, ordered responses."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final

import grpc

from shoal_proxy.codecs.base import HttpResponse
from shoal_proxy.rpc.messages import stream_message

logger = logging.getLogger(__name__)

MAX_STREAMS: Final = 256
"""Most streams: each is a call that the client keeps open."""
MAX_IN_FLIGHT: Final = 32
"""Maximum requests of a stream whose responses the client has not read."""

Answerer = Callable[[bytes, Any], Awaitable[HttpResponse]]
Release = Callable[[], None]
Counter = Callable[[Any, int], Release]
"""Counts an unread response of a call, until the returned function is called."""
Reader = Callable[[AsyncIterator[bytes], Any], Awaitable[bytes | None]]
"""Reads the next message of a call; None at its end."""


class Streams:
    """All streams of the gRPC port.

    Args:
        answer: executes one request; called with the request's message and the call's context.
        count: counts a response as unread by the client; called with the call's context and the size in bytes.
        read: reads a request; called with the call's messages and its context.
    """

    def __init__(self, answer: Answerer, count: Counter, read: Reader) -> None:
        self._answer = answer
        self._count = count
        self._read = read
        self._streams: set[_Stream] = set()
        self._ended = False

    def end(self) -> None:
        """Stop reading requests; each stream ends after its last response."""
        self._ended = True
        for stream in self._streams:
            stream.close()

    async def serve(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Serve one stream until the client or the port ends it."""
        if len(self._streams) >= MAX_STREAMS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the limit of {MAX_STREAMS} streams is reached")
        if not self._ended:
            stream = _Stream(self._answer, self._count, partial(self._read, requests, context), context)
            self._streams.add(stream)
            try:
                await stream.write()
            finally:
                self._streams.discard(stream)
        if self._ended:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this replica is draining. Open another stream")


class _Stream:
    """One ModelStreamInfer call; a task reads requests, `write` responds."""

    def __init__(
        self, answer: Answerer, count: Counter, read: Callable[[], Awaitable[bytes | None]], context: Any
    ) -> None:
        self._answer = answer
        self._count = count
        self._context = context
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._responses: asyncio.Queue[asyncio.Task[tuple[bytes, Release]] | None] = asyncio.Queue()
        self._closed = False
        self._reader = asyncio.create_task(self._read(read))

    def close(self) -> None:
        """Stop starting requests.

        The reader task is not cancelled, because gRPC's core may be writing into its message. The task ends with the
        call.
        """
        if not self._closed:
            self._closed = True
            self._responses.put_nowait(None)
            self._slots.release()

    async def write(self) -> None:
        """Write responses in order, up to the last one before `close`."""
        # The response in progress must be released, too, if the call ends.
        response: asyncio.Task[tuple[bytes, Release]] | None = None
        try:
            while (response := await self._responses.get()) is not None:
                message, release = await response
                await self._context.write(message)
                release()
                self._slots.release()
        finally:
            self.close()
            _forget(response)
            while not self._responses.empty():
                _forget(self._responses.get_nowait())

    async def _read(self, read: Callable[[], Awaitable[bytes | None]]) -> None:
        """Start each request as it arrives, as long as the client reads responses."""
        try:
            while True:
                await self._slots.acquire()
                if self._closed:
                    return
                body = await read()
                if body is None or self._closed:
                    return
                self._responses.put_nowait(asyncio.create_task(self._response(body)))
        except Exception:
            logger.exception("event=stream_failed")
        finally:
            self.close()

    async def _response(self, body: bytes) -> tuple[bytes, Release]:
        message = stream_message(await self._answer(body, self._context), body)
        return message, self._count(self._context, len(message))


def _forget(response: asyncio.Task[tuple[bytes, Release]] | None) -> None:
    """Cancel an unfinished response, or release an unwritten one's memory."""
    if response is not None and not response.cancel() and not response.cancelled() and response.exception() is None:
        response.result()[1]()
