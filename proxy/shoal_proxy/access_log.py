"""The access log: which requests it has a line for, and what that tells of one.

What callers sent is told as it came, up to a length, and quoted where it is written: nothing of it ends a line, or
begins a field.
"""

import random
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal_proxy.access.gate import Caller
from shoal_proxy.batching.pending import Pending
from shoal_proxy.timing import batch_rows
from shoal_proxy.tracer import GONE
from shoal_proxy.tracing.sampling import Share
from shoal_schema.headers import REQUEST_ID
from shoal_schema.log_lines import word

RING: Final = 4096
"""Lines that wait to be written; more are not kept."""
_REQUEST_ID: Final = REQUEST_ID.encode()
_MAX_PATH, _MAX_TEXT = 512, 128
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_NOT_ALLOWED: Final = 405


class Entry:
    """What is told of one request, from its head until it is answered. Times are monotonic (s).

    Args:
        method: of HTTP; empty where no head was understood.
        path: with the query, as the caller wrote it.
        protocol: the codec's name, or "http" for pages.
        headers: with names in lower case.
        client: the address it comes from; empty for a socket of this machine.
    """

    __slots__ = (
        "batch_rows", "began_s", "bytes_in", "bytes_out", "caller", "client", "ended_s", "method", "path", "protocol",
        "queued_s", "request_id", "rows", "status", "user_agent",
    )  # fmt: skip

    def __init__(self, method: bytes, path: bytes, protocol: str, headers: Mapping[bytes, bytes], client: str) -> None:
        self.method = method[:_MAX_TEXT]
        self.path = path[:_MAX_PATH]
        self.protocol = protocol
        self.request_id = headers.get(_REQUEST_ID, b"")[:_MAX_TEXT]
        self.user_agent = headers.get(b"user-agent", b"")[:_MAX_TEXT]
        self.client = client[:_MAX_TEXT]
        self.began_s = self.ended_s = time.monotonic()
        self.status = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.rows: int | None = None
        self.batch_rows: int | None = None
        self.queued_s: float | None = None
        self.caller = ""

    def fields(self) -> dict[str, Any]:
        """Return what a line tells, in its order; what is not known is left out."""
        told = {
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
            "caller": self.caller,
            REQUEST_ID: _text(self.request_id),
            "user_agent": _text(self.user_agent),
        }
        return {name: value for name, value in told.items() if value is not None and value != ""}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


class Line(NamedTuple):
    """A line as `logging` takes it."""

    template: str
    arguments: tuple[Any, ...]


def line_of(entry: Entry) -> Line:
    """Return the line of a request that was answered: texts quoted, so that a caller's end in their field."""
    fields = entry.fields()
    values = (word(value) if isinstance(value, str) else value for value in fields.values())
    return Line(" ".join(["event=access", *(f"{name}=%s" for name in fields)]), tuple(values))


class AccessLog:
    """Decides who is told of, and keeps what is told until the writer takes it.

    Args:
        percent: of the requests, above 0.
    """

    def __init__(self, percent: float) -> None:
        self._share = Share(percent / 100)
        self._ring: deque[Entry] = deque()
        self.dropped = 0

    def begin(
        self, method: bytes, path: bytes, protocol: str, headers: Mapping[bytes, bytes], client: str
    ) -> Entry | None:
        """Return what to note a request in that is told of."""
        if not self._share.takes(random.getrandbits(64)):
            return None
        return Entry(method, path, protocol, headers, client)

    def end(
        self,
        entry: Entry,
        status: int,
        bytes_out: int = 0,
        pending: Pending | None = None,
        caller: Caller | None = None,
    ) -> None:
        """Keep what is told of a request, once; ``status`` is that of its answer, or `GONE`."""
        if entry.status:
            return
        entry.status, entry.bytes_out, entry.ended_s = status, bytes_out, time.monotonic()
        if pending is not None:
            waits = not (pending.taken or pending.queued_s)
            entry.rows, entry.queued_s = pending.rows, entry.ended_s - pending.arrived_s if waits else pending.queued_s
            entry.batch_rows = batch_rows(pending.timing)
        if caller is not None:
            entry.caller = caller.name[:_MAX_TEXT]
        if len(self._ring) < RING:
            self._ring.append(entry)
        else:
            self.dropped += 1

    def take(self) -> list[Entry]:
        """Return all that wait, and forget them; from any thread."""
        return [self._ring.popleft() for _ in range(len(self._ring))]


def told_of(pages: ASGIApp, log: AccessLog) -> ASGIApp:
    """Return ``pages`` with a line for each request that they answer, but for those that only read."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        entry = None if scope["type"] != "http" else log.begin(*_asked(scope))
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
            if scope["method"] not in _READS or status == _NOT_ALLOWED:
                log.end(entry, status or GONE, bytes_out)

    return answer


def _asked(scope: Scope) -> tuple[bytes, bytes, str, Mapping[bytes, bytes], str]:
    query = scope["query_string"]
    path = scope["raw_path"] + (b"?" + query if query else b"")
    return scope["method"].encode(), path, "http", dict(scope["headers"]), host_of(scope["client"])


def host_of(client: tuple[str, int] | None) -> str:
    """Return the address of who connected, without its port; empty for a socket of this machine."""
    return client[0] if client else ""
