"""uvicorn's HTTP protocol with limits of size and time, for a runtime that listens on a network.

The limits are shared with the proxy (`shoal_schema.wire.framing` and `timeouts`).
"""

import asyncio
import logging
import resource
import time
from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from shoal_runtime.codecs.response import encode_error
from shoal_schema.wire.framing import (
    FramingError,
    HeadMeter,
    check_head,
    check_repeated,
    check_upgrade,
    without_upgrade,
)
from shoal_schema.wire.timeouts import BUSY_CHECK_S, DeadlineTimer, TransferTimeouts

if TYPE_CHECKING:
    import uvicorn
    from uvicorn.server import ServerState

MAX_CONNECTIONS: Final = 1024
"""A proxy needs a few; at the limit, idle ones are closed for new ones."""
_LINGER_S: Final = 2.0
"""Time in which a client can read an error before its connection is closed."""

logger = logging.getLogger(__name__)


class ConnectionBounds(NamedTuple):
    """Limits of size and time for one connection."""

    max_body_bytes: int
    max_head_bytes: int = 32 * 1024
    head_timeout_s: float = 30.0
    """Time limit of a head, from the connection's start or from the head's first byte."""
    transfer_timeout_s: float = 60.0
    """Time limit of a body that arrives, or a response that is read, more slowly than ``min_bytes_per_s``."""
    min_bytes_per_s: int = 16 * 1024
    idle_timeout_s: float = 24 * 3600.0
    """The proxy keeps a connection as long as it may send, so the runtime rarely closes idle ones."""
    max_connections: int = MAX_CONNECTIONS

    @property
    def timeouts(self) -> TransferTimeouts:
        """Return the time limits for each state of a connection."""
        transfer_s = self.transfer_timeout_s
        return TransferTimeouts(self.head_timeout_s, transfer_s, transfer_s, self.idle_timeout_s, self.min_bytes_per_s)


def max_connections() -> int:
    """Return the maximum number of connections, at most half of the file descriptors."""
    # The limit of the process, which containers often set low.
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, soft // 2))


class LimitedProtocol(HttpToolsProtocol):
    """HTTP protocol of one connection that enforces ``bounds``."""

    cycle: Any

    def __init__(self, config: "uvicorn.Config", state: "ServerState", bounds: ConnectionBounds) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self._bounds = bounds
        self._timeouts = bounds.timeouts
        self._meter = HeadMeter(bounds.max_head_bytes)
        self._in_head = self._in_body = self._deaf = self._upgrading = False
        self._messages = self._marked_bytes = 0
        self._since_s = time.monotonic()
        """Start of the connection's current state, or of the current measurement of its rate."""
        self._idle_since_s = self._since_s
        self._timer = DeadlineTimer(self.loop.call_later, time.monotonic, self._check_timeouts)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection; at the maximum, close the connection that has been idle longest."""
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn narrows it, as we do
        now_s = time.monotonic()
        if len(self.connections) > self._bounds.max_connections:
            others: Any = self.connections - {self}
            idle = [each for each in others if each.idle]
            if not idle:
                self.transport.abort()
                return
            oldest = min(idle, key=attrgetter("rank"))
            self.connections.discard(oldest)
            oldest.transport.abort()
        self._timer.check_by(now_s + min(self._timeouts.head_s, self._timeouts.idle_s), now_s)

    @property
    def idle(self) -> bool:
        """Whether no request is in progress; an incomplete head does not count as a request."""
        return not (self._busy or self._in_body)

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort key of idle connections: the lowest is closed first.

        Connections that have not sent a request precede all others, then the longest idle time comes first.
        """
        return self.cycle is not None, self._idle_since_s

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of the connection's time limits."""
        self._timer.stop()
        super().connection_lost(exc)

    def _check_timeouts(self, now_s: float) -> None:
        """Close the connection if its state exceeds the time limit; else set the next check."""
        due_s = self._due_s(now_s)
        if due_s <= now_s and self._keeps_up(now_s):
            due_s = self._due_s(now_s)
        if due_s > now_s:
            self._timer.check_by(due_s, now_s)
            return
        if self._unread:
            # The client does not read, so it would not read an error either.
            self.transport.abort()
            return
        self._count_from(now_s)
        self._timer.check_by(now_s + self._timeouts.write_s, now_s)
        if self._in_head or self._in_body:
            self._fail(FramingError(408, "the request did not arrive in time"))
        else:
            self.transport.close()

    @property
    def _unread(self) -> bool:
        return self.flow.write_paused or self.transport.is_closing()

    def _due_s(self, now_s: float) -> float:
        timeouts = self._timeouts
        if self._unread:
            return self._since_s + timeouts.write_s
        if self._in_head or self._in_body:
            if self.flow.read_paused:
                self._since_s = now_s  # the runtime has paused reading, so the client is not slow
            return self._since_s + (timeouts.head_s if self._in_head else timeouts.body_s)
        if self._busy or self._deaf:
            return now_s + min(BUSY_CHECK_S, timeouts.idle_s)
        return self._idle_since_s + (timeouts.head_s if self.cycle is None else timeouts.idle_s)

    def _keeps_up(self, now_s: float) -> bool:
        """Return whether the transfer was fast enough since the last check; start a new measurement."""
        # Counted from the transport's buffer: bytes that the client has not read.
        if self._unread:
            left_bytes = self.transport.get_write_buffer_size()
            moved_bytes, self._marked_bytes = self._marked_bytes - left_bytes, left_bytes
        elif self._in_body:
            body_bytes = self._meter.body_bytes
            moved_bytes, self._marked_bytes = body_bytes - self._marked_bytes, body_bytes
        else:
            return False
        elapsed_s, self._since_s = now_s - self._since_s, now_s
        return self._timeouts.is_fast_enough(moved_bytes, elapsed_s)

    def _count_from(self, now_s: float) -> None:
        self._since_s, self._marked_bytes = now_s, self.transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        """Start to measure the rate at which the client reads the response."""
        super().pause_writing()
        now_s = time.monotonic()
        self._count_from(now_s)
        self._timer.check_by(now_s + self._timeouts.write_s, now_s)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and reject a request that exceeds the limits."""
        if self._deaf:
            return
        message, in_head = self._messages, self._in_head
        try:
            self._feed(data)
            # Bytes of an unfinished head or body that the parser has not reported, such as half a header.
            if message == self._messages and in_head == self._in_head and (in_head or self._in_body):
                self._meter.unreported(len(data), in_body=self._in_body)
        except FramingError as error:
            self._fail(error)
            return
        if self._in_head or self._in_body:
            now_s = time.monotonic()
            self._timer.check_by(now_s + (self._timeouts.head_s if self._in_head else self._timeouts.body_s), now_s)

    def _feed(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while True:
                try:
                    self.parser.feed_data(rest)
                    return
                except httptools.HttpParserUpgrade as offer:
                    # Upgrades are ignored: the head is parsed again without the offer.
                    rest = rest[offer.args[0] :]
                    method, version = self.parser.get_method(), self.parser.get_http_version()
                    self.parser = httptools.HttpRequestParser(self)
                    self.parser.feed_data(without_upgrade(method, self.url, version, self.headers))
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, FramingError):
                raise error.__context__ from None
            raise FramingError(400, f"this is not an HTTP/1.1 request: {error}") from None

    def on_message_begin(self) -> None:
        """Start a request: reset its limits and measurements."""
        self._in_head, self._upgrading = True, False
        self._messages += 1
        self._meter.begin()
        self._marked_bytes = 0
        self._since_s = time.monotonic()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Append a piece of the request target."""
        self._meter.target(len(url))
        self.url = self.url + url  # mypyc does not support += on attributes of classes that are not compiled

    def on_header(self, name: bytes, value: bytes) -> None:
        """Append a header, unless it is a trailer."""
        self._meter.field(name, value)
        if not self._in_head:
            return
        # Copied from uvicorn's method, to save a call per header.
        name, value = name.lower(), value.rstrip()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Check a complete request head, and prepare to read the body.

        Raises:
            FramingError: the HTTP version is not supported, or the headers leave the end of the request ambiguous.
        """
        if self.parser.should_upgrade():
            check_upgrade(self.parser.get_method())
            self._upgrading = True
            return
        headers = dict(self.headers)
        check_head(self.parser.get_http_version(), headers)
        if len(headers) < len(self.headers):
            check_repeated(self.headers)
        if not self.take_head(headers):
            super().on_headers_complete()
        self._in_head, self._in_body = False, True
        self._meter.begin_body()

    def take_head(self, headers: Mapping[bytes, bytes]) -> bool:
        """Prepare to read the body of an accepted request; return whether the request bypasses ASGI."""
        return False

    def on_body(self, body: bytes) -> None:
        """Count and forward a piece of the body, even if the application does not read it."""
        self.count_body(len(body))
        super().on_body(body)

    def count_body(self, size_bytes: int) -> None:
        """Count bytes of the body, and reject a body that exceeds its limit."""
        self._meter.body_bytes += size_bytes
        # While a request is in progress, the application itself rejects a body that is too large.
        if self._meter.body_bytes > self._bounds.max_body_bytes and self.cycle.response_complete:
            raise FramingError(413, f"the body exceeds {self._bounds.max_body_bytes} bytes")

    def on_message_complete(self) -> None:
        """Mark the request as completely received."""
        if self._upgrading:
            return
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start to measure the connection's idle time."""
        self._idle_since_s = time.monotonic()
        if self.pipeline:
            super().on_response_complete()
        elif not self.transport.is_closing():
            self.flow.resume_reading()

    def _fail(self, error: FramingError) -> None:
        """Reject the current request with an error, and close the connection.

        No error is sent if the request already has its response, or if an earlier response is in progress. An earlier
        response is completed before the connection closes.
        """
        self._deaf = True
        in_body, self._in_head, self._in_body = self._in_body, False, False
        if self._busy:
            # The response in progress is the last on this connection.
            self.cycle.keep_alive = False
            if in_body:
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            else:
                return
        if in_body and self.cycle.response_complete:
            # The request has its response; only its body is wrong.
            self.transport.close()
            return
        body = encode_error(str(error), "BAD_REQUEST")
        head = b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (STATUS_LINE[error.status], len(body)) + body)
        # Half-closed, so that the client can read the error before the connection ends.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_S, self.transport.close)
