"""HTTP on one connection, held to bounds: uvicorn's protocol where the runtime listens on a network.

A head, a body and an answer may be so large and take so long, and a request ends where its head says, whatever it
offers to upgrade to. One timer a connection looks whether it has been overdrawn.
"""

import asyncio
import logging
import resource
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from shoal_runtime.codecs.response import encode_error
from shoal_runtime.errors import RuntimeFault

if TYPE_CHECKING:
    import uvicorn
    from uvicorn.server import ServerState

FIELD_BYTES: Final = 32
"""What each header costs beyond its letters, as HTTP/2 counts."""
MOST_CONNECTIONS: Final = 1024
"""A proxy needs a few; others are closed for new ones while they are idle."""
STALLED_S: Final = 1.0
"""A look that comes this much late says that we were slow, not the caller."""
_FRAMING: Final = 16
_BUSY_LOOK_S: Final = 30.0
_LINGER_S: Final = 2.0

logger = logging.getLogger(__name__)


class Bounds(NamedTuple):
    """What one connection may take."""

    max_body_bytes: int
    max_head_bytes: int = 32 * 1024
    head_timeout_s: float = 30.0
    """For a head, from the connection's start or from its own first byte."""
    transfer_timeout_s: float = 60.0
    """For a body that comes, or an answer that is taken, more slowly than ``min_bytes_per_s``."""
    min_bytes_per_s: int = 16 * 1024
    idle_timeout_s: float = 24 * 3600.0
    """Our proxy keeps a connection as long as it may send, so idle ones are hardly closed from here."""
    max_connections: int = MOST_CONNECTIONS


def most_connections() -> int:
    """Return how many connections descriptors allow, half of them being the model's."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(MOST_CONNECTIONS, soft // 2))


class Unacceptable(RuntimeFault):
    """What came is no request that can be answered any further."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class GuardedProtocol(HttpToolsProtocol):
    """One connection, within ``bounds``."""

    cycle: Any

    def __init__(self, config: "uvicorn.Config", state: "ServerState", bounds: Bounds) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self._bounds = bounds
        self.moved_bytes = 0
        """Of the body that is coming, as the wire has it once a large one is read into place."""
        self._in_head = self._in_body = self._deaf = self._upgrading = False
        self._messages = 0
        self._head_bytes = self._fed_bytes = self._marked_bytes = 0
        self._since_s = time.monotonic()
        """Since when the connection has been doing what it does; of bytes that move, since when they are counted."""
        self._idle_since_s = self._since_s
        self._watch: asyncio.TimerHandle | None = None
        self._watch_at_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection; at the limit the one that has been idle longest goes for it."""
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn narrows it, as we do
        now_s = time.monotonic()
        if len(self.connections) > self._bounds.max_connections and not self._make_room():
            self.transport.abort()
            return
        self._look_by(now_s + min(self._bounds.head_timeout_s, self._bounds.idle_timeout_s), now_s)

    def _make_room(self) -> bool:
        others: Any = self.connections - {self}
        idle = [each for each in others if each.idle]
        if not idle:
            return False
        oldest = min(idle, key=_rank)
        self.connections.discard(oldest)
        oldest.transport.abort()
        return True

    @property
    def idle(self) -> bool:
        """Whether nothing is under way; a head that is not whole is nothing yet."""
        return not (self._busy or self._in_body)

    @property
    def rank(self) -> tuple[bool, float]:
        """The order in which idle connections go: those that never asked first, of either kind the oldest."""
        return self.cycle is not None, self._idle_since_s

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def _look_by(self, at_s: float, now_s: float) -> None:
        if self._watch is not None:
            if self._watch_at_s <= at_s:
                return
            self._watch.cancel()
        self._watch_at_s = at_s
        self._watch = self.loop.call_later(max(0.0, at_s - now_s), self._look)

    def _look(self) -> None:
        self._watch = None
        now_s = time.monotonic()
        if now_s - self._watch_at_s > STALLED_S:
            self._look_by(now_s + STALLED_S, now_s)
            return
        due_s = self._due_s(now_s)
        if due_s <= now_s and self._keeps_up(now_s):
            due_s = self._due_s(now_s)
        if due_s > now_s:
            self._look_by(due_s, now_s)
        else:
            self._overdue(now_s)

    @property
    def _unread(self) -> bool:
        return self.flow.write_paused or self.transport.is_closing()

    def _due_s(self, now_s: float) -> float:
        bounds = self._bounds
        if self._unread:
            return self._since_s + bounds.transfer_timeout_s
        if self._in_head or self._in_body:
            if self.flow.read_paused:
                self._since_s = now_s  # it is we who do not read
            return self._since_s + (bounds.head_timeout_s if self._in_head else bounds.transfer_timeout_s)
        if self._busy or self._deaf:
            return now_s + min(_BUSY_LOOK_S, bounds.idle_timeout_s)
        return self._idle_since_s + (bounds.head_timeout_s if self.cycle is None else bounds.idle_timeout_s)

    def _keeps_up(self, now_s: float) -> bool:
        """Tell whether enough bytes have moved since the last look, and count from here."""
        if self._unread:
            left_bytes = self.transport.get_write_buffer_size()
            moved_bytes, self._marked_bytes = self._marked_bytes - left_bytes, left_bytes
        elif self._in_body:
            moved_bytes, self._marked_bytes = self.moved_bytes - self._marked_bytes, self.moved_bytes
        else:
            return False
        elapsed_s, self._since_s = now_s - self._since_s, now_s
        return moved_bytes >= self._bounds.min_bytes_per_s * elapsed_s

    def _overdue(self, now_s: float) -> None:
        if self._unread:
            self.transport.abort()
            return
        self._count_from(now_s)
        self._look_by(now_s + self._bounds.transfer_timeout_s, now_s)
        if self._in_head or self._in_body:
            self._fail(Unacceptable(408, "the request did not arrive in time"))
        else:
            self.transport.close()

    def _count_from(self, now_s: float) -> None:
        self._since_s, self._marked_bytes = now_s, self.transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        """Start to count how long the answer takes to be taken."""
        super().pause_writing()
        now_s = time.monotonic()
        self._count_from(now_s)
        self._look_by(now_s + self._bounds.transfer_timeout_s, now_s)

    def data_received(self, data: bytes) -> None:
        """Parse, within bounds."""
        if self._deaf:
            return
        message, in_head = self._messages, self._in_head
        try:
            self._feed(data)
            if message == self._messages and in_head == self._in_head:
                self._count_fed(len(data))
        except Unacceptable as error:
            self._fail(error)
            return
        if self._in_head or self._in_body:
            now_s = time.monotonic()
            bounds = self._bounds
            self._look_by(now_s + (bounds.head_timeout_s if self._in_head else bounds.transfer_timeout_s), now_s)

    def _count_fed(self, size_bytes: int) -> None:
        """Bound what the parser takes without a word: a header, an extension of a chunk, that does not end."""
        self._fed_bytes += size_bytes
        if self._in_head and self._fed_bytes > self._bounds.max_head_bytes:
            raise self._head_too_large()
        if self._in_body and self._fed_bytes > self._bounds.max_head_bytes + _FRAMING * self.moved_bytes:
            raise Unacceptable(400, "the body's chunks are all framing")

    def _head_too_large(self) -> Unacceptable:
        return Unacceptable(431, f"the request's head is over the limit of {self._bounds.max_head_bytes} bytes")

    def _feed(self, data: bytes) -> None:
        """Parse `data`; a head that offers to upgrade is given to the parser once more without the offer.

        The parser would hand over the body of such a request as another protocol's.
        """
        rest = memoryview(data)
        try:
            while True:
                try:
                    self.parser.feed_data(rest)
                    return
                except httptools.HttpParserUpgrade as offer:
                    rest = rest[offer.args[0] :]
                    head = self._head_without_upgrade()
                    self.parser = httptools.HttpRequestParser(self)
                    self.parser.feed_data(head)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, Unacceptable):
                raise error.__context__ from None
            raise Unacceptable(400, f"this is no HTTP/1.1 request: {error}") from None

    def _head_without_upgrade(self) -> bytes:
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            tokens = [token.strip() for token in value.split(b",")] if name == b"connection" else [value]
            if name != b"upgrade":
                lines.append(name + b": " + b", ".join(token for token in tokens if token.lower() != b"upgrade"))
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        """Start a request."""
        self._in_head, self._upgrading = True, False
        self._messages += 1
        self._head_bytes = self._fed_bytes = self._marked_bytes = self.moved_bytes = 0
        self._since_s = time.monotonic()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Keep a piece of the target."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, unless it comes behind the body."""
        self._count_head(len(name) + len(value) + FIELD_BYTES)
        if self._in_head:
            super().on_header(name, value.rstrip())

    def _count_head(self, size_bytes: int) -> None:
        self._head_bytes += size_bytes
        if self._head_bytes > self._bounds.max_head_bytes:
            raise self._head_too_large()

    def on_headers_complete(self) -> None:
        """Refuse a head that leaves open where its request ends, and take any other."""
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise Unacceptable(501, "CONNECT is not taken here")
            self._upgrading = True
            return
        headers = dict(self.headers)
        self._check_framing(headers)
        self.take_head(headers)
        super().on_headers_complete()
        self._in_head, self._in_body = False, True
        self._fed_bytes = 0

    def take_head(self, headers: Mapping[bytes, bytes]) -> None:
        """Prepare for the body of a request whose head is here and well-formed."""

    def _check_framing(self, headers: Mapping[bytes, bytes]) -> None:
        version = self.parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise Unacceptable(505, f"HTTP/{version} is not spoken here: use HTTP/1.1")
        coding = headers.get(b"transfer-encoding")
        if coding is not None and version == "1.0":
            raise Unacceptable(400, "HTTP/1.0 has no Transfer-Encoding")
        if coding is not None and coding.lower() != b"chunked":
            raise Unacceptable(501, "a body with a Transfer-Encoding other than chunked is not taken")

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body; one that no page waits for ends as well."""
        self.count_body(len(body))
        super().on_body(body)

    def count_body(self, size_bytes: int) -> None:
        """Count bytes of the body, within its limit."""
        self.moved_bytes += size_bytes
        # The application refuses longer ones itself, in its own words, where it reads them.
        if self.moved_bytes > self._bounds.max_body_bytes and self.cycle.response_complete:
            raise Unacceptable(413, f"the body is longer than {self._bounds.max_body_bytes} bytes")

    def on_message_complete(self) -> None:
        """Note the end of a request."""
        if self._upgrading:
            return
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Note since when the connection has been idle; the one timer sees to the rest."""
        super().on_response_complete()
        self._unset_keepalive_if_required()
        self._idle_since_s = time.monotonic()

    def _fail(self, error: Unacceptable) -> None:
        """Answer what is no request, unless another one's answer is due, and hear no more."""
        self._deaf = True
        in_body, self._in_head, self._in_body = self._in_body, False, False
        if self._busy:
            self.cycle.keep_alive = False
            if in_body:
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            else:
                return
        if in_body and self.cycle.response_complete:
            self.transport.close()
            return
        body = encode_error(str(error), "BAD_REQUEST")
        head = b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (STATUS_LINE[error.status], len(body)) + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_S, self.transport.close)


def _rank(connection: GuardedProtocol) -> tuple[bool, float]:
    return connection.rank
