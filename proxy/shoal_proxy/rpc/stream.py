"""ModelStreamInfer: many requests on one call, executed together and answered in their order."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc

from shoal_proxy.codecs.base import Reply
from shoal_proxy.rpc.messages import stream_message

logger = logging.getLogger(__name__)

MAX_STREAMS: Final = 256
"""Each holds a call for as long as its client likes."""
MAX_IN_FLIGHT: Final = 32
"""Requests of one stream that were read and whose responses the client has not taken."""

Answerer = Callable[[bytes, Any], Awaitable[Reply]]
Release = Callable[[], None]
Counter = Callable[[Any, int], Release]
"""Counts a response of a call until it is released."""


class Streams:
    """All streams of one port.

    Args:
        answer: executes one request of a call: its message, and the call's context.
        count: counts a response that the client has not read: the call's context, and bytes.
    """

    def __init__(self, answer: Answerer, count: Counter) -> None:
        self._answer = answer
        self._count = count
        self._streams: set[_Stream] = set()
        self._ended = False

    def end(self) -> None:
        """Read no more requests; streams end once those that were read are answered."""
        self._ended = True
        for stream in self._streams:
            stream.close()

    async def serve(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Answer one stream until its client ends it, or the port does."""
        if len(self._streams) >= MAX_STREAMS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} streams are open already")
        if not self._ended:
            stream = _Stream(self._answer, self._count, requests, context)
            self._streams.add(stream)
            try:
                await stream.write()
            finally:
                self._streams.discard(stream)
        if self._ended:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this replica is draining; open another stream")


class _Stream:
    """One stream: a task reads and starts its requests, `write` writes their responses."""

    def __init__(self, answer: Answerer, count: Counter, requests: AsyncIterator[bytes], context: Any) -> None:
        self._answer = answer
        self._count = count
        self._context = context
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._responses: asyncio.Queue[asyncio.Task[tuple[bytes, Release]] | None] = asyncio.Queue()
        self._closed = False
        self._reader = asyncio.create_task(self._read(requests))

    def close(self) -> None:
        """Start no more requests.

        The reader is not cancelled: gRPC's core may be about to fill the message that it waits for. It ends with the
        call.
        """
        if not self._closed:
            self._closed = True
            self._responses.put_nowait(None)
            self._slots.release()

    async def write(self) -> None:
        """Write responses until the last one before `close`."""
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

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        """Start each request as it comes, while the client takes responses."""
        try:
            while True:
                await self._slots.acquire()
                if self._closed:
                    return
                body = await anext(requests, None)
                if body is None or self._closed:
                    return
                self._responses.put_nowait(asyncio.create_task(self._respond(body)))
        except Exception:
            logger.exception("event=stream_failed")
        finally:
            self.close()

    async def _respond(self, body: bytes) -> tuple[bytes, Release]:
        message = stream_message(await self._answer(body, self._context), body)
        return message, self._count(self._context, len(message))


def _forget(response: asyncio.Task[tuple[bytes, Release]] | None) -> None:
    """Cancel a response that is not made, and release one that is not written."""
    if response is not None and not response.cancel() and not response.cancelled() and response.exception() is None:
        response.result()[1]()
