"""HTTP connection of one client of the proxy, within the limits of its port.

Adds to the shared connection: admission, unread responses, errors in the client's protocol, and clients that close
their sending side.
"""

import asyncio
import select
import time
from collections.abc import Sequence
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from shoal_proxy.codecs.base import EXECUTED, HttpResponse
from shoal_proxy.codecs.protocols import codec_for
from shoal_proxy.errors import (
    BodyTooLarge,
    HeadTooLarge,
    InvalidRequest,
    NotImplementedHere,
    Overloaded,
    ProxyError,
    RequestTimeout,
    VersionNotSupported,
)
from shoal_proxy.http.connection_limits import ConnectionLimits
from shoal_proxy.http.outbox import Outbox
from shoal_schema.http.connection_state import BODY, HEAD, NOTHING
from shoal_schema.http.framing import FramingError
from shoal_schema.http.rejected_request import RejectedRequest
from shoal_schema.http.server_connection import ServerConnection
from shoal_schema.interfaces.metrics import RejectionReason
from shoal_schema.interfaces.protocols import HTTP, expand

_GONE_CHECK_S: Final = 0.01
_MAX_GONE_CHECK_S: Final = 2.0
_MAX_REJECTED: Final = 32
"""Most connections over the limit that get an error response at a time; others are closed at once."""
_TLS_UNSENT_BYTES: Final = 65536
"""The write buffer limit with TLS, beyond which a response counts as unread, as it does without TLS."""

ERROR_BY_STATUS: Final[dict[int, type[ProxyError]]] = {
    error.status: error
    for error in (InvalidRequest, RequestTimeout, HeadTooLarge, NotImplementedHere, VersionNotSupported)
}
"""The error for each status of a `FramingError`."""

_READ: Final = frozenset(path.encode() for page in HTTP.pages if page.reads_body for path in expand(page.path))
"""Paths whose handlers read their bodies."""


class ProxyConnection(ServerConnection):
    """HTTP connection of one client, which the ``limits`` of its port admit or reject."""

    rejections: tuple[type[Exception], ...] = (ProxyError, FramingError)

    def __init__(self, *args: Any, limits: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(*args, timeouts=limits.timeouts, max_head_bytes=limits.max_head_bytes, **kwargs)
        self.limits = limits
        self.page: Any = None
        """The ASGI cycle that was started last."""
        self._outbox: Outbox | None = None
        """Wraps the transport after the first large response."""
        self._half_closed = False
        self._counted_at: str | None = None
        self._is_rejected = False
        self._keep_alive_lines: tuple[Any, bytes] = (None, b"")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit or reject the connection (asyncio)."""
        super().connection_made(transport)
        if self.scheme == "https":
            # The default limit would hide unread responses in the buffer of TLS.
            self.transport.set_write_buffer_limits(_TLS_UNSENT_BYTES)
        address = self.client[0] if self.client else ""
        limits = self.limits
        if limits.max_per_address and address:
            limits.by_address[address] = limits.by_address.get(address, 0) + 1
            self._counted_at = address
        reason = limits.admit(self, address, time.monotonic())
        if not reason:
            return
        self._is_rejected = True
        limits.rejected_connections += 1
        limits.log_rejection("connection_refused", reason)
        if limits.rejected_connections > _MAX_REJECTED:
            self.transport.abort()
            return
        self.fail(Overloaded(reason, reason=RejectionReason.CONNECTIONS, retry_after_s=1))

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the limits (asyncio)."""
        limits = self.limits
        limits.members.discard(self)
        if self._outbox is not None:
            self._outbox.drop()
        limits.unread.set_held_bytes(self, 0)
        if self._is_rejected:
            limits.rejected_connections -= 1
        if self._counted_at is not None:
            left = limits.by_address[self._counted_at] - 1
            if left:
                limits.by_address[self._counted_at] = left
            else:
                del limits.by_address[self._counted_at]
            self._counted_at = None
        super().connection_lost(exc)

    @property
    def is_unused(self) -> bool:
        """Whether the connection has not had a response yet."""
        return self.state.is_unused

    @property
    def idle_start_s(self) -> float | None:
        """Start of the connection's idle time (s); None while it is in use."""
        if self._is_rejected or self.busy or self.state.phase > HEAD or self.transport.is_closing():
            return None
        return self.state.idle_since_s

    @property
    def awaits_client(self) -> bool:
        """Whether the client has an incomplete request or unread responses."""
        return self.state.phase != NOTHING or self.awaits_reader

    def leave(self) -> None:
        """Close this connection in favor of a new one."""
        event = "busy_connection_closed" if self.idle_start_s is None else "idle_connection_closed"
        self.limits.log_rejection(event, f"for a new one, at {self.limits.max_connections}")
        self.transport.abort()

    # Requests that an ASGI application serves, and errors.

    def take_head(self, headers: dict[bytes, bytes]) -> None:
        """Begin a request with a well-formed head."""
        if int(headers.get(b"content-length", b"0")) > self.limits.max_body_bytes:
            self.state.phase = HEAD  # no request has begun
            raise self._too_large()
        self.begin_asgi({})

    def _too_large(self) -> ProxyError:
        return BodyTooLarge(f"the body is over the limit of {self.limits.max_body_bytes} bytes")

    def on_body(self, body: bytes) -> None:
        """Count a piece of the body; drop it if no handler reads it (httptools)."""
        self.meter.body_bytes += len(body)
        if self.meter.body_bytes > self.limits.max_body_bytes:
            raise self._too_large()
        if self.url in _READ:
            super().on_body(body)

    def fail(self, error: Exception) -> None:
        """Respond with an error after earlier responses; ignore further input."""
        super().fail(ERROR_BY_STATUS[error.status](error.message) if isinstance(error, FramingError) else error)

    def note_rejection(self, error: Any) -> None:
        """Count and log a rejected request."""
        self.limits.metrics.rejected(error.reason)
        self.limits.log_rejected_request(error)

    def fail_open(self, cycle: Any, error: Any) -> bool:
        """Reject an incomplete request; its handler responds to the incomplete body.

        Returns: True if ``error`` needs no other response.
        """
        if not super().fail_open(cycle, error):
            cycle.keep_alive = False
            cycle.more_body = False
            cycle.message_event.set()
        return True

    def error_response(self, rejected: RejectedRequest) -> bytes:
        """Return the response to a rejected request, in the client's protocol."""
        error: Any = rejected.error
        response = codec_for(rejected.url.decode("latin-1")).error(error)
        response.lines += EXECUTED[False]
        if error.retry_after_s is not None:
            response.lines += b"retry-after: %d\r\n" % error.retry_after_s
        self.note_rejected_response(rejected, response)
        return b"".join((self.response_head(response, response.lines + b"connection: close\r\n"), *response.body))

    def note_rejected_response(self, rejected: RejectedRequest, response: HttpResponse) -> None:
        """Do nothing: the inference port overrides this to log the response."""

    def response_head(self, response: HttpResponse, lines: bytes) -> bytes:
        """Return the status line and the headers of ``response``.

        ``lines`` replace the header lines of the response.
        """
        known, default_lines = self._keep_alive_lines
        if known is not self.server_state.default_headers:  # uvicorn renews them each second
            known = self.server_state.default_headers
            default_lines = b"".join(b"%b: %b\r\n" % header for header in known)
            self._keep_alive_lines = known, default_lines
        return b"%b%bcontent-type: %b\r\ncontent-length: %d\r\n%b\r\n" % (
            STATUS_LINE[response.status], default_lines, response.content_type, response.size_bytes, lines,
        )  # fmt: skip

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Start the connection's next request (uvicorn, for pipelined requests)."""
        if not isinstance(cycle, RejectedRequest):
            self.page = cycle
        super()._start_asgi_task(cycle, app)

    # Unread responses.

    def note_stalled_reader(self) -> None:
        """Log that the client does not read its response."""
        self.limits.log_rejection("answer_not_taken", f"{self.unread_bytes} bytes are left")

    def write_large(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write a response that may be too large for the socket's buffer."""
        outbox = self._outbox
        if outbox is None:
            outbox = Outbox(self.transport)
            self._outbox = self.transport = outbox
        outbox.blocked = self.flow.write_paused
        outbox.writelines(parts)
        if not self.unread_bytes:
            return
        now_s = time.monotonic()
        self.timer.check_by(now_s + self.timeouts.write_s, now_s)
        if self.flow.write_paused:
            # The client reads slowly: do not keep its whole batch in memory for its rows.
            outbox.own()
            self.state.unread_bytes = self.unread_bytes
            self._count_unread()

    def _count_unread(self) -> None:
        outbox = self._outbox
        self.limits.unread.set_held_bytes(self, self.unread_bytes if outbox is None else outbox.held_bytes)

    def evict(self) -> None:
        """Close the connection to free the memory of its unread responses."""
        self.limits.log_rejection(
            "answer_not_taken", f"{self.unread_bytes} bytes are left, and all clients are over the limit"
        )
        self.transport.abort()

    def pause_writing(self) -> None:
        """Start to measure how fast the client reads its response (asyncio)."""
        if self._outbox is not None:
            self._outbox.blocked = True
        if self.flow.write_paused:  # between two pieces of one response
            return
        super().pause_writing()
        self._count_unread()

    def resume_writing(self) -> None:
        """Send more of a large response, as the client reads again (asyncio).

        Once all is sent, reading of requests resumes.
        """
        outbox = self._outbox
        if outbox is not None:
            outbox.blocked = False
            outbox.feed()
            if outbox.blocked:
                self._count_unread()
                return
        super().resume_writing()

    def note_all_sent(self) -> None:
        """Remove the connection's responses from the account of unread ones."""
        self.limits.unread.set_held_bytes(self, 0)

    def drop_open(self) -> None:
        """Drop an incomplete infer request; does nothing for other requests."""

    # Clients that have closed their sending side.

    def eof_received(self) -> bool | None:  # type: ignore[override]  # uvicorn closes the connection
        """Finish the requests received before the client closed its sending side (asyncio)."""
        if self._keeps_half_closed():
            return True
        if self._outbox is None or not self._outbox.unread_bytes or self.scheme == "https":
            return None
        self.ignore_input()
        self.transport.close()
        return True

    def _keeps_half_closed(self) -> bool | None:
        """Return whether the connection stays open for responses in progress.

        A half-closed connection is not distinguishable from a disconnected client. So the proxy sends an interim
        response: every client ignores it (RFC 9110, section 15.2), but the machine of a disconnected client replies
        with a reset.
        """
        if self._half_closed:
            return True
        if self.scheme == "https":  # asyncio does not support half-closed TLS connections
            return None
        if self.state.phase in (HEAD, BODY):
            self.drop_open()
        if not self.busy or self.transport.is_closing():
            return None
        self._half_closed = True
        self.cycle.keep_alive = False
        self.ignore_input()
        page = self.page
        # HTTP/1.0 has no interim responses, and none can be sent within a response.
        if self.is_http_1_0 or (page is not None and page.response_started and not page.response_complete):
            return None
        self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.loop.call_later(_GONE_CHECK_S, self._check_disconnected, _GONE_CHECK_S)
        return True

    def _check_disconnected(self, after_s: float) -> None:
        if self.transport.is_closing():
            return
        # Poll reports a hang-up once both directions are closed, by a reset or the other end; a read would not.
        ends = select.poll()
        ends.register(self.transport.get_extra_info("socket").fileno(), 0)
        if ends.poll(0):
            self.transport.abort()
            return
        after_s = min(2 * after_s, _MAX_GONE_CHECK_S)
        self.loop.call_later(after_s, self._check_disconnected, after_s)
