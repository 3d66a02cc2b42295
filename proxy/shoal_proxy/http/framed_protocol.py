"""Errors and bodies of the requests that ASGI applications of the proxy serve."""

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from shoal_proxy.codecs.base import EXECUTED, HttpResponse
from shoal_proxy.codecs.protocols import codec_for
from shoal_proxy.errors import (
    BodyTooLarge,
    HeadTooLarge,
    InvalidRequest,
    NotImplementedHere,
    ProxyError,
    RequestTimeout,
    VersionNotSupported,
)
from shoal_proxy.http.connection_limits import ConnectionLimits
from shoal_proxy.http.timed_protocol import TimedProtocol
from shoal_schema.http.connection_state import HEAD
from shoal_schema.http.framing import FramingError
from shoal_schema.http.rejected_request import RejectedRequest
from shoal_schema.interfaces.protocols import HTTP, expand

ERROR_BY_STATUS: Final[dict[int, type[ProxyError]]] = {
    error.status: error
    for error in (InvalidRequest, RequestTimeout, HeadTooLarge, NotImplementedHere, VersionNotSupported)
}
"""The error for each status of a `FramingError`."""

_READ: Final = frozenset(path.encode() for page in HTTP.pages if page.reads_body for path in expand(page.path))
"""Paths whose handlers read their bodies."""


class FramedProtocol(TimedProtocol):
    """HTTP connection of one client, within the ``limits`` of its port."""

    rejections = (ProxyError, FramingError)

    def __init__(self, *args: Any, limits: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(*args, limits=limits, **kwargs)
        self._keep_alive_lines: tuple[Any, bytes] = (None, b"")

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
