"""uvicorn's HTTP protocol with limits of size and time, for a runtime that listens on a network.

The connection is shared with the proxy (`shoal_schema.http`).
"""

import asyncio
import resource
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from shoal_runtime.codecs.response import encode_error
from shoal_schema.http.connection_state import HEAD
from shoal_schema.http.framing import FramingError
from shoal_schema.http.rejected_request import RejectedRequest
from shoal_schema.http.server_connection import ServerConnection
from shoal_schema.http.timeouts import TransferTimeouts

if TYPE_CHECKING:
    import uvicorn
    from uvicorn.server import ServerState

MAX_CONNECTIONS: Final = 1024
"""A proxy needs a few; at the limit, idle ones are closed for new ones."""


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


class LimitedProtocol(ServerConnection):
    """HTTP protocol of one connection that enforces ``bounds``."""

    def __init__(self, config: "uvicorn.Config", state: "ServerState", bounds: ConnectionBounds) -> None:
        loop = asyncio.get_running_loop()
        limits: Any = {"timeouts": bounds.timeouts, "max_head_bytes": bounds.max_head_bytes}
        super().__init__(config, state, {}, loop, **limits)
        self._bounds = bounds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection; at the maximum, close the connection that has been idle longest."""
        super().connection_made(transport)
        if len(self.connections) > self._bounds.max_connections:
            others: Any = self.connections - {self}
            idle = [each for each in others if each.idle]
            if not idle:
                self.transport.abort()
                return
            oldest = min(idle, key=attrgetter("rank"))
            self.connections.discard(oldest)
            oldest.transport.abort()

    @property
    def idle(self) -> bool:
        """Whether no request is in progress; an incomplete head does not count as a request."""
        return not self.busy and self.state.phase <= HEAD

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort key of idle connections: the lowest is closed first.

        Connections that have not had a response precede all others, then the longest idle time comes first.
        """
        return not self.state.is_unused, self.state.idle_since_s

    def on_body(self, body: bytes) -> None:
        """Count and forward a piece of the body, even if the application does not read it."""
        self.count_body(len(body))
        super().on_body(body)

    def count_body(self, size_bytes: int) -> None:
        """Count bytes of the body, and reject a body that exceeds its limit."""
        self.meter.body_bytes += size_bytes
        # While a request is in progress, the application itself rejects a body that is too large.
        if self.meter.body_bytes > self._bounds.max_body_bytes and self.cycle.response_complete:
            raise FramingError(413, f"the body exceeds {self._bounds.max_body_bytes} bytes")

    def fail_open(self, cycle: Any, error: Exception) -> bool:
        """Drop an incomplete request; ``error`` is its response.

        Returns: True if the request has its response already.
        """
        if super().fail_open(cycle, error):
            return True
        cycle.disconnected = True
        cycle.message_event.set()
        if self.pipeline:  # the request waits for an earlier response, as the error does then
            self.pipeline.popleft()
        else:
            cycle.response_complete = True
        return False

    def error_response(self, rejected: RejectedRequest) -> bytes:
        """Return the response to a rejected request."""
        error: Any = rejected.error
        body = encode_error(error.message, "BAD_REQUEST")
        head = b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        return head % (STATUS_LINE[error.status], len(body)) + body
