"""One caller's connection as both ports take it: uvicorn's protocol, held to bounds.

A head, a body and an answer may take so long and be so large; a request ends where its head says and nowhere else,
whatever it offers to upgrade to; what is no request is answered after the requests before it. One timer a connection
looks whether it has been overdrawn, so that a request itself pays for none of this.
"""

import asyncio
import logging
import socket
import time
from collections import deque
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from shoal_proxy.codecs.base import EXECUTED, Reply
from shoal_proxy.codecs.torchserve import TorchServe
from shoal_proxy.codecs.v2 import V2
from shoal_proxy.edge.crowd import make_room
from shoal_proxy.edge.patience import Patience
from shoal_proxy.edge.sampling import Sampler
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
from shoal_proxy.metrics import Metrics

logger = logging.getLogger("shoal.proxy")

LINGER_S: Final = 2.0
"""How long unread bytes are thrown away after a refusal: the caller must read our answer before a reset."""
FIELD_BYTES: Final = 32
"""What each header costs beyond its letters, as HTTP/2 counts: many small ones take memory too."""
_FRAMING: Final = 16
"""Bytes on the wire for each byte of a chunked body, beyond which its framing is an attack: one byte a chunk is 6."""
_BUSY_LOOK_S: Final = 30.0
_STALLED_S: Final = 1.0
"""A look that comes this much late says that we were slow, not the caller: what it sent is still to be read."""
_GONE_LOOK_S: Final = 0.01
_GONE_LOOK_MOST_S: Final = 2.0
_TCP_CLOSE: Final = 7  # <netinet/tcp.h>
_NO_ROOM_PAUSE_S: Final = 1e-5
"""For each connection that was looked at in vain, so that looking takes a few percent of the time at the most."""
_MOST_TURNED_AWAY: Final = 32
"""Callers beyond the limit who are being told so at a time; others are hung up on."""

_PIPELINED: Final = 16
"""Requests that one caller may send ahead of its answers before it is read no further."""

# What is coming in on a connection.
NOTHING: Final = 0
HEAD: Final = 1
BODY: Final = 2
DEAF: Final = 3
"""Whatever comes, it is not heard any more."""


def codec_for(path: str) -> TorchServe | V2:
    """Errors outside the infer routes take the shape of the path's protocol; V1's and V2's are the same."""
    return TorchServe() if path.startswith(("/predictions", "/ping")) else V2()


class Guard:
    """What the connections of one port share: their bounds, and how many there are."""

    def __init__(
        self,
        patience: Patience,
        metrics: Metrics,
        *,
        max_head_bytes: int,
        max_body_bytes: int,
        max_connections: int,
        max_per_address: int = 0,
    ) -> None:
        self.patience = patience
        self.metrics = metrics
        self.max_head_bytes = max_head_bytes
        self.max_body_bytes = max_body_bytes
        self.max_connections = max_connections
        self.max_per_address = max_per_address
        self.members: set[Any] = set()
        """Connections that were taken and are open."""
        self.turned_away = 0
        self.by_address: dict[str, int] = {}
        self._no_room_until_s = 0.0
        self._samplers: dict[str, Sampler] = {}

    def admit(self, newest: Any, address: str, now_s: float) -> str:
        """Take one more connection, or say why not."""
        if self.max_per_address and self.by_address.get(address, 0) > self.max_per_address:
            return f"your address has {self.max_per_address} connections here already"
        if len(self.members) >= self.max_connections and now_s >= self._no_room_until_s:
            leaving = make_room(self.members, len(self.members))
            for each in leaving:
                self.members.discard(each)
                each.leave()
            if not leaving:
                self._no_room_until_s = now_s + _NO_ROOM_PAUSE_S * len(self.members)
        if len(self.members) >= self.max_connections:
            return f"all {self.max_connections} connections are in use"
        self.members.add(newest)
        return ""

    def note(self, event: str, message: str) -> None:
        """Log that a caller was cut off or refused, one line for many."""
        sampler = self._samplers.setdefault(event, Sampler())
        if (unlogged := sampler.take(time.monotonic())) is not None:
            logger.warning("event=%s unlogged=%d last=%r", event, unlogged, message)

    def note_refused(self, error: ProxyError) -> None:
        """Log that a request is not heard to its end; overload is for the metrics alone."""
        if not isinstance(error, Overloaded):
            self.note("request_refused", error.message)


class Refused:
    """What stands in the order of answers for what was no request."""

    __slots__ = ("disconnected", "error", "keep_alive", "message_event", "response_complete", "url")

    def __init__(self, error: ProxyError, url: bytes, message_event: Any) -> None:
        self.error = error
        self.url = url
        self.keep_alive = False
        self.response_complete = False
        self.disconnected = False
        self.message_event = message_event


class NobodyWaits:
    """What uvicorn's protocol sets when a connection closes, where nothing awaits it."""

    def set(self) -> None:
        """Do nothing."""


NOBODY_WAITS: Final = NobodyWaits()


class GuardedProtocol(HttpToolsProtocol):
    """One caller's connection. ``guard`` comes on top of what uvicorn passes."""

    cycle: Any
    pipeline: deque[Any]

    def __init__(self, *args: Any, guard: Guard, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.guard = guard
        self.patience = guard.patience
        self._max_head_bytes = guard.max_head_bytes
        self.url: bytes = b""
        self.incoming = NOTHING
        self._upgrading = False
        """The parser saw an offer to upgrade: the head comes once more, without it."""
        self._advancing = False
        self._half_closed = False
        self._counted_at: str | None = None
        self.page: Any = None
        """The ASGI cycle that was started last."""
        self._speaks_1_0 = False
        self._turned_away = False
        self._messages = 0
        self._head_bytes = 0
        self.body_bytes = 0
        self._wire_bytes = 0
        """Of what is coming in, since the feed after the one in which it began."""
        self._began_s = 0.0
        """Since when ``incoming`` has been what it is; of a body, since when its pace has been counted."""
        self._marked_bytes = 0
        """What had come of it then."""
        self.idle_since_s = 0.0
        self._unread_since_s = 0.0
        """Since when the caller has not taken its answers; 0 while it does."""
        self._unread_bytes = 0
        """Answers given to the transport since then, with what was in it."""
        self._watch: asyncio.TimerHandle | None = None
        self._watch_at_s = 0.0
        self._keep_alive_lines: tuple[Any, bytes] = (None, b"")

    # Connections: how many, and for how long.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection if there is room for it (asyncio)."""
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn narrows it, as we do
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
            self._look_by(now_s + min(self.patience.head_s, self.patience.idle_s), now_s)

    def _turn_away(self, reason: str) -> None:
        guard = self.guard
        self._turned_away = True
        guard.turned_away += 1
        guard.note("connection_refused", reason)
        if guard.turned_away > _MOST_TURNED_AWAY:
            self.transport.abort()
            return
        self.fail(Overloaded(reason, reason="connections", retry_after_s=1))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection (asyncio)."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        guard = self.guard
        guard.members.discard(self)
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

    def _look_by(self, at_s: float, now_s: float) -> None:
        """Look at ``at_s`` at the latest whether something takes too long."""
        if self._watch is not None:
            if self._watch_at_s <= at_s:
                return
            self._watch.cancel()
        self._watch_at_s = at_s
        self._watch = self.loop.call_later(max(0.0, at_s - now_s), self._look)

    def _look(self) -> None:
        self._watch = None
        now_s = time.monotonic()
        if now_s - self._watch_at_s > _STALLED_S:
            self._look_by(now_s + _STALLED_S, now_s)
            return
        due_s = self._due_s(now_s)
        if due_s <= now_s and self._moves(now_s):
            due_s = self._due_s(now_s)
        if due_s > now_s:
            self._look_by(due_s, now_s)
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
                self._began_s = now_s  # it is we who do not read
            return self._began_s + (patience.head_s if self.incoming == HEAD else patience.body_s)
        if self.busy or self.incoming == DEAF:
            return now_s + min(_BUSY_LOOK_S, patience.idle_s)
        return self.idle_since_s + (patience.head_s if self.cycle is None else patience.idle_s)

    def _moves(self, now_s: float) -> bool:
        """Tell whether enough of an answer was taken, or of a body came, since the last look; count from here."""
        if self._owes_reading:
            left_bytes = self.transport.get_write_buffer_size()
            moved_bytes, since_s = self._unread_bytes - left_bytes, self._unread_since_s
            self._unread_since_s, self._unread_bytes = now_s, left_bytes
        elif self.incoming == BODY:
            moved_bytes, since_s = self.body_bytes - self._marked_bytes, self._began_s
            self._began_s, self._marked_bytes = now_s, self.body_bytes
        else:
            return False
        return self.patience.keeps_up(moved_bytes, now_s - since_s)

    def _overdue(self, now_s: float) -> None:
        """End what takes too long, and look again whether that has ended."""
        if self._owes_reading:
            self.guard.note("answer_not_taken", f"{self.transport.get_write_buffer_size()} bytes are left")
            self.transport.abort()
            return
        self._look_by(now_s + self.patience.write_s, now_s)
        if self.incoming == HEAD:
            self.fail(RequestTimeout(f"the request's head did not arrive within {self.patience.head_s:g} s"))
        elif self.incoming == BODY:
            self.body_overdue(RequestTimeout(
                f"the request did not arrive within {self.patience.body_s:g} s,"
                f" nor did it keep coming at {self.patience.min_bytes_per_s:g} bytes a second"
            ))  # fmt: skip
        else:
            self.transport.close()

    def body_overdue(self, error: ProxyError) -> None:
        """Refuse a request whose body does not come."""
        self.fail(error)

    def pause_writing(self) -> None:
        """Start to count how long the caller takes over its answer (asyncio)."""
        super().pause_writing()
        now_s = time.monotonic()
        self._unread_since_s, self._unread_bytes = now_s, self.transport.get_write_buffer_size()
        self._look_by(now_s + self.patience.write_s, now_s)
        self.read_no_further()

    def owe(self, size_bytes: int) -> None:
        """Note another answer behind those that the caller does not take."""
        self._unread_bytes += size_bytes

    def resume_writing(self) -> None:
        """Note that the caller takes its answers (asyncio)."""
        super().resume_writing()
        self._unread_since_s = 0.0
        self.flow.resume_reading()
        self.read_no_further()

    # What comes in.

    def data_received(self, data: bytes) -> None:
        """Parse, within bounds (asyncio)."""
        self.parse(data)

    def parse(self, data: bytes) -> None:
        """Parse; what cannot be parsed is answered in its turn, and nothing after it is heard."""
        before, message = self.incoming, self._messages
        if before == DEAF:
            return
        try:
            self._feed(data)
            if before == self.incoming and message == self._messages:
                self._count_wire(len(data))
        except ProxyError as error:
            if self.incoming != DEAF:
                self.fail(error)
            return
        if self.incoming in (HEAD, BODY):
            now_s = time.monotonic()
            allowed_s = self.patience.head_s if self.incoming == HEAD else self.patience.body_s
            self._look_by(now_s + allowed_s, now_s)

    def _count_wire(self, size_bytes: int) -> None:
        """Bound what the parser takes without a word: a header, an extension of a chunk, that does not end."""
        self._wire_bytes += size_bytes
        limit_bytes = self._max_head_bytes
        if self.incoming == HEAD and self._wire_bytes > limit_bytes:
            raise HeadTooLarge(limit_bytes)
        if self.incoming == BODY and self._wire_bytes > limit_bytes + _FRAMING * self.body_bytes:
            raise InvalidRequest("the body's chunks are all framing")

    def _feed(self, data: bytes) -> None:
        """Parse ``data``; where a head offers to upgrade, give the parser that head again without the offer.

        The parser would hand over what follows such a head as another protocol's, though it is the body. Nobody need
        accept an offer: a server that goes on in HTTP/1.1 has declined it.
        """
        rest: bytes | memoryview = data
        try:
            while True:
                try:
                    self.parser.feed_data(rest)
                    return
                except httptools.HttpParserUpgrade as offer:
                    rest = memoryview(rest)[offer.args[0] :]
                    head = self._head_without_upgrade()
                    self.new_parser()
                    self.parser.feed_data(head)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, ProxyError):
                raise cause from None
            if isinstance(error, httptools.HttpParserCallbackError):
                logger.error("event=request_failed", exc_info=cause)
            raise InvalidRequest(f"this is no HTTP/1.1 request: {error}") from None

    def new_parser(self) -> None:
        """Start to parse afresh: at the beginning of a request, or of the same one again."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _head_without_upgrade(self) -> bytes:
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        for name, value in self.headers:
            kept = value
            if name == b"upgrade":
                continue
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                kept = b", ".join(token for token in tokens if token.lower() != b"upgrade")
            lines.append(b"%b: %b" % (name, kept))
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        """Start a request, without the ASGI scope, which an infer request does not need (httptools)."""
        if self.incoming == DEAF:
            raise InvalidRequest("behind a request that was refused")
        self.incoming = HEAD
        self._messages += 1
        self._upgrading = False
        self._head_bytes = self.body_bytes = self._wire_bytes = self._marked_bytes = 0
        self._began_s = time.monotonic()
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_url(self, url: bytes) -> None:
        """Keep a piece of the target (httptools)."""
        self._head_bytes += len(url)
        if self._head_bytes > self._max_head_bytes:
            raise HeadTooLarge(self._max_head_bytes)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, unless it comes behind the body, where it would contradict the head (httptools)."""
        self._head_bytes += len(name) + len(value) + FIELD_BYTES
        if self._head_bytes > self._max_head_bytes:
            raise HeadTooLarge(self._max_head_bytes)
        if self.incoming == HEAD:
            self.headers.append((name.lower(), value.rstrip()))

    def on_headers_complete(self) -> None:
        """Refuse a head that leaves open where its request ends, and take any other (httptools)."""
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise NotImplementedHere("CONNECT is not taken here")
            self._upgrading = True
            return
        headers = dict(self.headers)
        self._check_framing(headers)
        self.incoming = BODY
        self._wire_bytes = 0
        expects = headers.get(b"expect", b"").lower() == b"100-continue"
        self.expect_100_continue = expects and not self._speaks_1_0
        self.take_head(headers)

    def _check_framing(self, headers: dict[bytes, bytes]) -> None:
        version = self.parser.get_http_version()
        self._speaks_1_0 = version == "1.0"
        if version not in ("1.1", "1.0"):
            raise VersionNotSupported(f"HTTP/{version} is not spoken here: use HTTP/1.1")
        coding = headers.get(b"transfer-encoding")
        if coding is None:
            return
        if version == "1.0":
            raise InvalidRequest("HTTP/1.0 has no Transfer-Encoding")
        if coding.lower() != b"chunked":
            text = coding.decode("latin-1")
            raise NotImplementedHere(f"a body with Transfer-Encoding {text!r} is not taken: send it chunked only")

    def take_head(self, headers: dict[bytes, bytes]) -> None:
        """Begin a request whose head is here and well-formed."""
        try:
            if int(headers.get(b"content-length", b"0")) > self.guard.max_body_bytes:
                raise self._too_large()
            self._headers_for_asgi()
        except (ProxyError, httptools.HttpParserError, UnicodeError) as error:
            self.incoming = HEAD  # uvicorn has not begun it
            if isinstance(error, ProxyError):
                raise
            raise InvalidRequest("the request's target makes no sense") from None

    def _too_large(self) -> ProxyError:
        return BodyTooLarge(f"the body is over the limit of {self.guard.max_body_bytes} bytes")

    def _headers_for_asgi(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        if url.partition(b"://")[0].lower() in (b"http", b"https"):
            url = origin_form(url)
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body, which no page reads (httptools)."""
        self.body_bytes += len(body)
        if self.body_bytes > self.guard.max_body_bytes:
            raise self._too_large()

    def on_message_complete(self) -> None:
        """Note the end of a request (httptools)."""
        if self._upgrading or self.incoming == DEAF:
            return
        self.incoming = NOTHING
        self.message_complete()

    def message_complete(self) -> None:
        """Let the request have its end."""
        super().on_message_complete()

    # What is no request, and the order of answers.

    def fail(self, error: ProxyError) -> None:
        """Answer what is no request, after what was asked before it, and hear no more."""
        open_cycle = self.cycle if self.incoming == BODY else None
        self.hear_no_more()
        if open_cycle is not None and self.fail_open(open_cycle, error):
            return
        self._count_refused(error)
        busy = self.busy
        refused = Refused(error, self.url, NOBODY_WAITS)
        self.cycle = refused
        if busy:
            self.pipeline.appendleft((refused, self.app))
        else:
            self._answer_refused(refused)

    def fail_open(self, cycle: Any, error: ProxyError) -> bool:
        """Refuse the request whose body is coming; tell whether it has an answer of its own all the same."""
        if cycle.response_complete:
            if not self.transport.is_closing():
                self.linger()
            return True
        cycle.keep_alive = False
        cycle.more_body = False
        cycle.message_event.set()
        return True

    def _count_refused(self, error: ProxyError) -> None:
        self.guard.metrics.rejections[error.reason] += 1
        self.guard.note_refused(error)

    def _answer_refused(self, refused: Refused) -> None:
        refused.response_complete = True
        if refused.disconnected or self.transport.is_closing():
            return
        reply = codec_for(refused.url.decode("latin-1")).error(refused.error)
        reply.lines += EXECUTED[False]
        if refused.error.retry_after_s is not None:
            reply.lines += b"retry-after: %d\r\n" % refused.error.retry_after_s
        self.transport.write(b"".join((self.reply_head(reply, reply.lines + b"connection: close\r\n"), *reply.body)))
        self.linger()

    def reply_head(self, reply: Reply, lines: bytes) -> bytes:
        """Return status line and headers of ``reply``, with these ``lines`` instead of its own."""
        known, default_lines = self._keep_alive_lines
        if known is not self.server_state.default_headers:  # uvicorn makes them anew each second
            known = self.server_state.default_headers
            default_lines = b"".join(b"%b: %b\r\n" % header for header in known)
            self._keep_alive_lines = known, default_lines
        return b"%b%bcontent-type: %b\r\ncontent-length: %d\r\n%b\r\n" % (
            STATUS_LINE[reply.status], default_lines, reply.content_type, reply.size_bytes, lines,
        )  # fmt: skip

    def hear_no_more(self) -> None:
        """Throw away what still comes: where it would begin is not known, or does not matter any more."""
        self.incoming = DEAF

    def linger(self) -> None:
        """Say that no more comes, and drop what the caller still sends until it has seen our answer."""
        self.hear_no_more()
        now_s = time.monotonic()
        self._look_by(now_s + LINGER_S + self.patience.write_s, now_s)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_S, self.transport.close)

    def on_response_complete(self) -> None:
        """Go on to the connection's next request, in a loop and not in a recursion (uvicorn)."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if not self.pipeline:
            self.idle_since_s = time.monotonic()
        elif not self._advancing:
            self._advancing = True
            try:
                self._advance()
            finally:
                self._advancing = False
        if self.pipeline or self.flow.write_paused:
            self.read_no_further()

    def read_no_further(self) -> None:
        """Stop reading a caller that asks ahead without end or does not take its answers.

        A few requests may come ahead of their turn, because while reading is paused nobody sees the caller hang up.
        """
        if len(self.pipeline) >= _PIPELINED or self.flow.write_paused:
            self.flow.pause_reading()

    def _advance(self) -> None:
        while self.pipeline and not self.transport.is_closing():
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
            if not cycle.response_complete:
                return

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Start whichever request is next on this connection (uvicorn, for pipelined requests)."""
        if isinstance(cycle, Refused):
            self._answer_refused(cycle)
        else:
            self.page = cycle
            super()._start_asgi_task(cycle, app)

    def _unset_keepalive_if_required(self) -> None:
        """Leave the timer alone: it looks for itself whether the connection was idle (uvicorn)."""

    # Callers that have said all they have to say.

    def eof_received(self) -> bool | None:  # type: ignore[override]  # uvicorn closes whatever is under way
        """Answer what was asked before the caller said that no more comes (asyncio).

        Whether it still listens cannot be seen: a caller that has gone looks the same. So it is sent what every client
        must pass over, and the machine of one that has gone answers with a reset.
        """
        if self._half_closed:
            return True
        if self.incoming in (HEAD, BODY):
            self.drop_open()
        if not self.busy or self.transport.is_closing() or self.incoming == DEAF:
            return None
        self._half_closed = True
        self.cycle.keep_alive = False
        self.hear_no_more()
        return True if self._probe() else None

    def drop_open(self) -> None:
        """Forget the request that will not come whole; a page is answered all the same."""

    def _probe(self) -> bool:
        """Send what must be passed over; tell whether that can be done: not to HTTP/1.0, nor amid an answer."""
        page = self.page
        if self._speaks_1_0 or (page is not None and page.response_started and not page.response_complete):
            return False
        self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        sock = self.transport.get_extra_info("socket")
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            self.loop.call_later(_GONE_LOOK_S, self._look_whether_gone, _GONE_LOOK_S)
        return True

    def _look_whether_gone(self, after_s: float) -> None:
        if self.transport.is_closing():
            return
        info = self.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        if info[0] == _TCP_CLOSE:
            self.transport.abort()
            return
        after_s = min(2 * after_s, _GONE_LOOK_MOST_S)
        self.loop.call_later(after_s, self._look_whether_gone, after_s)


def origin_form(target: bytes) -> bytes:
    """Return the path and query of an absolute target."""
    parsed: Any = httptools.parse_url(target)  # its types leave out that a part may be None
    path: bytes = parsed.path or b"/"
    return path if parsed.query is None else path + b"?" + parsed.query
