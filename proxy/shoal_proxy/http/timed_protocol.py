"""Time limits of one client's connection.

One timer per connection checks all of them, so that requests do not pay for timers of their own.
"""

import asyncio
import select
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shoal_proxy.errors import Overloaded, ProxyError, RequestTimeout
from shoal_proxy.http.connection_limits import ConnectionLimits
from shoal_proxy.http.outbox import Outbox
from shoal_schema.interfaces.metrics import RejectionReason
from shoal_schema.wire.framing import HeadMeter
from shoal_schema.wire.timeouts import BUSY_CHECK_S, DeadlineTimer

LINGER_S: Final = 2.0
"""How long input is discarded after a refusal, so that the client reads the response before a reset."""
_GONE_CHECK_S: Final = 0.01
_MAX_GONE_CHECK_S: Final = 2.0
_MAX_REJECTED: Final = 32
"""Most connections over the limit that get an error response at a time; others are closed at once."""
_TLS_UNSENT_BYTES: Final = 65536
"""The write buffer limit with TLS, beyond which a response counts as unread, as it does without TLS."""
_MAX_PIPELINED: Final = 16
"""Most requests that a client may send ahead of its responses before reading is paused."""

# The state of a connection's input.
NOTHING: Final = 0
HEAD: Final = 1
BODY: Final = 2
IGNORED: Final = 3
"""All further input is discarded."""


class TimedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP connection, with time limits on slow clients."""

    cycle: Any
    pipeline: deque[Any]

    def __init__(self, *args: Any, limits: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.limits = limits
        self.timeouts = limits.timeouts
        self.meter = HeadMeter(limits.max_head_bytes)
        self.timer = DeadlineTimer(self.loop.call_later, time.monotonic, self._check_timeouts)
        self.incoming = NOTHING
        self.page: Any = None
        """The ASGI cycle that was started last."""
        self.is_http_1_0 = False
        self.began_s = 0.0
        """When the state of ``incoming`` began; for a body, when the measurement of its pace began."""
        self.marked_bytes = 0
        """Received bytes of the body at that time."""
        self.idle_since_s = 0.0
        self._unread_since_s = 0.0
        """Since when the client has not read its responses; 0 while it reads."""
        self._unread_bytes = 0
        """Unread bytes at that time."""
        self._outbox: Outbox | None = None
        """Wraps the transport after the first large response."""
        self._half_closed = False
        self._counted_at: str | None = None
        self._is_rejected = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit or reject the connection (asyncio)."""
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn narrows it, as we do
        if self.scheme == "https":
            # The default limit would hide unread responses in the buffer of TLS.
            self.transport.set_write_buffer_limits(_TLS_UNSENT_BYTES)
        now_s = time.monotonic()
        self.idle_since_s = now_s
        address = self.client[0] if self.client else ""
        limits = self.limits
        if limits.max_per_address and address:
            limits.by_address[address] = limits.by_address.get(address, 0) + 1
            self._counted_at = address
        reason = limits.admit(self, address, now_s)
        if not reason:
            self.timer.check_by(now_s + min(self.timeouts.head_s, self.timeouts.idle_s), now_s)
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
        self.timer.stop()
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
    def busy(self) -> bool:
        """Whether a request has no response yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_unused(self) -> bool:
        """Whether the connection has not had a request yet."""
        return self.cycle is None

    @property
    def idle_start_s(self) -> float | None:
        """Start of the connection's idle time (s); None while it is in use."""
        if self._is_rejected or self.busy or self.incoming > HEAD or self.transport.is_closing():
            return None
        return self.idle_since_s

    @property
    def awaits_client(self) -> bool:
        """Whether the client has an incomplete request or unread responses."""
        return self.incoming in (HEAD, BODY, IGNORED) or self._awaits_reader

    def leave(self) -> None:
        """Close this connection in favor of a new one."""
        event = "busy_connection_closed" if self.idle_start_s is None else "idle_connection_closed"
        self.limits.log_rejection(event, f"for a new one, at {self.limits.max_connections}")
        self.transport.abort()

    # The timer.

    def _check_timeouts(self, now_s: float) -> None:
        due_s = self._deadline_s(now_s)
        if due_s <= now_s:
            # The limit is extended while a response is read, or a body received, fast enough since the last check.
            moved_bytes, since_s = 0, now_s
            if self._awaits_reader:
                left_bytes = self.transport.get_write_buffer_size()
                moved_bytes, since_s = self._unread_bytes - left_bytes, self._unread_since_s
                self._unread_since_s, self._unread_bytes = now_s, left_bytes
            elif self.incoming == BODY:
                moved_bytes, since_s = self.meter.body_bytes - self.marked_bytes, self.began_s
                self.began_s, self.marked_bytes = now_s, self.meter.body_bytes
            if since_s < now_s and self.timeouts.is_fast_enough(moved_bytes, now_s - since_s):
                due_s = self._deadline_s(now_s)
        if due_s > now_s:
            self.timer.check_by(due_s, now_s)
        else:
            self._time_out(now_s)

    @property
    def _awaits_reader(self) -> bool:
        """Whether the connection waits for the client to read."""
        return self.flow.write_paused or self.transport.is_closing()

    def _deadline_s(self, now_s: float) -> float:
        """Return the time at which the present state times out."""
        timeouts = self.timeouts
        if self._awaits_reader:
            if not self._unread_since_s:
                self._unread_since_s, self._unread_bytes = now_s, self.transport.get_write_buffer_size()
            return self._unread_since_s + timeouts.write_s
        if self.incoming in (HEAD, BODY):
            if self.flow.read_paused:
                self.began_s = now_s  # the proxy has paused reading
            return self.began_s + (timeouts.head_s if self.incoming == HEAD else timeouts.body_s)
        if self.busy or self.incoming == IGNORED:
            return now_s + min(BUSY_CHECK_S, timeouts.idle_s)
        return self.idle_since_s + (timeouts.head_s if self.cycle is None else timeouts.idle_s)

    def _time_out(self, now_s: float) -> None:
        """End the request or connection whose time limit has passed."""
        if self._awaits_reader:
            self.limits.log_rejection("answer_not_taken", f"{self.transport.get_write_buffer_size()} bytes are left")
            self.transport.abort()
            return
        self.timer.check_by(now_s + self.timeouts.write_s, now_s)
        if self.incoming == HEAD:
            self.fail(RequestTimeout(f"the request's head was not complete within {self.timeouts.head_s:g} s"))
        elif self.incoming == BODY:
            self.body_timed_out(RequestTimeout(
                f"the request was not complete within {self.timeouts.body_s:g} s,"
                f" and slower than {self.timeouts.min_bytes_per_s:g} bytes per second"
            ))  # fmt: skip
        else:
            self.transport.close()

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
            self._unread_bytes = self.unread_bytes
            self._count_unread()

    @property
    def unread_bytes(self) -> int:
        """Return the number of response bytes that the client has not read."""
        return self.transport.get_write_buffer_size()

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
        now_s = time.monotonic()
        self._unread_since_s, self._unread_bytes = now_s, self.unread_bytes
        self.timer.check_by(now_s + self.timeouts.write_s, now_s)
        self.pause_if_ahead()
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
        self._unread_since_s = 0.0
        self.limits.unread.set_held_bytes(self, 0)
        self.flow.resume_reading()
        self.pause_if_ahead()

    # Subclasses handle requests.

    def fail(self, error: ProxyError) -> None:
        """Respond with an error after earlier responses; ignore further input."""
        raise NotImplementedError

    def body_timed_out(self, error: ProxyError) -> None:
        """Reject a request whose body timed out."""
        self.fail(error)

    def drop_open(self) -> None:
        """Drop an incomplete infer request; does nothing for other requests."""

    def ignore_input(self) -> None:
        """Discard all further input of the connection."""
        self.incoming = IGNORED

    def linger(self) -> None:
        """Close the sending side, and discard input until the client has read the response."""
        self.ignore_input()
        now_s = time.monotonic()
        self.timer.check_by(now_s + LINGER_S + self.timeouts.write_s, now_s)
        # A TLS connection cannot be half-closed.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_S, self.transport.close)

    def pause_if_ahead(self) -> None:
        """Pause reading while too many requests of the client have no response.

        Reading is paused too while the client does not read its responses. Some pipelined requests are allowed,
        because a disconnect is not detected while reading is paused.
        """
        if len(self.pipeline) >= _MAX_PIPELINED or self.flow.write_paused:
            self.flow.pause_reading()

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
        if self.incoming in (HEAD, BODY):
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
