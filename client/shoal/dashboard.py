"""``shoal dashboard``: the load of services as a page in a browser of this machine.

The page requests data from its own server only, which listens on the loopback.
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
from shoal.sampling import Sample, Source, samples
from shoal.serving.fields import LocalError
from shoal.top import select_source
from shoal.watching.cells import document
from shoal.watching.samples import KEPT, Histories
from shoal_schema.pages import page_headers

LOOPBACK: Final = "127.0.0.1"
PAGE: Final = Path(__file__).with_name("dashboard.html").read_text(encoding="utf-8")
HEADERS: Final = page_headers(PAGE)


class Dashboard:
    """The routes of the page and its data."""

    def __init__(self) -> None:
        self.watched = Histories()
        self._source: Source | None = None
        self._trouble = ""

    async def follow(self, seen: AsyncIterator[Sample]) -> None:
        """Record every sample until cancelled."""
        async for sample in seen:
            self.take(sample)

    def take(self, sample: Sample) -> None:
        """Record one sample; after a failure, keep the last samples and the cause."""
        self._source, self._trouble = sample.source, sample.error
        # After a failure the last samples stay, with the cause beside them.
        if not sample.error:
            self.watched.add(sample.seen)

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[Route("/", self.page), Route("/data", self.data), Route("/explain", self.explain)],
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[LOOPBACK, "localhost"])],
        )

    async def page(self, _: Request) -> Response:
        """Return the page."""
        return Response(PAGE, headers=HEADERS, media_type="text/html")

    async def data(self, _: Request) -> Response:
        """Return the samples of all services."""
        services = document(self.watched, samples=KEPT)
        return JSONResponse({**services, "trouble": self._trouble}, headers={"cache-control": "no-store"})

    async def explain(self, request: Request) -> Response:
        """Return sentences about a service's bottleneck."""
        service = request.query_params.get("service", "")
        if service not in self.watched.services:
            return JSONResponse({"sentences": []})
        if self._source is None:
            return JSONResponse({"sentences": [f"no explanation available: {self._trouble}"]})
        try:
            return JSONResponse({"sentences": await self._source.explain(service)})
        except (ShoalError, LocalError, msgspec.MsgspecError, ValueError) as error:
            return JSONResponse({"sentences": [f"no explanation available: {error}"]})


def dashboard(options: argparse.Namespace) -> int:
    """Serve the page until interrupted."""
    asyncio.run(_serve(ports.find_port(LOOPBACK, options.port, option="--port"), options))
    return 0


class _Server(uvicorn.Server):
    """A server that prints the page's URL once it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen (uvicorn)."""
        await super().startup(sockets)
        print(f"http://{LOOPBACK}:{self.config.port}  (Ctrl-C ends)", flush=True)


async def _serve(port: int, options: argparse.Namespace) -> None:
    board, seen = Dashboard(), samples(select_source(options), options.interval)
    # The first sample before the server starts: a source that never works is an error of the command.
    board.take(await anext(seen))
    server = _Server(uvicorn.Config(board.app(), host=LOOPBACK, port=port, log_level="error", lifespan="off"))
    following = asyncio.create_task(board.follow(seen))
    # A source that fails for good ends the command.
    following.add_done_callback(lambda _: setattr(server, "should_exit", True))
    try:
        await server.serve()
    finally:
        if not following.cancel():
            following.result()
        await asyncio.wait([following])
        # uvicorn raises Ctrl-C again as it ends; it is received at the next await.
        await asyncio.sleep(0)
