"""HTTP GETs of the proxies' load, over persistent connections.

Pods are untrusted: a response may be malformed, endless or missing. Anything but a complete, uncompressed and short
response counts as no data of that pod. All pods are read concurrently, so a slow one delays no other service.

The scraper uses asyncio protocols and httptools, as the proxy does. At a thousand short requests a second, aiohttp's
client would need several times the CPU time.
"""

import asyncio
import logging
import resource
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import httptools

from shoal_operator.manifests.environment import ADMIN_PORT
from shoal_operator.scaling.reading import Reading, read_load
from shoal_operator.scaling.service_cache import Replica
from shoal_schema.interfaces.headers import INSTANCE
from shoal_schema.interfaces.load import MAX_BYTES, PATH

logger = logging.getLogger(__name__)

_TIMEOUT_S = 1.5
INSTANCE_HEADER = INSTANCE
"""The uid of the pod that responds. A proxy without a configured uid does not send it, and is trusted."""
MAX_BODY_BYTES = MAX_BYTES
_MAX_RESPONSE_BYTES = MAX_BYTES + 8192
"""Body and head."""
_IDLE_S = 30.0
"""Connections without a request for this long are closed: their pod is gone."""


class ScrapeOutcome(StrEnum):
    """The outcome of one request to a pod."""

    READ = "read"
    UNREACHABLE = "unreachable"
    """No connection, or no response in time."""
    REFUSED = "refused"
    """An invalid response: a redirect, another content type, too long, or a value out of range."""


def allow_connections() -> None:
    """Raise the soft limit of open files, which limits the connections to pods."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class InvalidResponseError(Exception):
    """An invalid response; the message states the reason."""


class Scraper:
    """Client that reads a JSON document from many pods concurrently.

    Args:
        port: admin port of the pods.
        count: called with the outcome of each request.
        timeout_s: time limit (s) for all requests of one call together.
        path: URL path of the document.
        decode: decodes a response's body; raises an exception for an invalid body.
    """

    def __init__(
        self,
        port: int = ADMIN_PORT,
        count: Callable[[ScrapeOutcome], object] = lambda _: None,
        timeout_s: float = _TIMEOUT_S,
        path: str = PATH,
        decode: Callable[[bytes], Any] = read_load,
    ) -> None:
        self._path = path
        self._decode = decode
        self._port = port
        self._count = count
        self._timeout_s = timeout_s
        self._kept: dict[Replica, _Connection] = {}
        self._swept_s = 0.0

    async def close(self) -> None:
        """Close all connections to pods."""
        for connection in self._kept.values():
            connection.abort()
        self._kept.clear()

    async def read(self, replicas: Sequence[Replica]) -> list[Reading]:
        """Return the load of each pod of one service, in the same order.

        The reading of a pod without a valid response is empty.
        """
        found = await self.documents(replicas)
        return [Reading(load, invalid=outcome is ScrapeOutcome.REFUSED) for outcome, load in found]

    async def documents(self, replicas: Sequence[Replica]) -> list[tuple[ScrapeOutcome, Any]]:
        """Return, per pod, the request's outcome and the document or None."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        # Close connections to pods that have not been read for a while.
        if now_s - self._swept_s >= _IDLE_S:
            self._swept_s = now_s
            for replica in [each for each, kept in self._kept.items() if now_s - kept.sent_s > _IDLE_S]:
                self._kept.pop(replica).abort()
        pending: list[asyncio.Future[Any]] = []
        for replica in replicas:
            kept = self._kept.get(replica)
            reuse = kept is not None and kept.idle
            pending.append(kept.send(loop) if kept and reuse else loop.create_task(self._connect(loop, replica)))
        # One deadline for all pods; those without a response are cancelled.
        try:
            if pending:
                await asyncio.wait(pending, timeout=self._timeout_s)
        finally:
            for response in pending:
                response.cancel()
        return [self._outcome(replica, response) for replica, response in zip(replicas, pending, strict=True)]

    async def _connect(self, loop: asyncio.AbstractEventLoop, replica: Replica) -> Any:
        host = f"[{replica.address}]" if ":" in replica.address else replica.address
        # No compression, so that the size limit holds for the decoded body too.
        request = (
            f"GET {self._path} HTTP/1.1\r\nhost: {host}:{self._port}\r\naccept: application/json\r\n"
            "accept-encoding: identity\r\n\r\n"
        )
        _, connection = await loop.create_connection(
            lambda: _Connection(request.encode(), replica.uid, self._decode), replica.address, self._port
        )
        if (previous := self._kept.get(replica)) is not None:
            previous.abort()
        self._kept[replica] = connection
        return await connection.send(loop)

    def _outcome(self, replica: Replica, response: "asyncio.Future[Any]") -> tuple[ScrapeOutcome, Any]:
        try:
            # A cancelled task may still be running.
            if not response.done():
                raise TimeoutError
            found, outcome = response.result(), ScrapeOutcome.READ
        except (OSError, asyncio.CancelledError):  # cancelled: no response in time
            found, outcome = None, ScrapeOutcome.UNREACHABLE
        except Exception as error:  # pods are untrusted: any decoding error is one of the pod
            logger.debug("event=scrape_refused pod=%s refused=%r", replica, error)
            found, outcome = None, ScrapeOutcome.REFUSED
        # Never reuse a connection after an error, as a late response may still arrive.
        if outcome is not ScrapeOutcome.READ and (kept := self._kept.pop(replica, None)) is not None:
            kept.abort()
        self._count(outcome)
        return outcome, found


class _Connection(asyncio.Protocol):
    """One persistent connection to one pod, with one request at a time."""

    def __init__(self, request: bytes, uid: str, decode: Callable[[bytes], Any]) -> None:
        self._decode = decode
        self._request = request
        self._uid = uid
        self._transport: asyncio.Transport | None = None
        self._response: asyncio.Future[Any] | None = None
        self._begin()
        self.sent_s = 0.0
        """When the last request was sent, in the loop's seconds."""

    @property
    def idle(self) -> bool:
        """Whether the connection is open and has no request in flight."""
        return self._transport is not None and self._response is None

    def send(self, loop: asyncio.AbstractEventLoop) -> "asyncio.Future[Any]":
        """Send the request; return a future of the document."""
        response: asyncio.Future[Any] = loop.create_future()
        self.sent_s = loop.time()
        if self._transport is None:
            response.set_exception(ConnectionResetError("the connection is closed"))
            return response
        self._response = response
        self._begin()
        self._transport.write(self._request)
        return response

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._size_bytes += len(data)
        try:
            if self._response is None or self._size_bytes > _MAX_RESPONSE_BYTES:
                raise InvalidResponseError("unexpected data, or too much of it")
            self._parser.feed_data(data)
        except Exception as error:  # pods are untrusted; an upgrade, for one, is no HttpParserError
            self._fail(error)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(ConnectionResetError("the connection was closed before the end of the response"))

    # Callbacks of httptools.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status, headers = self._parser.get_status_code(), self._headers
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if status != 200 or kind != b"application/json":
            raise InvalidResponseError(f"status {status}, type {kind!r:.100}")
        # Another pod may have been given the address since.
        if (instance := headers.get(INSTANCE_HEADER.encode())) is not None and instance != self._uid.encode():
            raise InvalidResponseError(f"the address belongs to pod {instance!r:.100} now")
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise InvalidResponseError("compressed body")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_result(self._decode(bytes(self._body)))
        self._response = None
        if not self._parser.should_keep_alive():
            self.abort()

    def _begin(self) -> None:
        # A parser handles one response.
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()
        self._size_bytes = 0

    def _fail(self, error: Exception) -> None:
        response, self._response = self._response, None
        if response is not None and not response.done():
            # httptools wraps errors of its callbacks in its own.
            response.set_exception(error)
