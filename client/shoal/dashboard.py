"""``shoal dashboard``: what services do now, as one page in a browser, from this machine and for it.

The page asks nobody but its own server, which answers to addresses of this machine alone.
"""

import argparse
import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shoal import ports
from shoal.errors import ShoalError
from shoal.looking import Look, Source, looks
from shoal.serving.fields import MachineError
from shoal.top import chosen
from shoal.watching.seen import KEPT, Watched
from shoal.watching.words import document
from shoal_schema.pages import page_headers

LOOPBACK: Final = "127.0.0.1"
PAGE: Final = Path(__file__).with_name("dashboard.html").read_text(encoding="utf-8")
HEADERS: Final = page_headers(PAGE)


class Dashboard:
    """What the page asks for."""

    def __init__(self) -> None:
        self.watched = Watched()
        self._source: Source | None = None
        self._trouble = ""

    async def follow(self, seen: AsyncIterator[Look]) -> None:
        """Take every look, until cancelled."""
        async for look in seen:
            self.take(look)

    def take(self, look: Look) -> None:
        """Show one look; where nothing was seen, what was before and why."""
        self._source, self._trouble = look.source, look.trouble
        if not look.trouble:
            self.watched.see(look.seen)

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[Route("/", self._page), Route("/data", self._data), Route("/explain", self._explain)],
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[LOOPBACK, "localhost"])],
        )

    async def _page(self, _: Request) -> Response:
        return Response(PAGE, headers=HEADERS, media_type="text/html")

    async def _data(self, _: Request) -> Response:
        told = document(self.watched, looks=KEPT)
        return JSONResponse({**told, "trouble": self._trouble}, headers={"cache-control": "no-store"})

    async def _explain(self, request: Request) -> Response:
        service = request.query_params.get("service", "")
        if service not in self.watched.services:
            return JSONResponse({"sentences": []})
        if self._source is None:
            return JSONResponse({"sentences": [f"cannot be explained now: {self._trouble}"]})
        try:
            return JSONResponse({"sentences": await self._source.explain(service)})
        except (ShoalError, MachineError, msgspec.MsgspecError, ValueError) as error:
            return JSONResponse({"sentences": [f"cannot be explained now: {error}"]})


def dashboard(options: argparse.Namespace) -> int:
    """Serve the page until interrupted."""
    port = ports.find_port(LOOPBACK, options.port, option="--port")
    asyncio.run(_serve(port, options))
    return 0


class _Server(uvicorn.Server):
    """Says where the page is once it is there."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen (uvicorn)."""
        await super().startup(sockets)
        print(f"http://{LOOPBACK}:{self.config.port}  (Ctrl-C ends)", flush=True)


async def _serve(port: int, options: argparse.Namespace) -> None:
    board, seen = Dashboard(), looks(chosen(options), options.interval)
    # The first look, before the page is promised: what cannot be seen at all is told here, and not in a browser.
    board.take(await anext(seen))
    server = _Server(uvicorn.Config(board.app(), host=LOOPBACK, port=port, log_level="error", lifespan="off"))
    following = asyncio.create_task(board.follow(seen))
    following.add_done_callback(lambda _: setattr(server, "should_exit", True))
    try:
        await server.serve()
    finally:
        if not following.cancel():
            following.result()
        await asyncio.wait([following])
        # Ctrl-C, which uvicorn hands on as it ends, is heard of where something is waited for.
        await asyncio.sleep(0)
