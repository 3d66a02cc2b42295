"""HTTP/1.1 client connection, for one exchange at a time.

It is a small client on httptools. Requests to the runtime, reads of all pods' load, and load tests use it: an HTTP
client for general use takes 0.3 to 1 ms per request, this one 0.01 ms.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

import httptools

if TYPE_CHECKING:
    # Needs numpy, which clients without large bodies do not import.
    from shoal_schema.wire.body import Body

READ_BYTES: Final = 65536
_A_BYTES_FRAME: Final = 8
"""Framing bytes per byte of a body, in the smallest chunks possible."""


class InvalidResponseError(Exception):
    """An invalid response; the message states the reason."""


class ResponseTooLargeError(InvalidResponseError):
    """A response over a limit."""


class ReceivedResponse:
    """A complete response. Header names are in lower case."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: dict[bytes, bytes], body: bytes | memoryview) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class ClientConnection(asyncio.BufferedProtocol):
    """Protocol of one connection.

    Args:
        scratch: buffer for reads of about `READ_BYTES`; the connections of one event loop may share it.
        max_head_bytes: limit of a response without its body: head, interim responses (1xx), trailers, and framing of
            chunks beyond that of the smallest chunks. 0 without a limit.
        max_body_bytes: limit of a response's body; 0 without a limit.
    """

    def __init__(self, scratch: memoryview, max_head_bytes: int = 0, max_body_bytes: int = 0) -> None:
        self.transport: asyncio.Transport | None = None
        self.scratch = scratch
        self.parser = httptools.HttpResponseParser(self)
        self.chunks: list[bytes] = []
        self.received_bytes = 0
        """Counted bytes of the body."""
        self.body: Body | None = None
        """Buffer of a large body, which `take_head` may set. The rest of the body then bypasses the parser."""
        self._reads_body = False
        self.announced = False
        """Whether the close was expected: announced by the last response, or made by this side."""
        self._max_head_bytes = max_head_bytes
        self._max_body_bytes = max_body_bytes
        self._parsed_bytes = 0
        self._response: asyncio.Future[ReceivedResponse] | None = None
        self._headers: dict[bytes, bytes] = {}
        self.status = 0
        self._keep = False

    @property
    def usable(self) -> bool:
        """Whether the next exchange may use this connection."""
        return self._response is None and self.transport is not None and not self.transport.is_closing()

    def send(self, parts: Sequence[bytes | memoryview]) -> asyncio.Future[ReceivedResponse]:
        """Send a request; return a future of the response.

        A canceled request leaves the connection unusable, as a late response could be mistaken for the next one.

        Raises:
            ConnectionResetError: the connection is closed; nothing was sent.
        """
        transport = self.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        response: asyncio.Future[ReceivedResponse] = asyncio.get_running_loop().create_future()
        self._response, self._parsed_bytes = response, 0
        # One call, so that small parts are sent together.
        transport.writelines(parts)
        return response

    def close(self) -> None:
        """Close the connection at once; an exchange in progress fails."""
        if self.transport is not None:
            self.transport.abort()

    def fail(self, error: BaseException) -> None:
        """Fail the exchange in progress, and close the connection."""
        response, self._response = self._response, None
        if response is not None and not response.done():
            response.set_exception(error)
        self.forget()
        self.close()

    # The asyncio.BufferedProtocol interface.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport (asyncio)."""
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the exchange in progress (asyncio)."""
        self.transport = None
        self.fail(exc or ConnectionResetError())
        # The parser is in a reference cycle with this object; free the memory before garbage collection.
        self.parser, self.scratch = httptools.HttpResponseParser(self), memoryview(b"")

    def eof_received(self) -> None:
        """Complete a response whose body ends with the connection (asyncio; RFC 9112, section 6.3)."""
        headers = self._headers
        if self.status >= 200 and b"content-length" not in headers and b"transfer-encoding" not in headers:
            self.on_message_complete()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes (asyncio)."""
        if self._reads_body and self.body is not None:
            return self.body.rest
        return self.scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the read bytes (asyncio)."""
        if self._response is None or self._response.done():
            self.close_unexpected()
            return
        try:
            if self._reads_body and self.body is not None:
                self._fill(self.body, nbytes)
                return
            self.parser.feed_data(self.scratch[:nbytes])
        except httptools.HttpParserCallbackError as error:
            self.fail(error.__context__ or error)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.fail(InvalidResponseError(f"malformed HTTP/1.1 response: {error}"))
        except Exception as error:  # `count_body` rejects the response
            self.fail(error)
        self._reads_body = self.body is not None
        if self._max_head_bytes and self._response is not None:
            # Limit what is not body: each further header of a head without end costs more than the last.
            self._parsed_bytes += nbytes
            if self._parsed_bytes > self._max_head_bytes + (1 + _A_BYTES_FRAME) * self.received_bytes:
                most = f"{self._max_head_bytes} bytes"
                self.fail(ResponseTooLargeError(f"the response's head is over the limit of {most}"))

    def _fill(self, body: "Body", size_bytes: int) -> None:
        self.count_body(size_bytes)
        body.filled(size_bytes)
        if body.complete:
            self.parser = httptools.HttpResponseParser(self)
            self.on_message_complete()

    def close_unexpected(self) -> None:
        """Close, as an unexpected response could be taken for the next one."""
        self.announced = True
        self.close()

    # The parser's callbacks.

    def on_message_begin(self) -> None:
        """Start a new response (httptools)."""
        if self._response is None or self._response.done():
            self.close_unexpected()
            raise InvalidResponseError("an unexpected response")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header (httptools)."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Check the head of a response (httptools)."""
        self.status = self.parser.get_status_code()
        self._keep = self.parser.should_keep_alive()
        # Interim responses (1xx) are skipped.
        if self.status >= 200:
            self.take_head(self._headers)

    def take_head(self, headers: dict[bytes, bytes]) -> None:
        """Do nothing: a subclass may raise an exception to reject the response."""

    def on_body(self, body: bytes) -> None:
        """Store a piece of the body (httptools)."""
        self.count_body(len(body))
        if self.body is not None:
            self.body.add(body)
        else:
            self.chunks.append(body)

    def count_body(self, size_bytes: int) -> None:
        """Count received bytes of the body; raise an exception if they are over the limit."""
        self.received_bytes += size_bytes
        if self._max_body_bytes and self.received_bytes > self._max_body_bytes:
            raise ResponseTooLargeError(f"the body is over the limit of {self._max_body_bytes} bytes")

    def on_message_complete(self) -> None:
        """Complete the response (httptools)."""
        status = self.status
        if status >= 200 and self._response is not None and not self._response.done():
            body = b"".join(self.chunks) if self.body is None else self.body.view
            self._response.set_result(ReceivedResponse(status, self._headers, body))
            self._response = None
        self.forget()
        if status >= 200 and not self._keep:
            self.announced = True
            if self.transport is not None:
                self.transport.close()

    def forget(self) -> None:
        """Drop the received part of a response."""
        if self.received_bytes:
            self.release_body()
            self.received_bytes = 0
        self._headers, self.chunks, self.body = {}, [], None
        self._reads_body = False
        self.status = 0

    def release_body(self) -> None:
        """Do nothing: a subclass may account for the memory of ``received_bytes``."""
