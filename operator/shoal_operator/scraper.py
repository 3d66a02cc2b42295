"""HTTP GETs of the proxies' metrics."""

import asyncio
from collections.abc import Sequence

import aiohttp

from shoal_operator.autoscaler.law import Load
from shoal_operator.load.exposition import rows_held
from shoal_operator.manifests.environment import ADMIN_PORT

_TIMEOUT = aiohttp.ClientTimeout(total=1.5)
_AT_A_TIME = 64
_LARGEST_BODY_BYTES = 2**20


class Scraper:
    """Asks proxies what they hold."""

    def __init__(self, port: int = ADMIN_PORT) -> None:
        self._port = port
        self._limit = asyncio.Semaphore(_AT_A_TIME)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def read_load(self, addresses: Sequence[str]) -> Load | None:
        """Return the rows in all pods, or None when no pod could be read."""
        rows = await asyncio.gather(*(self._read_pod(address) for address in addresses))
        known = [count for count in rows if count is not None]
        return Load(sum(known), complete=len(known) == len(rows)) if known else None

    async def _read_pod(self, address: str) -> int | None:
        host = f"[{address}]" if ":" in address else address
        async with self._limit:
            try:
                async with self._opened().get(f"http://{host}:{self._port}/metrics") as answer:
                    body = await answer.content.read(_LARGEST_BODY_BYTES)
                    return rows_held(body.decode("utf-8", "replace")) if answer.ok else None
            except (aiohttp.ClientError, TimeoutError, OSError):
                return None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT)
        return self._session
