"""Limits that all connections of one port share, and placeholders for rejected requests."""

import logging
import time
from typing import Any, Final

from shoal_proxy.dispatch.unread import UnreadResponses
from shoal_proxy.errors import Overloaded, ProxyError
from shoal_proxy.http.idle_connections import connections_to_close
from shoal_proxy.observe.log_sampling import LogSampler
from shoal_proxy.observe.metrics import Metrics
from shoal_schema.wire.timeouts import TransferTimeouts

logger = logging.getLogger(__name__)

_NO_ROOM_PAUSE_S: Final = 1e-5
"""Pause per connection checked without success, so that the search takes a few percent of the time at most."""


class ConnectionLimits:
    """Limits of one port's connections, and the set of open connections."""

    def __init__(  # noqa: PLR0913 (bounds, each with its name)
        self,
        timeouts: TransferTimeouts,
        metrics: Metrics,
        *,
        max_head_bytes: int,
        max_body_bytes: int,
        max_connections: int,
        max_per_address: int = 0,
        max_age_s: float = 0.0,
        unread: UnreadResponses | None = None,
        closes_busy: bool = False,
        read_paths: frozenset[bytes] = frozenset(),
    ) -> None:
        self.timeouts = timeouts
        self.metrics = metrics
        self.max_head_bytes = max_head_bytes
        self.max_body_bytes = max_body_bytes
        self.max_connections = max_connections
        self.max_per_address = max_per_address
        self.max_age_s = max_age_s
        """Age after which a connection is closed with its next response; 0: never."""
        self.unread = unread or UnreadResponses()
        """The parts of responses that clients have not read."""
        self.closes_busy = closes_busy
        """Whether a busy connection is closed for a new one at the limit, if none is idle."""
        self.read_paths = read_paths
        """Paths, other than infer routes, whose handlers read the body of a request; other bodies are dropped."""
        self.members: set[Any] = set()
        """The admitted open connections."""
        self.rejected_connections = 0
        self.by_address: dict[str, int] = {}
        self._no_room_until_s = 0.0
        self._samplers: dict[str, LogSampler] = {}

    def admit(self, newest: Any, address: str, now_s: float) -> str:
        """Admit a new connection, or return the reason for rejecting it."""
        if self.max_per_address and self.by_address.get(address, 0) > self.max_per_address:
            return f"this address already has {self.max_per_address} connections"
        # At the limit, idle connections are closed for the new one.
        if len(self.members) >= self.max_connections and now_s >= self._no_room_until_s:
            leaving = connections_to_close(self.members, len(self.members))
            if not leaving and self.closes_busy:
                # First those that wait for their client, then the oldest request.
                leaving = [min(self.members, key=lambda each: (not each.awaits_client, each.began_s))]
            for each in leaving:
                self.members.discard(each)
                each.leave()
            if not leaving:
                # The search is linear in the number of connections.
                self._no_room_until_s = now_s + _NO_ROOM_PAUSE_S * len(self.members)
        if len(self.members) >= self.max_connections:
            return f"all {self.max_connections} connections are in use"
        self.members.add(newest)
        return ""

    def log_rejection(self, event: str, message: str) -> None:
        """Log the rejection of a connection or request, rate-limited per event."""
        # One per event, so that frequent ones do not hide others.
        sampler = self._samplers.setdefault(event, LogSampler())
        if (unlogged := sampler.take(time.monotonic())) is not None:
            logger.warning("event=%s unlogged=%d last=%r", event, unlogged, message)

    def log_rejected_request(self, error: ProxyError) -> None:
        """Log a rejected request; rejections due to overload are not logged."""
        if not isinstance(error, Overloaded):
            self.log_rejection("request_refused", error.message)


class RejectedRequest:
    """Placeholder for a rejected request, which keeps responses in order."""

    __slots__ = ("disconnected", "error", "keep_alive", "message_event", "response_complete", "url")

    def __init__(self, error: ProxyError, url: bytes, message_event: Any) -> None:
        self.error = error
        self.url = url
        self.keep_alive = False
        self.response_complete = False
        self.disconnected = False
        self.message_event = message_event


class NoEvent:
    """Stand-in for uvicorn's disconnect event, where no task awaits it."""

    def set(self) -> None:
        """Do nothing, as no task awaits the event."""


NO_EVENT: Final = NoEvent()
