"""Long-poll the operator for the table of services; the last one stays in effect during outages."""

import asyncio
import logging
from collections.abc import Callable

import httpx

from shoal_schema.interfaces.activator import (
    MAX_POLL_S,
    MAX_TABLE_BYTES,
    SEEN,
    TABLE_PATH,
    ActivatorTable,
    decode_table,
)

logger = logging.getLogger(__name__)

_PAUSE_S = 0.2
"""After a failed request: it may have reached a standby, and the next one may reach the leader."""
_TIMEOUT = httpx.Timeout(2.0, read=MAX_POLL_S + 5.0)


async def follow_tables(operator: str, take: Callable[[ActivatorTable], None]) -> None:
    """Call ``take`` with each new table, until cancelled.

    Args:
        operator: ``http://HOST:PORT`` of the Service of all operators, of which only the leader responds.
        take: receives each table that differs from the previous one.
    """
    # A new connection for each request, so that the next one may reach another operator.
    limits = httpx.Limits(max_keepalive_connections=0)
    version, silent = "", False
    async with httpx.AsyncClient(base_url=operator, timeout=_TIMEOUT, limits=limits, trust_env=False) as client:
        while True:
            try:
                body = bytearray()
                async with client.stream("GET", TABLE_PATH, params={SEEN: version}) as response:
                    response.raise_for_status()
                    async for piece in response.aiter_bytes():
                        body += piece
                        if len(body) > MAX_TABLE_BYTES:
                            raise ValueError(f"the table is over the limit of {MAX_TABLE_BYTES} bytes")
                table = decode_table(bytes(body))
            except (httpx.HTTPError, ValueError) as error:
                if not silent:
                    logger.warning("event=operator_silent operator=%s version=%s error=%r", operator, version, error)
                silent = True
                await asyncio.sleep(_PAUSE_S)
                continue
            if silent or not version:
                logger.info("event=operator_answers operator=%s version=%s", operator, table.version)
            silent = False
            if table.version != version:
                version = table.version
                take(table)
