"""uvicorn's HTTP connection with limits of size and time, and with responses in order.

A request ends where its head states, even if it offers an upgrade. Malformed input gets an error response after the
responses to earlier requests, and all later input is ignored. One timer per connection checks all time limits, so that
requests do not pay for timers of their own.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shoal_schema.http.connection_state import BODY, HEAD, IGNORED, NOTHING, ConnectionState
from shoal_schema.http.framing import (
    FramingError,
    HeadMeter,
    check_head,
    check_repeated,
    check_upgrade,
    without_upgrade,
)
from shoal_schema.http.rejected_request import RejectedRequest
from shoal_schema.http.timeouts import DeadlineTimer, TransferTimeouts

LINGER_S: Final = 2.0
"""How long input is discarded after a rejection, so that the client reads the response before a reset."""
_MAX_PIPELINED: Final = 16
"""Most requests that a client may send ahead of its responses before reading is paused."""

logger = logging.getLogger(__name__)


class ServerConnection(HttpToolsProtocol):
    """HTTP connection of one client. Subclasses implement `error_response`, and handle requests in `take_head`."""

    cycle: Any
    pipeline: deque[Any]
    scope: Any
    rejections: tuple[type[Exception], ...] = (FramingError,)
    """Exceptions of the parser's callbacks that reject the request."""

    def __init__(self, *args: Any, timeouts: TransferTimeouts, max_head_bytes: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.timeouts = timeouts
        self.meter = HeadMeter(max_head_bytes)
        self.state = ConnectionState(timeouts, time.monotonic())
        self.timer = DeadlineTimer(self.loop.call_later, time.monotonic, self._check_timeouts)
        self.url: bytes = b""
        self.is_http_1_0 = False
        self._upgrading = False
        """Whether the head offers an upgrade, so that it is parsed again without the offer."""
        self._advancing = False
        self._held_back = False
        """Whether the next request waits until the client has read the responses before it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the time limit of the first head (asyncio)."""
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn narrows it, as we do
        now_s = time.monotonic()
        self.state.idle_since_s = now_s
        self.timer.check_by(now_s + min(self.timeouts.head_s, self.timeouts.idle_s), now_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of the connection's time limits (asyncio)."""
        self.timer.stop()
        super().connection_lost(exc)

    @property
    def busy(self) -> bool:
        """Whether a request has no response yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def awaits_reader(self) -> bool:
        """Whether the connection waits for the client to read."""
        return self.flow.write_paused or self.transport.is_closing()

    @property
    def unread_bytes(self) -> int:
        """Return the number of response bytes that the client has not read."""
        return self.transport.get_write_buffer_size()

    # Time limits.

    def _check_timeouts(self, now_s: float) -> None:
        due_s = self.state.check(
            now_s,
            body_bytes=self.meter.body_bytes,
            unread_bytes=self.unread_bytes if self.awaits_reader else None,
            paused=self.flow.read_paused,
            busy=self.busy,
        )
        if due_s > now_s:
            self.timer.check_by(due_s, now_s)
        else:
            self._time_out(now_s)

    def _time_out(self, now_s: float) -> None:
        """End the request or connection whose time limit has passed."""
        if self.awaits_reader:
            # The client does not read, so it would not read an error either.
            self.note_stalled_reader()
            self.transport.abort()
            return
        timeouts = self.timeouts
        self.timer.check_by(now_s + timeouts.write_s, now_s)
        if self.state.phase == HEAD:
            self.fail(FramingError(408, f"the request's head was not complete within {timeouts.head_s:g} s"))
        elif self.state.phase == BODY:
            self.fail(FramingError(
                408,
                f"the request was not complete within {timeouts.body_s:g} s,"
                f" and slower than {timeouts.min_bytes_per_s:g} bytes per second",
            ))  # fmt: skip
        else:
            self.transport.close()

    def note_stalled_reader(self) -> None:
        """Do nothing: a subclass may log that the client does not read its response."""

    def note_all_sent(self) -> None:
        """Do nothing: a subclass may count the responses that clients have not read."""

    def pause_writing(self) -> None:
        """Start to measure how fast the client reads its response (asyncio)."""
        super().pause_writing()
        now_s = time.monotonic()
        self.state.begin_unread(self.unread_bytes, now_s)
        self.timer.check_by(now_s + self.timeouts.write_s, now_s)
        self.pause_if_ahead()

    def resume_writing(self) -> None:
        """Continue with the next request, as the client reads again (asyncio)."""
        super().resume_writing()
        self.state.unread_since_s = 0.0
        self.note_all_sent()
        self.flow.resume_reading()
        self.pause_if_ahead()
        if self._held_back and not self.flow.write_paused:
            self._held_back = False
            self._continue()

    def pause_if_ahead(self) -> None:
        """Pause reading while too many requests of the client have no response.

        Reading is paused too while the client does not read its responses. Some pipelined requests are allowed,
        because a disconnect is not detected while reading is paused.
        """
        if len(self.pipeline) >= _MAX_PIPELINED or self.flow.write_paused:
            self.flow.pause_reading()

    # Framing of requests.

    def data_received(self, data: bytes) -> None:
        """Parse the input within the limits (asyncio)."""
        self.parse(data)

    def parse(self, data: bytes) -> None:
        """Parse input; respond to malformed input with an error in its turn."""
        state = self.state
        before, requests = state.phase, state.requests
        if before == IGNORED:
            return
        try:
            self._feed(data)
            # The parser reported nothing, such as half a header, so the meter counts the bytes here.
            if before == state.phase and requests == state.requests and before != NOTHING:
                self.meter.unreported(len(data), in_body=before == BODY)
        except self.rejections as error:
            if state.phase != IGNORED:
                self.fail(error)
            return
        if state.phase in (HEAD, BODY):
            now_s = time.monotonic()
            self.timer.check_by(now_s + state.allowed_s(), now_s)

    def _feed(self, data: bytes) -> None:
        """Parse ``data``, and ignore offers to upgrade the protocol.

        The parser stops after a head with such an offer. That head is parsed again without the offer.
        """
        rest: bytes | memoryview = data
        try:
            while True:
                try:
                    self.parser.feed_data(rest)
                    return
                except httptools.HttpParserUpgrade as offer:
                    # The parser stops behind the head.
                    rest = memoryview(rest)[offer.args[0] :]
                    method, version = self.parser.get_method(), self.parser.get_http_version()
                    head = without_upgrade(method, self.url, version, self.headers)
                    self.new_parser()
                    self.parser.feed_data(head)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if cause is not None and isinstance(cause, self.rejections):
                raise cause from None
            if isinstance(error, httptools.HttpParserCallbackError):
                logger.error("event=request_failed", exc_info=cause)
            raise FramingError(400, f"malformed HTTP/1.1 request: {error}") from None

    def new_parser(self) -> None:
        """Replace the HTTP parser, for the next request or the same one again."""
        self.parser = httptools.HttpRequestParser(self)
        # Input after a request with `connection: close` is ignored instead of an error.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def on_message_begin(self) -> None:
        """Start a request without an ASGI scope (httptools)."""
        if self.state.phase == IGNORED:
            raise FramingError(400, "data after a rejected request")
        self.state.begin_head(time.monotonic())
        self.meter.begin()
        self._upgrading = False
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_url(self, url: bytes) -> None:
        """Store a piece of the request target (httptools)."""
        self.meter.target(len(url))
        self.url = self.url + url  # mypyc does not support += on attributes of classes that are not compiled

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; ignore trailers, which could contradict it (httptools)."""
        self.meter.field(name, value)
        if self.state.phase == HEAD:
            self.headers.append((name.lower(), value.rstrip()))

    def on_headers_complete(self) -> None:
        """Check the framing of the head, and begin the request (httptools)."""
        if self.parser.should_upgrade():
            check_upgrade(self.parser.get_method())
            self._upgrading = True
            return
        headers = dict(self.headers)
        version = self.parser.get_http_version()
        self.is_http_1_0 = version == "1.0"
        check_head(version, headers)
        # A dict drops repeated names.
        if len(headers) < len(self.headers):
            self.check_repeated()
        self.state.phase = BODY
        self.meter.begin_body()
        expects = headers.get(b"expect", b"").lower() == b"100-continue"
        self.expect_100_continue = expects and not self.is_http_1_0
        self.take_head(headers)

    def check_repeated(self) -> None:
        """Reject a head with two values of a header that may occur only once."""
        check_repeated(self.headers)

    def take_head(self, headers: dict[bytes, bytes]) -> None:
        """Begin a request with a well-formed head."""
        self.begin_asgi({})

    def begin_asgi(self, extra: Mapping[str, Any]) -> None:
        """Begin a request of the ASGI application, with ``extra`` keys in its scope."""
        # Replay the head to uvicorn, which builds the scope.
        url, fields, expects = self.url, self.headers, self.expect_100_continue
        try:
            if url.partition(b"://")[0].lower() in (b"http", b"https"):
                url = origin_form(url)
            super().on_message_begin()
            self.url, self.expect_100_continue = url, expects
            self.headers.extend(fields)
            self.scope.update(extra)
            super().on_headers_complete()
        except (httptools.HttpParserError, UnicodeError):
            self.state.phase = HEAD  # uvicorn has not begun the request
            raise FramingError(400, "malformed request target") from None

    def on_message_complete(self) -> None:
        """Record the end of a request (httptools)."""
        if self._upgrading or self.state.phase == IGNORED:
            return
        self.state.phase = NOTHING
        self.message_complete()

    def message_complete(self) -> None:
        """Pass the end of the body to the request's handler."""
        super().on_message_complete()

    # Rejected requests, and the order of responses.

    def ignore_input(self) -> None:
        """Discard all further input of the connection."""
        self.state.phase = IGNORED

    def fail(self, error: Exception) -> None:
        """Respond with an error after earlier responses; ignore further input."""
        open_cycle = self.cycle if self.state.phase == BODY else None
        self.ignore_input()
        if open_cycle is not None and self.fail_open(open_cycle, error):
            return
        self.note_rejection(error)
        busy = self.busy
        rejected = RejectedRequest(error, self.url)
        self.cycle = rejected
        if busy:
            # Responses keep the order of the requests.
            self.pipeline.appendleft((rejected, self.app))
        else:
            self._respond_rejected(rejected)

    def note_rejection(self, error: Exception) -> None:
        """Do nothing: a subclass may count and log rejected requests."""

    def fail_open(self, cycle: Any, error: Exception) -> bool:
        """Reject an incomplete request.

        Returns: True if ``error`` needs no other response.
        """
        if not cycle.response_complete:
            return False
        if not self.transport.is_closing():
            self.linger()
        return True

    def _respond_rejected(self, rejected: RejectedRequest) -> None:
        rejected.response_complete = True
        if rejected.disconnected or self.transport.is_closing():
            return
        self.transport.write(self.error_response(rejected))
        self.linger()

    def error_response(self, rejected: RejectedRequest) -> bytes:
        """Return the response to a rejected request, which closes the connection."""
        raise NotImplementedError

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

    def on_response_complete(self) -> None:
        """Continue with the next request in a loop, without recursion (uvicorn)."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if not self.pipeline:
            self.state.begin_idle(time.monotonic())
        elif not self._advancing:
            self._continue()
        if self.pipeline or self.flow.write_paused:
            self.pause_if_ahead()

    def _continue(self) -> None:
        self._advancing = True
        try:
            while self.pipeline and not self.transport.is_closing():
                if self.flow.write_paused:
                    self._held_back = True
                    return
                cycle, app = self.pipeline.pop()
                self._start_asgi_task(cycle, app)
                if not cycle.response_complete:
                    return
        finally:
            self._advancing = False

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Start the connection's next request (uvicorn, for pipelined requests)."""
        if isinstance(cycle, RejectedRequest):
            self._respond_rejected(cycle)
        else:
            super()._start_asgi_task(cycle, app)

    def _unset_keepalive_if_required(self) -> None:
        """Do nothing: the connection has its own timer (uvicorn)."""


def origin_form(target: bytes) -> bytes:
    """Return the path and query of a request target in absolute form."""
    parsed: Any = httptools.parse_url(target)  # its stubs omit that parts may be None
    path: bytes = parsed.path or b"/"
    return path if parsed.query is None else path + b"?" + parsed.query
