"""Request framing and the order of responses on one HTTP connection.

A request ends where its head states, even if it offers an upgrade. Malformed input gets an error response after the
responses to earlier requests, and all later input is ignored.
"""

import logging
import time
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from shoal_proxy.codecs.base import EXECUTED, HttpResponse
from shoal_proxy.codecs.protocols import codec_for
from shoal_proxy.errors import (
    BodyTooLarge,
    HeadTooLarge,
    InvalidRequest,
    NotImplementedHere,
    ProxyError,
    VersionNotSupported,
)
from shoal_proxy.http.connection_limits import NO_EVENT, ConnectionLimits, RejectedRequest
from shoal_proxy.http.timed_protocol import BODY, HEAD, IGNORED, NOTHING, TimedProtocol
from shoal_schema.wire.framing import (
    FramingError,
    check_head,
    check_repeated,
    check_upgrade,
    join_lists,
    without_upgrade,
)

logger = logging.getLogger(__name__)

ERROR_BY_STATUS: Final[dict[int, type[ProxyError]]] = {
    error.status: error for error in (InvalidRequest, HeadTooLarge, NotImplementedHere, VersionNotSupported)
}
"""The error for each status of a `FramingError`."""


class FramedProtocol(TimedProtocol):
    """HTTP connection of one client, within the ``limits`` of its port."""

    def __init__(self, *args: Any, limits: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(*args, limits=limits, **kwargs)
        self.url: bytes = b""
        self._upgrading = False
        """Whether the head offers an upgrade, so that it is parsed again without the offer."""
        self._advancing = False
        self._held_back = False
        """Whether the next request waits until the client has read the responses before it."""
        self._messages = 0
        self._keep_alive_lines: tuple[Any, bytes] = (None, b"")

    def data_received(self, data: bytes) -> None:
        """Parse the input within the limits (asyncio)."""
        self.parse(data)

    def parse(self, data: bytes) -> None:
        """Parse input; respond to malformed input with an error in its turn."""
        before, message = self.incoming, self._messages
        if before == IGNORED:
            return
        try:
            self._feed(data)
            # The parser reported nothing, so the meter counts the bytes here.
            if before == self.incoming and message == self._messages and before != NOTHING:
                self.meter.unreported(len(data), in_body=before == BODY)
        except (ProxyError, FramingError) as error:
            if self.incoming != IGNORED:
                self.fail(error if isinstance(error, ProxyError) else ERROR_BY_STATUS[error.status](error.message))
            return
        if self.incoming in (HEAD, BODY):
            now_s = time.monotonic()
            allowed_s = self.timeouts.head_s if self.incoming == HEAD else self.timeouts.body_s
            self.timer.check_by(now_s + allowed_s, now_s)

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
            if isinstance(cause, ProxyError | FramingError):
                raise cause from None
            if isinstance(error, httptools.HttpParserCallbackError):
                logger.error("event=request_failed", exc_info=cause)
            raise InvalidRequest(f"malformed HTTP/1.1 request: {error}") from None

    def new_parser(self) -> None:
        """Replace the HTTP parser, for the next request or the same one again."""
        self.parser = httptools.HttpRequestParser(self)
        # Input after a request with `connection: close` is ignored instead of an error.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def on_message_begin(self) -> None:
        """Start a request without an ASGI scope (httptools)."""
        if self.incoming == IGNORED:
            raise InvalidRequest("data after a rejected request")
        self.incoming = HEAD
        self._messages += 1
        self._upgrading = False
        self.meter.begin()
        self.marked_bytes = 0
        self.began_s = time.monotonic()
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_url(self, url: bytes) -> None:
        """Store a piece of the request target (httptools)."""
        self.meter.target(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; ignore trailers, which could contradict it (httptools)."""
        self.meter.field(name, value)
        if self.incoming == HEAD:
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
            headers = join_lists(self.headers)
        self.incoming = BODY
        self.meter.begin_body()
        expects = headers.get(b"expect", b"").lower() == b"100-continue"
        self.expect_100_continue = expects and not self.is_http_1_0
        self.take_head(headers)

    def check_repeated(self) -> None:
        """Reject a head with two values of a header that may occur only once."""
        check_repeated(self.headers)

    def take_head(self, headers: dict[bytes, bytes]) -> None:
        """Begin a request with a well-formed head."""
        try:
            if int(headers.get(b"content-length", b"0")) > self.limits.max_body_bytes:
                raise self._too_large()
            # Replay the head to uvicorn, which builds the ASGI scope.
            url, fields, expects = self.url, self.headers, self.expect_100_continue
            if url.partition(b"://")[0].lower() in (b"http", b"https"):
                url = origin_form(url)
            super().on_message_begin()
            self.url, self.expect_100_continue = url, expects
            self.headers.extend(fields)
            super().on_headers_complete()
        except (ProxyError, httptools.HttpParserError, UnicodeError) as error:
            self.incoming = HEAD  # uvicorn has not begun the request
            if isinstance(error, ProxyError):
                raise
            raise InvalidRequest("malformed request target") from None

    def _too_large(self) -> ProxyError:
        return BodyTooLarge(f"the body is over the limit of {self.limits.max_body_bytes} bytes")

    def on_body(self, body: bytes) -> None:
        """Count a piece of the body; drop it if no handler reads it (httptools)."""
        self.meter.body_bytes += len(body)
        if self.meter.body_bytes > self.limits.max_body_bytes:
            raise self._too_large()
        if self.url in self.limits.read_paths:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Record the end of a request (httptools)."""
        if self._upgrading or self.incoming == IGNORED:
            return
        self.incoming = NOTHING
        self.message_complete()

    def message_complete(self) -> None:
        """Pass the end of the body to the request's handler."""
        super().on_message_complete()

    # Refused requests, and the order of responses.

    def fail(self, error: ProxyError) -> None:
        """Respond with an error after earlier responses; ignore further input."""
        open_cycle = self.cycle if self.incoming == BODY else None
        self.ignore_input()
        if open_cycle is not None and self.fail_open(open_cycle, error):
            return
        self.limits.metrics.rejected(error.reason)
        self.limits.log_rejected_request(error)
        busy = self.busy
        rejected = RejectedRequest(error, self.url, NO_EVENT)
        self.cycle = rejected
        if busy:
            # Responses keep the order of the requests.
            self.pipeline.appendleft((rejected, self.app))
        else:
            self._respond_rejected(rejected)

    def fail_open(self, cycle: Any, error: ProxyError) -> bool:
        """Reject an incomplete request.

        Returns: True if ``error`` needs no other response.
        """
        if cycle.response_complete:
            if not self.transport.is_closing():
                self.linger()
            return True
        cycle.keep_alive = False
        cycle.more_body = False
        cycle.message_event.set()
        return True

    def _respond_rejected(self, rejected: RejectedRequest) -> None:
        rejected.response_complete = True
        if rejected.disconnected or self.transport.is_closing():
            return
        response = codec_for(rejected.url.decode("latin-1")).error(rejected.error)
        response.lines += EXECUTED[False]
        if rejected.error.retry_after_s is not None:
            response.lines += b"retry-after: %d\r\n" % rejected.error.retry_after_s
        self.transport.write(
            b"".join((self.response_head(response, response.lines + b"connection: close\r\n"), *response.body))
        )
        self.note_rejected_response(rejected, response)
        self.linger()

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

    def on_response_complete(self) -> None:
        """Continue with the next request in a loop, without recursion (uvicorn)."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if not self.pipeline:
            self.idle_since_s = time.monotonic()
        elif not self._advancing:
            self._continue()
        if self.pipeline or self.flow.write_paused:
            self.pause_if_ahead()

    def resume_writing(self) -> None:
        """Continue with the next request, as the client reads again (asyncio)."""
        super().resume_writing()
        if self._held_back and not self.flow.write_paused:
            self._held_back = False
            self._continue()

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
            self.page = cycle
            super()._start_asgi_task(cycle, app)

    def _unset_keepalive_if_required(self) -> None:
        """Do nothing: `TimedProtocol` has its own timer (uvicorn)."""


def origin_form(target: bytes) -> bytes:
    """Return the path and query of a request target in absolute form."""
    parsed: Any = httptools.parse_url(target)  # its stubs omit that parts may be None
    path: bytes = parsed.path or b"/"
    return path if parsed.query is None else path + b"?" + parsed.query
