"""HTTP/1.1 client connection to the runtime, for one exchange at a time.

It is a small client on httptools, because every batch uses it: a call by httpx takes about 0.7 ms, a call here 0.01 ms.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, cast

import httptools

from shoal_proxy.bodies.body import LARGE_BYTES
from shoal_proxy.errors import ModelFailed, NotExecuted, Overloaded, ProxyError, RuntimeLost
from shoal_schema.interfaces.metrics import RejectionReason
from shoal_schema.wire.body import Body
from shoal_schema.wire.timeouts import DeadlineTimer

_NEVER_S: Final = float("inf")
MAX_HEAD_BYTES: Final = 1 << 16
"""Limit on a response without its body, for an untrusted server: head, interim responses (1xx), trailers."""
ANY_BYTES: Final = 1 << 62
_A_BYTES_FRAME: Final = 8
"""Framing bytes per byte of a body, in the smallest chunks possible."""
LOST: Final = "the connection to the runtime was lost"


class RuntimeResponse:
    """A response of the runtime. Header names are in lower case."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: dict[bytes, bytes], body: bytes | memoryview) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class ResponseMemory:
    """Memory limit shared by all responses from untrusted servers."""

    __slots__ = ("most_bytes", "used_bytes")

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.used_bytes = 0

    def rejection(self, size_bytes: int) -> ProxyError:
        """Return the error for rejecting a response of ``size_bytes``.

        It is `ModelFailed` if this response exceeds the limit, else `Overloaded`.
        """
        if size_bytes > self.most_bytes:
            return ModelFailed(f"the response is over the limit of {self.most_bytes} bytes")
        what = f"the responses of all models are over the limit of {self.most_bytes} bytes"
        return Overloaded(what, reason=RejectionReason.QUEUE_BYTES, retry_after_s=1)


class RuntimeConnection(asyncio.BufferedProtocol):
    """Protocol of one connection, which calls ``on_lost`` when it is closed.

    The body of a large response bypasses the parser and is read into its final memory. A response over the limit of
    ``memory`` is rejected (None: the server is trusted).
    """

    def __init__(self, on_lost: "Callable[[RuntimeConnection], None]", memory: ResponseMemory | None = None) -> None:
        self._on_lost = on_lost
        self._memory = memory
        self._received_bytes = 0
        self._parsed_bytes = 0
        self._most_bytes = ANY_BYTES
        """Limit of the present response's body, for an untrusted server."""
        self._response: asyncio.Future[RuntimeResponse] | None = None
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._body: Body | None = None
        self._reads_body = False
        """Whether the next bytes are the rest of the body, and bypass the parser."""
        # Reused for all reads but those of large bodies.
        self._scratch = memoryview(bytearray(LARGE_BYTES))
        self._status = 0
        self._keep = False
        self._deadline_s = _NEVER_S
        # One timer for all exchanges checks whether the present one is late, instead of one timer each.
        self._timer = DeadlineTimer(asyncio.get_running_loop().call_later, time.monotonic, self._check_deadline)
        self.idle_since_s = 0.0
        self.announced = False
        """Whether the close was expected: announced by the last response, or made by the proxy."""
        self.aborted = False
        """Whether the proxy closed it, such as at a deadline."""

    @property
    def usable(self) -> bool:
        """Whether the next exchange may use this connection."""
        return self._transport is not None and not self._transport.is_closing() and self._response is None

    async def exchange(
        self,
        head: bytes,
        parts: Sequence[bytes | memoryview] = (),
        deadline_s: float = _NEVER_S,
        most_bytes: int = ANY_BYTES,
    ) -> RuntimeResponse:
        """Send a request and return the response, from an untrusted server with a body of at most ``most_bytes``.

        Cancellation closes the connection, as a late response could be mistaken for the next one.

        Raises:
            NotExecuted: nothing was sent.
            RuntimeLost: the connection was lost before the response was complete.
            ModelFailed, Overloaded: the response is over a limit.
            TimeoutError: there was no response by ``deadline_s`` (monotonic seconds); the connection is closed.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise NotExecuted(LOST)
        self._response = asyncio.get_running_loop().create_future()
        self._deadline_s, self._parsed_bytes, self._most_bytes = deadline_s, 0, most_bytes
        if deadline_s < _NEVER_S:
            self._timer.check_by(deadline_s, time.monotonic())
        # One call, so that small parts are sent together.
        transport.writelines([head, *parts])
        try:
            return await self._response
        except BaseException:
            self.close()
            raise
        finally:
            self._response = None
            self._deadline_s = _NEVER_S

    def _check_deadline(self, now_s: float) -> None:
        if self._response is None or self._deadline_s == _NEVER_S:
            return
        if now_s < self._deadline_s:
            self._timer.check_by(self._deadline_s, now_s)
        elif not self._response.done():
            self._response.set_exception(TimeoutError())

    def close(self) -> None:
        """Close the connection at once; an exchange in progress fails."""
        self.aborted = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport (asyncio)."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the exchange in progress and call ``on_lost`` (asyncio)."""
        self._transport = None
        self._forget()
        # The parser and the timer are in reference cycles with this object; free the memory before garbage collection.
        self._parser, self._scratch = httptools.HttpResponseParser(self), memoryview(b"")
        self._timer.stop()
        if self._response is not None and not self._response.done():
            self._response.set_exception(RuntimeLost(LOST if exc is None else f"{LOST}: {exc}"))
        self._on_lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes (asyncio)."""
        if self._body is not None and self._reads_body:
            return self._body.rest
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Feed the parser, or count bytes of the body (asyncio)."""
        if self._response is None or self._response.done():
            self._close_unexpected()
            return
        if self._body is not None and self._reads_body:
            if not self._counted(nbytes):
                return
            self._body.filled(nbytes)
            if self._body.complete:
                self._parser = httptools.HttpResponseParser(self)
                self.on_message_complete()
            return
        try:
            self._parser.feed_data(self._scratch[:nbytes])
        except httptools.HttpParserError as error:
            if self._response is not None and not self._response.done():
                self._response.set_exception(RuntimeLost(f"the runtime's response is no valid HTTP/1.1: {error}"))
            self.close()
        self._reads_body = self._body is not None
        # Limit what is not body: each further header of a head without end costs more than the last.
        self._parsed_bytes += nbytes
        if self._memory is None or self._response is None or self._response.done():
            return
        if self._parsed_bytes > MAX_HEAD_BYTES + (1 + _A_BYTES_FRAME) * self._received_bytes:
            self._refuse(ModelFailed(f"the response's head is over the limit of {MAX_HEAD_BYTES} bytes"))

    def _close_unexpected(self) -> None:
        """Close, as an unexpected response could be taken for the next one."""
        self.announced = True  # the proxy closes it: the runtime is not lost
        self.close()

    def on_message_begin(self) -> None:
        """Start a new response (httptools).

        Raises:
            httptools.HttpParserError: no response is expected.
        """
        if self._response is None or self._response.done():
            self._close_unexpected()
            raise httptools.HttpParserError("an unexpected response")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header (httptools)."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Allocate memory for a large body (httptools)."""
        self._status = self._parser.get_status_code()
        self._keep = self._parser.should_keep_alive()
        size_bytes = int(self._headers.get(b"content-length", 0))
        if self._memory is not None and size_bytes > min(self._memory.most_bytes, self._most_bytes):
            self._refuse(self._rejection(self._memory, size_bytes))
        elif size_bytes > LARGE_BYTES:
            # A trusted server sends all that it announces, so the whole body is allocated.
            self._body = Body(size_bytes, None if self._memory is None else LARGE_BYTES)

    def on_body(self, body: bytes) -> None:
        """Store a piece of the body (httptools)."""
        if not self._counted(len(body)):
            return
        if self._body is not None:
            self._body.add(body)
        else:
            self._chunks.append(body)

    def _counted(self, size_bytes: int) -> bool:
        """Count received bytes; return whether they are within the limit."""
        if (memory := self._memory) is None:
            return True
        self._received_bytes += size_bytes
        memory.used_bytes += size_bytes
        if memory.used_bytes <= memory.most_bytes and self._received_bytes <= self._most_bytes:
            return True
        self._refuse(self._rejection(memory, self._received_bytes))
        return False

    def _rejection(self, memory: ResponseMemory, size_bytes: int) -> ProxyError:
        if size_bytes > self._most_bytes:
            return ModelFailed(f"the response is over the limit of {self._most_bytes} bytes for its request")
        return memory.rejection(size_bytes)

    def _forget(self) -> None:
        """Drop the received part of a response, and release its memory."""
        self._headers, self._chunks, self._body, self._reads_body = {}, [], None, False
        if self._memory is not None:
            self._memory.used_bytes -= self._received_bytes
            self._received_bytes = 0

    def _refuse(self, error: ProxyError) -> None:
        """Reject a response that exceeds a limit."""
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)
        self._forget()
        self.close()

    def on_message_complete(self) -> None:
        """Complete the response (httptools)."""
        body = self._body.view if self._body is not None else b"".join(self._chunks)
        # Interim responses (1xx) are skipped.
        if self._status >= 200 and self._response is not None and not self._response.done():
            self._response.set_result(RuntimeResponse(self._status, self._headers, body))
        self._forget()
        self.announced = not self._keep
        if not self._keep and self._transport is not None:
            self._transport.close()
