"""HTTP GETs of the proxies' load, over persistent connections.

Pods are untrusted: a response may be malformed, endless or missing. Anything but a complete, uncompressed and short
response counts as no data of that pod. All pods are read concurrently, so a slow one delays no other service.

The scraper uses the same client connection as the proxy. At a thousand short requests a second, aiohttp's client would
need several times the CPU time.
"""

import asyncio
import logging
import resource
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

from shoal_operator.manifests.environment import ADMIN_PORT
from shoal_operator.scaling.reading import Reading, read_load
from shoal_operator.scaling.service_cache import Replica
from shoal_schema.http.client_connection import READ_BYTES, ClientConnection, InvalidResponseError, ReceivedResponse
from shoal_schema.interfaces.headers import INSTANCE
from shoal_schema.interfaces.load import MAX_BYTES, PATH

logger = logging.getLogger(__name__)

_TIMEOUT_S = 1.5
INSTANCE_HEADER = INSTANCE
"""The uid of the pod that responds. A proxy without a configured uid does not send it, and is trusted."""
MAX_BODY_BYTES = MAX_BYTES
_MAX_HEAD_BYTES = 8192
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
        self._scratch = memoryview(bytearray(READ_BYTES))
        self._swept_s = 0.0

    async def close(self) -> None:
        """Close all connections to pods."""
        for connection in self._kept.values():
            connection.close()
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
                self._kept.pop(replica).close()
        pending: list[asyncio.Future[Any]] = []
        for replica in replicas:
            kept = self._kept.get(replica)
            reuse = kept is not None and kept.usable
            pending.append(kept.get(now_s) if kept and reuse else loop.create_task(self._connect(loop, replica)))
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
            lambda: _Connection(request.encode(), replica.uid, self._scratch), replica.address, self._port
        )
        if (previous := self._kept.get(replica)) is not None:
            previous.close()
        self._kept[replica] = connection
        return await connection.get(loop.time())

    def _outcome(self, replica: Replica, response: "asyncio.Future[Any]") -> tuple[ScrapeOutcome, Any]:
        try:
            # A cancelled task may still be running.
            if not response.done():
                raise TimeoutError
            found, outcome = self._decode(response.result().body), ScrapeOutcome.READ
        except (OSError, asyncio.CancelledError):  # cancelled: no response in time
            found, outcome = None, ScrapeOutcome.UNREACHABLE
        except Exception as error:  # pods are untrusted: any decoding error is one of the pod
            logger.debug("event=scrape_refused pod=%s refused=%r", replica, error)
            found, outcome = None, ScrapeOutcome.REFUSED
        # Never reuse a connection after an error, as a late response may still arrive.
        if outcome is not ScrapeOutcome.READ and (kept := self._kept.pop(replica, None)) is not None:
            kept.close()
        self._count(outcome)
        return outcome, found


class _Connection(ClientConnection):
    """One persistent connection to one pod."""

    def __init__(self, request: bytes, uid: str, scratch: memoryview) -> None:
        super().__init__(scratch, _MAX_HEAD_BYTES, MAX_BODY_BYTES)
        self._request = request
        self._uid = uid
        self.sent_s = 0.0
        """When the last request was sent, in the loop's seconds."""

    def get(self, now_s: float) -> "asyncio.Future[ReceivedResponse]":
        """Send the request; return a future of the response."""
        self.sent_s = now_s
        return self.send([self._request])

    def take_head(self, headers: dict[bytes, bytes]) -> None:
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if self.status != 200 or kind != b"application/json":
            raise InvalidResponseError(f"status {self.status}, type {kind!r:.100}")
        # Another pod may have been given the address since.
        if (instance := headers.get(INSTANCE_HEADER.encode())) is not None and instance != self._uid.encode():
            raise InvalidResponseError(f"the address belongs to pod {instance!r:.100} now")
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise InvalidResponseError("compressed body")
