"""HTTP GETs of the proxies' metrics."""

import asyncio
from collections.abc import Sequence

import aiohttp

from shoal_operator.load.exposition import Reading, read_metrics
from shoal_operator.manifests.environment import ADMIN_PORT

_TIMEOUT = aiohttp.ClientTimeout(total=1.5)
_AT_A_TIME = 64
_LARGEST_BODY_BYTES = 2**20


class Scraper:
    """Asks proxies what they hold, and whether they can meet their objective."""

    def __init__(self, port: int = ADMIN_PORT) -> None:
        self._port = port
        self._limit = asyncio.Semaphore(_AT_A_TIME)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def read(self, addresses: Sequence[str]) -> list[Reading]:
        """Return what each pod says; an empty reading for one that could not be read."""
        return await asyncio.gather(*(self._read_pod(address) for address in addresses))

    async def _read_pod(self, address: str) -> Reading:
        host = f"[{address}]" if ":" in address else address
        async with self._limit:
            try:
                async with self._opened().get(f"http://{host}:{self._port}/metrics") as answer:
                    body = await answer.content.read(_LARGEST_BODY_BYTES)
                    return read_metrics(body.decode("utf-8", "replace")) if answer.ok else Reading()
            except (aiohttp.ClientError, TimeoutError, OSError):
                return Reading()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT)
        return self._session
