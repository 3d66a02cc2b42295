"""One caller's connection as both ports take it: how long each of its doings may last, and when it is over.

One timer looks whether the connection has been overdrawn, so that a request itself pays for none of this.
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
"""How long unread bytes are thrown away after a refusal: the caller must read our answer before a reset."""
_GONE_LOOK_S: Final = 0.01
_MAX_GONE_LOOK_S: Final = 2.0
_MAX_TURNED_AWAY: Final = 32
"""Callers beyond the limit who are being told so at a time; others are hung up on."""
_TLS_UNSENT_BYTES: Final = 65536
"""From here on the part that the TLS of a connection keeps counts as not taken, as it does without TLS."""
_MAX_PIPELINED: Final = 16
"""Requests that one caller may send ahead of its answers before it is read no further."""

# What is coming in on a connection.
NOTHING: Final = 0
HEAD: Final = 1
BODY: Final = 2
DEAF: Final = 3
"""Whatever comes, it is not heard any more."""


class ConnectedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a limit on its time; what comes in is `GuardedProtocol`'s business."""

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
        """Since when ``incoming`` has been what it is; of a body, since when its pace has been counted."""
        self.marked_bytes = 0
        """What had come of it then."""
        self.idle_since_s = 0.0
        self._unread_since_s = 0.0
        """Since when the caller has not taken its answers; 0 while it does."""
        self._unread_bytes = 0
        """What it had not taken then."""
        self._outbox: Outbox | None = None
        """Stands before the transport once there was a large answer."""
        self._half_closed = False
        self._counted_at: str | None = None
        self._turned_away = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection if there is room for it (asyncio)."""
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn narrows it, as we do
        if self.scheme == "https":
            self.transport.set_write_buffer_limits(_TLS_UNSENT_BYTES)
        now_s = time.monotonic()
        self.idle_since_s = now_s
        address = self.client[0] if self.client else ""
        guard = self.guard
        if guard.max_per_address and address:
            guard.by_address[address] = guard.by_address.get(address, 0) + 1
            self._counted_at = address
        reason = guard.admit(self, address, now_s)
        if reason:
            self._turn_away(reason)
        else:
            self.lookout.by(now_s + min(self.patience.head_s, self.patience.idle_s), now_s)

    def _turn_away(self, reason: str) -> None:
        guard = self.guard
        self._turned_away = True
        guard.turned_away += 1
        guard.note("connection_refused", reason)
        if guard.turned_away > _MAX_TURNED_AWAY:
            self.transport.abort()
            return
        self.fail(Overloaded(reason, reason=Rejection.CONNECTIONS, retry_after_s=1))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection (asyncio)."""
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
        """Whether a request has come that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def never_asked(self) -> bool:
        """Whether no request has come yet."""
        return self.cycle is None

    @property
    def resting_since_s(self) -> float | None:
        """Since when nothing is under way; a head that is not whole is nothing yet."""
        if self._turned_away or self.busy or self.incoming > HEAD or self.transport.is_closing():
            return None
        return self.idle_since_s

    def leave(self) -> None:
        """Make room for another connection."""
        self.guard.note("idle_connection_closed", f"for a new one, at {self.guard.max_connections}")
        self.transport.abort()

    # The one timer.

    def _look(self, now_s: float) -> None:
        due_s = self._due_s(now_s)
        if due_s <= now_s and self._moves(now_s):
            due_s = self._due_s(now_s)
        if due_s > now_s:
            self.lookout.by(due_s, now_s)
        else:
            self._overdue(now_s)

    @property
    def _owes_reading(self) -> bool:
        """Whether it is for the caller to take what it was sent."""
        return self.flow.write_paused or self.transport.is_closing()

    def _due_s(self, now_s: float) -> float:
        """Return when what is under way has taken too long, unless bytes have moved."""
        patience = self.patience
        if self._owes_reading:
            if not self._unread_since_s:
                self._unread_since_s, self._unread_bytes = now_s, self.transport.get_write_buffer_size()
            return self._unread_since_s + patience.write_s
        if self.incoming in (HEAD, BODY):
            if self.flow.read_paused:
                self.began_s = now_s  # it is we who do not read
            return self.began_s + (patience.head_s if self.incoming == HEAD else patience.body_s)
        if self.busy or self.incoming == DEAF:
            return now_s + min(BUSY_LOOK_S, patience.idle_s)
        return self.idle_since_s + (patience.head_s if self.cycle is None else patience.idle_s)

    def _moves(self, now_s: float) -> bool:
        """Return whether enough of an answer was taken, or of a body came, since the last look; count from here."""
        if self._owes_reading:
            left_bytes = self.transport.get_write_buffer_size()
            moved_bytes, since_s = self._unread_bytes - left_bytes, self._unread_since_s
            self._unread_since_s, self._unread_bytes = now_s, left_bytes
        elif self.incoming == BODY:
            moved_bytes, since_s = self.meter.body_bytes - self.marked_bytes, self.began_s
            self.began_s, self.marked_bytes = now_s, self.meter.body_bytes
        else:
            return False
        return self.patience.keeps_up(moved_bytes, now_s - since_s)

    def _overdue(self, now_s: float) -> None:
        """End what takes too long, and look again whether that has ended."""
        if self._owes_reading:
            self.guard.note("answer_not_taken", f"{self.transport.get_write_buffer_size()} bytes are left")
            self.transport.abort()
            return
        self.lookout.by(now_s + self.patience.write_s, now_s)
        if self.incoming == HEAD:
            self.fail(RequestTimeout(f"the request's head did not arrive within {self.patience.head_s:g} s"))
        elif self.incoming == BODY:
            self.body_overdue(RequestTimeout(
                f"the request did not arrive within {self.patience.body_s:g} s,"
                f" nor did it keep coming at {self.patience.min_bytes_per_s:g} bytes a second"
            ))  # fmt: skip
        else:
            self.transport.close()

    def write_large(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write what the client may not take at once."""
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
            outbox.own()
            self._unread_bytes = self.left_bytes
            self._count_unread()

    @property
    def left_bytes(self) -> int:
        """Return how many bytes of its answers the client has not taken."""
        return self.transport.get_write_buffer_size()

    def _count_unread(self) -> None:
        outbox = self._outbox
        self.guard.unsent.note(self, self.left_bytes if outbox is None else outbox.held_bytes)

    def give_way(self) -> None:
        """End the connection, as answers that are not taken keep too much memory."""
        self.guard.note("answer_not_taken", f"{self.left_bytes} bytes are left, and too many of all clients")
        self.transport.abort()

    def pause_writing(self) -> None:
        """Start to count how long the caller takes over its answer (asyncio)."""
        if self._outbox is not None:
            self._outbox.blocked = True
        if self.flow.write_paused:  # between two pieces of one answer
            return
        super().pause_writing()
        now_s = time.monotonic()
        self._unread_since_s, self._unread_bytes = now_s, self.left_bytes
        self.lookout.by(now_s + self.patience.write_s, now_s)
        self.read_no_further()
        self._count_unread()

    def resume_writing(self) -> None:
        """Give the caller the next piece, or note that it takes its answers (asyncio)."""
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

    # What a connection does with its requests is for those who read them.

    def fail(self, error: ProxyError) -> None:
        """Answer what is not a request, after what was asked before it, and hear no more."""
        raise NotImplementedError

    def body_overdue(self, error: ProxyError) -> None:
        """Refuse a request whose body does not come."""
        self.fail(error)

    def drop_open(self) -> None:
        """Forget the request that will not come whole; a page is answered all the same."""

    def hear_no_more(self) -> None:
        """Throw away what still comes: where it would begin is not known, or does not matter any more."""
        self.incoming = DEAF

    def linger(self) -> None:
        """Say that no more comes, and drop what the caller still sends until it has seen our answer."""
        self.hear_no_more()
        now_s = time.monotonic()
        self.lookout.by(now_s + LINGER_S + self.patience.write_s, now_s)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_S, self.transport.close)

    def read_no_further(self) -> None:
        """Stop reading a caller that asks ahead without end or does not take its answers.

        A few requests may come ahead of their turn, because while reading is paused nobody sees the caller hang up.
        """
        if len(self.pipeline) >= _MAX_PIPELINED or self.flow.write_paused:
            self.flow.pause_reading()

    # Callers that have said all they have to say.

    def eof_received(self) -> bool | None:  # type: ignore[override]  # uvicorn closes whatever is under way
        """Answer what was asked before the caller said that no more comes (asyncio)."""
        if self._answers_half_closed():
            return True
        if self._outbox is None or not self._outbox.left_bytes or self.scheme == "https":
            return None
        self.hear_no_more()
        self.transport.close()
        return True

    def _answers_half_closed(self) -> bool | None:
        """Return whether the connection stays open for the answers that are under way.

        Whether it still listens cannot be seen: a caller that has gone looks the same. So it is sent what every client
        must pass over, and the machine of one that has gone answers with a reset.
        """
        if self._half_closed:
            return True
        if self.scheme == "https":  # asyncio knows no half of a connection of TLS
            return None
        if self.incoming in (HEAD, BODY):
            self.drop_open()
        if not self.busy or self.transport.is_closing():
            return None
        self._half_closed = True
        self.cycle.keep_alive = False
        self.hear_no_more()
        return True if self._probe() else None

    def _probe(self) -> bool:
        """Send what must be passed over; return whether that can be done: not to HTTP/1.0, nor amid an answer."""
        page = self.page
        if self.speaks_1_0 or (page is not None and page.response_started and not page.response_complete):
            return False
        self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.loop.call_later(_GONE_LOOK_S, self._look_whether_gone, _GONE_LOOK_S)
        return True

    def _look_whether_gone(self, after_s: float) -> None:
        if self.transport.is_closing():
            return
        # Both halves are gone: a reset has come, or the socket's other end was closed. No read would tell any more.
        ends = select.poll()
        ends.register(self.transport.get_extra_info("socket").fileno(), 0)
        if ends.poll(0):
            self.transport.abort()
            return
        after_s = min(2 * after_s, _MAX_GONE_LOOK_S)
        self.loop.call_later(after_s, self._look_whether_gone, after_s)
