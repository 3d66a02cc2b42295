"""The access log: sampling of requests, and the fields of a log line.

Text from clients is truncated and quoted, so that it can neither end a line nor begin a field.
"""

import random
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal_proxy.access.control import AuthenticatedClient
from shoal_proxy.batching.pending import PendingRequest
from shoal_proxy.observe.timing import batch_rows
from shoal_proxy.observe.tracer import GONE
from shoal_proxy.tracing.sampling import ShareSampler
from shoal_schema.interfaces.headers import REQUEST_ID
from shoal_schema.interfaces.protocols import SHADOW_LABEL
from shoal_schema.process.log_lines import word

RING: Final = 4096
"""Most entries that wait to be written; further ones are dropped."""
_REQUEST_ID: Final = REQUEST_ID.encode()
_MAX_PATH, _MAX_TEXT = 512, 128
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_NOT_ALLOWED: Final = 405


class AccessLogEntry:
    """Access log entry of one request; times are in monotonic seconds.

    Args:
        method: HTTP method; empty if the head is malformed.
        path: path and query, as the client sent them.
        protocol: the codec's name, or "http" for requests other than inference.
        headers: request headers by lower-case name.
        client: the client's address; empty for a Unix socket.
    """

    __slots__ = (
        "batch_rows", "began_s", "bytes_in", "bytes_out", "client", "client_name", "ended_s", "method", "path",
        "protocol", "queued_s", "request_id", "revision", "rows", "status", "user_agent",
    )  # fmt: skip

    def __init__(self, method: bytes, path: bytes, protocol: str, headers: Mapping[bytes, bytes], client: str) -> None:
        # Truncated, so that clients cannot fill the log with one request.
        self.method = method[:_MAX_TEXT]
        self.path = path[:_MAX_PATH]
        self.protocol = protocol
        self.request_id = headers.get(_REQUEST_ID, b"")[:_MAX_TEXT]
        self.user_agent = headers.get(b"user-agent", b"")[:_MAX_TEXT]
        self.client = client[:_MAX_TEXT]
        self.began_s = self.ended_s = time.monotonic()
        # Set by `AccessLog.end`, once.
        self.status = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.rows: int | None = None
        self.batch_rows: int | None = None
        self.queued_s: float | None = None
        self.client_name = ""
        self.revision = b""

    def fields(self) -> dict[str, Any]:
        """Return the fields of the log line in order, without empty ones."""
        fields = {
            "method": _text(self.method),
            "path": _text(self.path),
            "protocol": self.protocol,
            "status": self.status,
            "ms": round(1000 * (self.ended_s - self.began_s), 2),
            "queue_ms": None if self.queued_s is None else round(1000 * self.queued_s, 2),
            "rows": self.rows,
            "batch_rows": self.batch_rows,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "client": self.client,
            "caller": self.client_name,
            "revision": _text(self.revision),
            REQUEST_ID: _text(self.request_id),
            "user_agent": _text(self.user_agent),
        }
        return {name: value for name, value in fields.items() if value is not None and value != ""}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


class AccessLogLine(NamedTuple):
    """A log line as `logging` takes it: a template and its arguments."""

    template: str
    arguments: tuple[Any, ...]


def format_entry(entry: AccessLogEntry) -> AccessLogLine:
    """Return the log line of a finished request, with quoted texts."""
    fields = entry.fields()
    # `word` quotes texts, so that none can end its field.
    values = (word(value) if isinstance(value, str) else value for value in fields.values())
    return AccessLogLine(" ".join(["event=access", *(f"{name}=%s" for name in fields)]), tuple(values))


class AccessLog:
    """Samples requests, and buffers finished entries until they are written.

    Args:
        percent: share of requests to log, above 0.
    """

    def __init__(self, percent: float) -> None:
        self._share = ShareSampler(percent / 100)
        self._ring: deque[AccessLogEntry] = deque()
        self.dropped = 0

    def begin(
        self, method: bytes, path: bytes, protocol: str, headers: Mapping[bytes, bytes], client: str
    ) -> AccessLogEntry | None:
        """Return a log entry for a request; None if the request is not sampled."""
        if not self._share.takes(random.getrandbits(64)):
            return None
        return AccessLogEntry(method, path, protocol, headers, client)

    def end(
        self,
        entry: AccessLogEntry,
        status: int,
        bytes_out: int = 0,
        pending: PendingRequest | None = None,
        authenticated: AuthenticatedClient | None = None,
    ) -> None:
        """Record a request's response status, or `GONE`, and buffer its entry."""
        if entry.status:
            return
        entry.status, entry.bytes_out, entry.ended_s = status, bytes_out, time.monotonic()
        if pending is not None:
            # A request that was never taken from the queue waited until its end.
            waits = not (pending.dequeued_rows or pending.queued_s)
            entry.rows, entry.queued_s = pending.rows, entry.ended_s - pending.arrived_s if waits else pending.queued_s
            entry.batch_rows = batch_rows(pending.timing)
            entry.revision = pending.revision
            if pending.shadow:
                entry.protocol = SHADOW_LABEL
        if authenticated is not None:
            entry.client_name = authenticated.name[:_MAX_TEXT]
        # The writer's thread empties the ring. When it is slow, entries are dropped rather than requests delayed.
        if len(self._ring) < RING:
            self._ring.append(entry)
        else:
            self.dropped += 1

    def take(self) -> list[AccessLogEntry]:
        """Remove and return all finished entries. May be called from any thread."""
        return [self._ring.popleft() for _ in range(len(self._ring))]


def with_access_log(pages: ASGIApp, log: AccessLog) -> ASGIApp:
    """Wrap an ASGI application with an access log.

    Requests that only read, such as probes, are not logged, except with status 405.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await pages(scope, receive, send)
            return
        query = scope["query_string"]
        path = scope["raw_path"] + (b"?" + query if query else b"")
        entry = log.begin(scope["method"].encode(), path, "http", dict(scope["headers"]), client_host(scope["client"]))
        if entry is None:
            await pages(scope, receive, send)
            return
        status = bytes_out = 0
        entry.bytes_in = int(dict(scope["headers"]).get(b"content-length", b"0"))

        async def note(message: Message) -> None:
            nonlocal status, bytes_out
            status = message.get("status", status)
            bytes_out += len(message.get("body", b""))
            await send(message)

        try:
            await pages(scope, receive, note)
        finally:
            # Reads of pages (probes, metadata) are not logged.
            if scope["method"] not in _READS or status == _NOT_ALLOWED:
                log.end(entry, status or GONE, bytes_out)

    return answer


def client_host(client: tuple[str, int] | None) -> str:
    """Return a client's address without its port; empty for a Unix socket."""
    return client[0] if client else ""
