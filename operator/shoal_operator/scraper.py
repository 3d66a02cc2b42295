"""HTTP GETs of the proxies' metrics.

A tenant's pod may answer anything, endlessly or never. What is not a whole, plain and short answer counts as no data
from that pod; it costs its own service, and no other waits for it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum

import aiohttp

from shoal_operator.load.exposition import Reading, read_metrics
from shoal_operator.load.fleet import Replica
from shoal_operator.manifests.environment import ADMIN_PORT
from shoal_schema.headers import INSTANCE

logger = logging.getLogger(__name__)

_TIMEOUT = aiohttp.ClientTimeout(total=1.5)
_AT_A_TIME = 256
_OF_ONE_SERVICE = 16
INSTANCE_HEADER = INSTANCE
"""The uid of the pod whose metrics these are. Proxies of older releases do not send it, and are believed."""
MAX_BODY_BYTES = 2**18
"""A proxy's metrics are about 20 KB."""
# Uncompressed only: the size of a compressed body is not known before it is unpacked.
_HEADERS = {"Accept": "text/plain", "Accept-Encoding": "identity"}


class Scrape(StrEnum):
    """How one attempt to read a pod ended."""

    READ = "read"
    UNREACHABLE = "unreachable"
    """There was no answer in time, or no connection."""
    REFUSED = "refused"
    """An answer that no proxy gives: a redirect, another type, too long, or without the rows that a proxy tells."""


class RefusedError(Exception):
    """An answer that no proxy gives; the message says why."""


class Scraper:
    """Asks proxies what they hold, and whether they can meet their objective.

    Args:
        count: told how each attempt ended.
    """

    def __init__(self, port: int = ADMIN_PORT, count: Callable[[Scrape], object] = lambda _: None) -> None:
        self._port = port
        self._count = count
        self._limit = asyncio.Semaphore(_AT_A_TIME)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def read(self, replicas: Sequence[Replica]) -> list[Reading]:
        """Return what each pod of one service says; an empty reading for one that could not be read."""
        # A service whose pods all hang must not take every place.
        own_limit = asyncio.Semaphore(_OF_ONE_SERVICE)
        return await asyncio.gather(*(self._read_pod(replica, own_limit) for replica in replicas))

    async def _read_pod(self, replica: Replica, own_limit: asyncio.Semaphore) -> Reading:
        async with own_limit, self._limit:
            try:
                reading = read_metrics(await self._get(replica))
                outcome = Scrape.REFUSED if reading.rows is None else Scrape.READ
                reading = replace(reading, refused=reading.rows is None)
            except (aiohttp.ClientConnectionError, TimeoutError, OSError):
                reading, outcome = Reading(), Scrape.UNREACHABLE
            except Exception as error:  # whatever a pod makes of its answer is its own trouble
                logger.debug("event=scrape_refused pod=%s refused=%r", replica, error)
                reading, outcome = Reading(refused=True), Scrape.REFUSED
        self._count(outcome)
        return reading

    async def _get(self, replica: Replica) -> str:
        host = f"[{replica.address}]" if ":" in replica.address else replica.address
        url = f"http://{host}:{self._port}/metrics"
        async with self._opened().get(url, allow_redirects=False) as answer:
            if answer.status != 200 or answer.content_type != "text/plain":
                raise RefusedError(f"status {answer.status}, type {answer.content_type}")
            if (instance := answer.headers.get(INSTANCE_HEADER, replica.uid)) != replica.uid:
                raise RefusedError(f"{instance!r} has the address now")
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise RefusedError("an encoded body")
            return (await _whole(answer.content)).decode("utf-8", "replace")

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            # The two limits above are the only ones: time to wait for a connection would count against the pod.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=_TIMEOUT,
                headers=_HEADERS,
                auto_decompress=False,
            )
        return self._session


async def _whole(content: aiohttp.StreamReader) -> bytes:
    """Return a body whole.

    Raises:
        RefusedError: it is too long.
    """
    body = bytearray()
    async for piece in content.iter_any():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise RefusedError(f"more than {MAX_BODY_BYTES} bytes")
    return bytes(body)
