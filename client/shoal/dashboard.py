"""``shoal dashboard``: the load of services as a page in a browser of this machine.

The page requests data from its own server only, which listens on the loopback.
"""

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import msgspec
import orjson
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
from shoal.serving.errors import LocalError
from shoal.top import select_source
from shoal.watching.cells import COLUMNS, cells
from shoal.watching.samples import Histories
from shoal_schema.process.pages import page_headers

LOOPBACK: Final = "127.0.0.1"
_HERE: Final = Path(__file__).parent
# The page includes the charts' library: its content security policy permits no other file.
PAGE: Final = re.sub(
    r"/\* (uplot/\S+) \*/",
    lambda found: (_HERE / found[1]).read_text(encoding="utf-8"),
    (_HERE / "dashboard.html").read_text(encoding="utf-8"),
)
HEADERS: Final = page_headers(PAGE)


class Dashboard:
    """Routes of the dashboard's page and of its data."""

    def __init__(self) -> None:
        self.watched = Histories()
        self._source: Source | None = None
        self._trouble = ""

    async def follow(self, seen: AsyncIterator[Sample]) -> None:
        """Record every sample until cancelled."""
        async for sample in seen:
            self.take(sample)

    def take(self, sample: Sample) -> None:
        """Record one sample of all services.

        A failed sample stores its error and leaves the figures unchanged.
        """
        self._source, self._trouble = sample.source, sample.error
        if not sample.error:
            self.watched.add(sample.seen, sample.time_s)

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[Route("/", self.page), Route("/data", self.data), Route("/explain", self.explain)],
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[LOOPBACK, "localhost"])],
        )

    async def page(self, _: Request) -> Response:
        """Return the dashboard's HTML page."""
        return Response(PAGE, headers=HEADERS, media_type="text/html")

    async def data(self, request: Request) -> Response:
        """Return the table of all services and one service's history as JSON.

        The query parameter ``service`` selects the history; by default it is the first service's.
        """
        histories, service = self.watched.services, request.query_params.get("service", "")
        picked = service if service in histories else min(histories, default="")
        rollout = histories[picked].last.rollout if picked else None
        found = {
            # The last column is a sparkline, which the charts replace.
            "columns": COLUMNS[:-1],
            "services": [
                {"name": name, "cells": cells(name, each)[:-1], "well": each.last.well, "says": each.last.says}
                for name, each in self.watched.sorted
            ],
            "picked": picked,
            "rollout": rollout and {"stable": rollout.stable, "candidate": rollout.candidate, "says": rollout.says},
            "intervals": list(histories[picked].intervals) if picked else [],
            "time_s": time.monotonic(),
            "trouble": self._trouble,
        }
        return Response(orjson.dumps(found), headers={"cache-control": "no-store"}, media_type="application/json")

    async def explain(self, request: Request) -> Response:
        """Return sentences about the bottleneck of the queried service."""
        service = request.query_params.get("service", "")
        if service not in self.watched.services:
            return JSONResponse({"sentences": []})
        if self._source is None:
            return JSONResponse({"sentences": [f"no explanation available: {self._trouble}"]})
        try:
            return JSONResponse({"sentences": await self._source.explain(service)})
        except (ShoalError, LocalError, msgspec.MsgspecError, ValueError) as error:
            return JSONResponse({"sentences": [f"no explanation available: {error}"]})


def dashboard(options: SimpleNamespace) -> int:
    """Serve the dashboard's page until interrupted."""
    asyncio.run(_serve(ports.find_port(LOOPBACK, options.port, option="--port"), options))
    return 0


async def _serve(port: int, options: SimpleNamespace) -> None:
    board, seen = Dashboard(), samples(select_source(options), options.interval)
    # The first sample before the server starts: a source that never works is an error of the command.
    board.take(await anext(seen))
    server = uvicorn.Server(uvicorn.Config(board.app(), log_level="error", lifespan="off"))
    following = asyncio.create_task(board.follow(seen))
    # A source that fails for good ends the command.
    following.add_done_callback(lambda _: setattr(server, "should_exit", True))
    listener = socket.create_server((LOOPBACK, port))
    print(f"http://{LOOPBACK}:{port}  (Ctrl-C ends)", flush=True)
    try:
        await server.serve(sockets=[listener])
    finally:
        if not following.cancel():
            following.result()
        await asyncio.wait([following])
        # uvicorn raises Ctrl-C again as it ends; it is received at the next await.
        await asyncio.sleep(0)
