"""A real HTTP server on the loopback, that notes what it is asked and answers what it is told."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    kind: str
    token: str
    body: Any


Answer = Callable[[Asked], tuple[int, Any]]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[tuple[int, list[Asked]]]:
    """Serve until the block ends; yield the port and the requests so far."""
    asked: list[Asked] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        raw = await request.read()
        note = Asked(
            request.method,
            request.path,
            dict(request.query),
            request.content_type,
            request.headers.get("Authorization", ""),
            json.loads(raw) if raw else None,
        )
        asked.append(note)
        status, body = answer(note)
        return web.Response(status=status, text=body if isinstance(body, str) else json.dumps(body))

    runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1], asked
    finally:
        await runner.cleanup()
