"""HTTP GETs of the proxies' load, each over a connection that is kept.

A tenant's pod may answer anything, endlessly or never. What is not a whole, plain and short answer counts as no data
from that pod; it costs its own service, and no other waits for it: pods share no place in a line, only the process.

Written on asyncio's protocols with httptools, as the proxy is: a reading is one short request and one short answer, a
thousand times a second, and aiohttp's client takes several times the processor time for each.
"""

import asyncio
import logging
import resource
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import httptools

from shoal_operator.load.fleet import Replica
from shoal_operator.load.reading import Reading, read_load
from shoal_operator.manifests.environment import ADMIN_PORT
from shoal_schema.headers import INSTANCE
from shoal_schema.load import MAX_BYTES, PATH

logger = logging.getLogger(__name__)

_TIMEOUT_S = 1.5
INSTANCE_HEADER = INSTANCE
"""The uid of the pod whose load this is. A proxy that was not told its own does not send it, and is believed."""
MAX_BODY_BYTES = MAX_BYTES
_MAX_ANSWER_BYTES = MAX_BYTES + 8192
"""With its head."""
_FORGET_S = 30.0
"""A connection that nobody has asked over for so long is closed: its pod is gone."""


class Scrape(StrEnum):
    """How one attempt to read a pod ended."""

    READ = "read"
    UNREACHABLE = "unreachable"
    """There was no answer in time, or no connection."""
    REFUSED = "refused"
    """An answer that no proxy gives: a redirect, another type, too long, or with a value that no proxy can have."""


def allow_connections() -> None:
    """Let this process hold a connection to as many pods as it is allowed to: the soft limit is often 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class RefusedError(Exception):
    """An answer that no proxy gives; the message says why."""


class Scraper:
    """Asks proxies what they hold, have done and can do.

    Args:
        port: the pods' admin port.
        count: told how each attempt ended.
        timeout_s: within which a pod has to have answered.
        path: what they are asked for.
        decode: reads the body of an answer; raises where it is none.
    """

    def __init__(
        self,
        port: int = ADMIN_PORT,
        count: Callable[[Scrape], object] = lambda _: None,
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
        """Close the connections."""
        for connection in self._kept.values():
            connection.abort()
        self._kept.clear()

    async def read(self, replicas: Sequence[Replica]) -> list[Reading]:
        """Return what each pod of one service says; an empty reading for one that could not be read."""
        found = await self.answers(replicas)
        return [Reading(answer, refused=outcome is Scrape.REFUSED) for outcome, answer in found]

    async def answers(self, replicas: Sequence[Replica]) -> list[tuple[Scrape, Any]]:
        """Return how asking each pod ended, and what it answered, if it did."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if now_s - self._swept_s >= _FORGET_S:
            self._swept_s = now_s
            for replica in [each for each, kept in self._kept.items() if now_s - kept.asked_s > _FORGET_S]:
                self._kept.pop(replica).abort()
        asked = [self._ask(loop, replica) for replica in replicas]
        try:
            if asked:
                await asyncio.wait(asked, timeout=self._timeout_s)
        finally:
            for answer in asked:
                answer.cancel()
        return [self._ended(replica, answer) for replica, answer in zip(replicas, asked, strict=True)]

    def _ask(self, loop: asyncio.AbstractEventLoop, replica: Replica) -> "asyncio.Future[Any]":
        kept = self._kept.get(replica)
        if kept is not None and kept.idle:
            return kept.ask(loop)
        return loop.create_task(self._connect(loop, replica))

    async def _connect(self, loop: asyncio.AbstractEventLoop, replica: Replica) -> Any:
        host = f"[{replica.address}]" if ":" in replica.address else replica.address
        request = (
            f"GET {self._path} HTTP/1.1\r\nhost: {host}:{self._port}\r\naccept: application/json\r\n"
            "accept-encoding: identity\r\n\r\n"
        )
        _, connection = await loop.create_connection(
            lambda: _Connection(request.encode(), replica.uid, self._decode), replica.address, self._port
        )
        if (former := self._kept.get(replica)) is not None:
            former.abort()
        self._kept[replica] = connection
        return await connection.ask(loop)

    def _ended(self, replica: Replica, answer: "asyncio.Future[Any]") -> tuple[Scrape, Any]:
        try:
            if not answer.done():
                raise TimeoutError  # its task was told to end, and has not yet
            found, outcome = answer.result(), Scrape.READ
        except (OSError, asyncio.CancelledError):  # cancelled: there was no answer in time
            found, outcome = None, Scrape.UNREACHABLE
        except Exception as error:  # whatever a pod makes of its answer is its own trouble
            logger.debug("event=scrape_refused pod=%s refused=%r", replica, error)
            found, outcome = None, Scrape.REFUSED
        if outcome is not Scrape.READ and (kept := self._kept.pop(replica, None)) is not None:
            kept.abort()
        self._count(outcome)
        return outcome, found


class _Connection(asyncio.Protocol):
    """One kept connection to one pod; one request at a time."""

    def __init__(self, request: bytes, uid: str, decode: Callable[[bytes], Any]) -> None:
        self._decode = decode
        self._request = request
        self._uid = uid
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Any] | None = None
        self._begin()
        self.asked_s = 0.0

    @property
    def idle(self) -> bool:
        """Return whether it is open, and nobody waits for an answer."""
        return self._transport is not None and self._answer is None

    def ask(self, loop: asyncio.AbstractEventLoop) -> "asyncio.Future[Any]":
        """Send the request; the future holds the answer, or the `RefusedError` or `OSError` in its place."""
        answer: asyncio.Future[Any] = loop.create_future()
        self.asked_s = loop.time()
        if self._transport is None:
            answer.set_exception(ConnectionResetError("closed"))
            return answer
        self._answer = answer
        self._begin()
        self._transport.write(self._request)
        return answer

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport (asyncio)."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Read on (asyncio)."""
        self._size_bytes += len(data)
        try:
            if self._answer is None or self._size_bytes > _MAX_ANSWER_BYTES:
                raise RefusedError("more than was asked for")
            self._parser.feed_data(data)
        except Exception as error:  # whatever a pod sends; an upgrade that nobody asked for is no HttpParserError
            self._settle(error)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up what was asked (asyncio)."""
        self._transport = None
        self._settle(ConnectionResetError("closed before the answer was whole"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header (httptools)."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Judge the head (httptools)."""
        status, headers = self._parser.get_status_code(), self._headers
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if status != 200 or kind != b"application/json":
            raise RefusedError(f"status {status}, type {kind!r:.100}")
        if (instance := headers.get(INSTANCE_HEADER.encode())) is not None and instance != self._uid.encode():
            raise RefusedError(f"{instance!r:.100} has the address now")
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise RefusedError("an encoded body")

    def on_body(self, body: bytes) -> None:
        """Collect the body (httptools)."""
        self._body += body

    def on_message_complete(self) -> None:
        """Hand over the answer (httptools)."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(self._decode(bytes(self._body)))
        self._answer = None
        if not self._parser.should_keep_alive():
            self.abort()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()
        self._size_bytes = 0

    def _settle(self, error: Exception) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            # httptools wraps what its callbacks raise.
            answer.set_exception(error)
