"""The time limits of one client's connection, on both ports.

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
from shoal_proxy.guard import Guard
from shoal_proxy.outbox import Outbox
from shoal_schema.metrics import Rejection
from shoal_schema.wire.framing import Meter
from shoal_schema.wire.patience import BUSY_LOOK_S, Lookout

LINGER_S: Final = 2.0
"""Time to discard input after a rejection, so that the client reads the response before a reset."""
_GONE_LOOK_S: Final = 0.01
_MAX_GONE_LOOK_S: Final = 2.0
_MAX_TURNED_AWAY: Final = 32
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


class ConnectedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with time limits; `GuardedProtocol` handles the input."""

    cycle: Any
    pipeline: deque[Any]

    def __init__(self, *args: Any, guard: Guard, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.guard = guard
        self.patience = guard.patience
        self.meter = Meter(guard.max_head_bytes)
        self.lookout = Lookout(self.loop.call_later, time.monotonic, self._look)
        self.incoming = NOTHING
        self.page: Any = None
        """The ASGI cycle that was started last."""
        self.speaks_1_0 = False
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
        self._turned_away = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit or reject the connection (asyncio)."""
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn narrows it, as we do
        if self.scheme == "https":
            # The default limit would hide unread responses in the buffer of TLS.
            self.transport.set_write_buffer_limits(_TLS_UNSENT_BYTES)
        now_s = time.monotonic()
        self.idle_since_s = now_s
        address = self.client[0] if self.client else ""
        guard = self.guard
        if guard.max_per_address and address:
            guard.by_address[address] = guard.by_address.get(address, 0) + 1
            self._counted_at = address
        reason = guard.admit(self, address, now_s)
        if not reason:
            self.lookout.by(now_s + min(self.patience.head_s, self.patience.idle_s), now_s)
            return
        self._turned_away = True
        guard.turned_away += 1
        guard.note("connection_refused", reason)
        if guard.turned_away > _MAX_TURNED_AWAY:
            self.transport.abort()
            return
        self.fail(Overloaded(reason, reason=Rejection.CONNECTIONS, retry_after_s=1))

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection (asyncio)."""
        self.lookout.stop()
        guard = self.guard
        guard.members.discard(self)
        if self._outbox is not None:
            self._outbox.drop()
        guard.unsent.note(self, 0)
        if self._turned_away:
            guard.turned_away -= 1
        if self._counted_at is not None:
            left = guard.by_address[self._counted_at] - 1
            if left:
                guard.by_address[self._counted_at] = left
            else:
                del guard.by_address[self._counted_at]
            self._counted_at = None
        super().connection_lost(exc)

    @property
    def busy(self) -> bool:
        """Whether a request has no response yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def never_asked(self) -> bool:
        """Whether the connection has not had a request yet."""
        return self.cycle is None

    @property
    def resting_since_s(self) -> float | None:
        """Since when the connection is idle; an incomplete head does not count as a request. None if it is not."""
        if self._turned_away or self.busy or self.incoming > HEAD or self.transport.is_closing():
            return None
        return self.idle_since_s

    def leave(self) -> None:
        """Close this idle connection for another one."""
        self.guard.note("idle_connection_closed", f"for a new one, at {self.guard.max_connections}")
        self.transport.abort()

    # The timer.

    def _look(self, now_s: float) -> None:
        due_s = self._due_s(now_s)
        if due_s <= now_s:
            # The limit is extended while a response is read, or a body received, fast enough since the last check.
            moved_bytes, since_s = 0, now_s
            if self._owes_reading:
                left_bytes = self.transport.get_write_buffer_size()
                moved_bytes, since_s = self._unread_bytes - left_bytes, self._unread_since_s
                self._unread_since_s, self._unread_bytes = now_s, left_bytes
            elif self.incoming == BODY:
                moved_bytes, since_s = self.meter.body_bytes - self.marked_bytes, self.began_s
                self.began_s, self.marked_bytes = now_s, self.meter.body_bytes
            if since_s < now_s and self.patience.keeps_up(moved_bytes, now_s - since_s):
                due_s = self._due_s(now_s)
        if due_s > now_s:
            self.lookout.by(due_s, now_s)
        else:
            self._overdue(now_s)

    @property
    def _owes_reading(self) -> bool:
        """Whether the connection waits for the client to read."""
        return self.flow.write_paused or self.transport.is_closing()

    def _due_s(self, now_s: float) -> float:
        """Return when the present state times out, unless bytes are moving."""
        patience = self.patience
        if self._owes_reading:
            if not self._unread_since_s:
                self._unread_since_s, self._unread_bytes = now_s, self.transport.get_write_buffer_size()
            return self._unread_since_s + patience.write_s
        if self.incoming in (HEAD, BODY):
            if self.flow.read_paused:
                self.began_s = now_s  # the proxy has paused reading
            return self.began_s + (patience.head_s if self.incoming == HEAD else patience.body_s)
        if self.busy or self.incoming == IGNORED:
            return now_s + min(BUSY_LOOK_S, patience.idle_s)
        return self.idle_since_s + (patience.head_s if self.cycle is None else patience.idle_s)

    def _overdue(self, now_s: float) -> None:
        """End the request or connection that timed out."""
        if self._owes_reading:
            self.guard.note("answer_not_taken", f"{self.transport.get_write_buffer_size()} bytes are left")
            self.transport.abort()
            return
        self.lookout.by(now_s + self.patience.write_s, now_s)
        if self.incoming == HEAD:
            self.fail(RequestTimeout(f"the request's head was not complete within {self.patience.head_s:g} s"))
        elif self.incoming == BODY:
            self.body_overdue(RequestTimeout(
                f"the request was not complete within {self.patience.body_s:g} s,"
                f" and arrived at less than {self.patience.min_bytes_per_s:g} bytes per second"
            ))  # fmt: skip
        else:
            self.transport.close()

    def write_large(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write a large response, which the client may not read at once."""
        outbox = self._outbox
        if outbox is None:
            outbox = Outbox(self.transport)
            self._outbox = self.transport = outbox
        outbox.blocked = self.flow.write_paused
        outbox.writelines(parts)
        if not self.left_bytes:
            return
        now_s = time.monotonic()
        self.lookout.by(now_s + self.patience.write_s, now_s)
        if self.flow.write_paused:
            # The client reads slowly: do not keep its whole batch in memory for its rows.
            outbox.own()
            self._unread_bytes = self.left_bytes
            self._count_unread()

    @property
    def left_bytes(self) -> int:
        """Return the bytes of its responses that the client has not read."""
        return self.transport.get_write_buffer_size()

    def _count_unread(self) -> None:
        outbox = self._outbox
        self.guard.unsent.note(self, self.left_bytes if outbox is None else outbox.held_bytes)

    def give_way(self) -> None:
        """Close the connection, as unread responses exceed their memory limit."""
        self.guard.note("answer_not_taken", f"{self.left_bytes} bytes are left, and all clients are over the limit")
        self.transport.abort()

    def pause_writing(self) -> None:
        """Start to measure how fast the client reads its response (asyncio)."""
        if self._outbox is not None:
            self._outbox.blocked = True
        if self.flow.write_paused:  # between two pieces of one response
            return
        super().pause_writing()
        now_s = time.monotonic()
        self._unread_since_s, self._unread_bytes = now_s, self.left_bytes
        self.lookout.by(now_s + self.patience.write_s, now_s)
        self.read_no_further()
        self._count_unread()

    def resume_writing(self) -> None:
        """Send the next piece, or note that the client reads its responses (asyncio)."""
        outbox = self._outbox
        if outbox is not None:
            outbox.blocked = False
            outbox.feed()
            if outbox.blocked:
                self._count_unread()
                return
        super().resume_writing()
        self._unread_since_s = 0.0
        self.guard.unsent.note(self, 0)
        self.flow.resume_reading()
        self.read_no_further()

    # Subclasses handle requests.

    def fail(self, error: ProxyError) -> None:
        """Respond with an error after the requests before it, and ignore further input."""
        raise NotImplementedError

    def body_overdue(self, error: ProxyError) -> None:
        """Reject a request whose body timed out."""
        self.fail(error)

    def drop_open(self) -> None:
        """Drop an incomplete request; pages get their response nevertheless."""

    def ignore_input(self) -> None:
        """Discard further input: the next request's start is unknown, or the connection is closing."""
        self.incoming = IGNORED

    def linger(self) -> None:
        """Close the sending side, and discard input until the client has read the response."""
        self.ignore_input()
        now_s = time.monotonic()
        self.lookout.by(now_s + LINGER_S + self.patience.write_s, now_s)
        # A TLS connection cannot be half-closed.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_S, self.transport.close)

    def read_no_further(self) -> None:
        """Pause reading if the client pipelines too many requests, or does not read its responses.

        Some pipelined requests are allowed, because a disconnect is not detected while reading is paused.
        """
        if len(self.pipeline) >= _MAX_PIPELINED or self.flow.write_paused:
            self.flow.pause_reading()

    # Clients that have closed their sending side.

    def eof_received(self) -> bool | None:  # type: ignore[override]  # uvicorn closes the connection
        """Finish the requests received before the client closed its sending side (asyncio)."""
        if self._answers_half_closed():
            return True
        if self._outbox is None or not self._outbox.left_bytes or self.scheme == "https":
            return None
        self.ignore_input()
        self.transport.close()
        return True

    def _answers_half_closed(self) -> bool | None:
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
        if self.speaks_1_0 or (page is not None and page.response_started and not page.response_complete):
            return None
        self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.loop.call_later(_GONE_LOOK_S, self._check_whether_gone, _GONE_LOOK_S)
        return True

    def _check_whether_gone(self, after_s: float) -> None:
        if self.transport.is_closing():
            return
        # Poll reports a hang-up once both directions are closed, by a reset or the other end; a read would not.
        ends = select.poll()
        ends.register(self.transport.get_extra_info("socket").fileno(), 0)
        if ends.poll(0):
            self.transport.abort()
            return
        after_s = min(2 * after_s, _MAX_GONE_LOOK_S)
        self.loop.call_later(after_s, self._check_whether_gone, after_s)
