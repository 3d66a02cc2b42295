"""The room's admin port: health, metrics, and for whom requests wait."""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Mapping

from msgspec import structs
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shoal_proxy.metrics import Metrics
from shoal_schema.waiting import LONGEST_WAIT_S, SEEN, WAITING_PATH, RoomNews, encode


class Admin:
    """The handlers.

    Args:
        metrics: what ``/metrics`` shows.
        waiting: returns how many requests wait, by service.
        reason: why this room is not ready, or nothing when it is.
    """

    def __init__(self, metrics: Metrics, waiting: Callable[[], Mapping[str, int]], reason: Callable[[], str]) -> None:
        self._metrics = metrics
        self._waiting = waiting
        self._reason = reason
        self._epoch = uuid.uuid4().hex[:8]
        self._count = 0
        self._said = RoomNews("", "", {})
        self._changed = asyncio.Event()
        self.version = ""
        """Of the table that the room goes by; empty before the first."""
        self.refused: Mapping[str, str] = {}
        """By service, why its port cannot be opened."""

    def news(self) -> None:
        """Answer who asks what is new, if anything is."""
        said = RoomNews("", self.version, dict(self._waiting()), dict(self.refused))
        if said != self._said:
            self._said = said
            self._count += 1
            self._changed.set()
            self._changed = asyncio.Event()

    def app(self) -> Starlette:
        """Return the ASGI application of the admin port."""
        return Starlette(
            routes=[
                Route("/healthz", self.healthz),
                Route("/readyz", self.readyz),
                Route("/metrics", self.metrics),
                Route(WAITING_PATH, self.tell),
            ]
        )

    async def healthz(self, request: Request) -> Response:
        """Answer while the event loop turns."""
        return JSONResponse({"alive": True})

    async def readyz(self, request: Request) -> Response:
        """Answer whether requests should come here."""
        reason = self._reason()
        return JSONResponse({"ready": not reason, "reason": reason}, 503 if reason else 200)

    async def metrics(self, request: Request) -> Response:
        """Answer Prometheus."""
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def tell(self, request: Request) -> Response:
        """Answer for whom requests wait, when that is something new."""
        if request.query_params.get(SEEN) == self._mark:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_WAIT_S):
                    await self._changed.wait()
        return Response(encode(structs.replace(self._said, news=self._mark)), media_type="application/json")

    @property
    def _mark(self) -> str:
        return f"{self._epoch}:{self._count}"
