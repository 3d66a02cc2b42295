"""A real HTTP server on the loopback that records requests and sends given responses."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from shoal_operator.cluster.api_server import ApiServer, Sleep
from shoal_operator.cluster.connection import TOKEN


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    kind: str
    token: str
    body: Any
    host: str = ""


Answer = Callable[[Asked], tuple[int, Any] | tuple[int, Any, Mapping[str, str]]]


@asynccontextmanager
async def api_server(
    port: int, token: Callable[[], str] = lambda: "token", sleep: Sleep = asyncio.sleep
) -> AsyncIterator[ApiServer]:
    """Yield what talks to a server, and asks for a token whenever it needs a new one."""

    async def connect() -> ApiClient:
        return ApiClient(Configuration(host=f"http://127.0.0.1:{port}", api_key={TOKEN: f"Bearer {token()}"}))

    server = ApiServer(connect, sleep)
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[int, list[Asked]]]:
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
            request.host,
        )
        asked.append(note)
        status, body, *headers = answer(note)
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, text=text, headers=dict(*headers))

    runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield runner.addresses[0][1], asked
    finally:
        await runner.cleanup()
