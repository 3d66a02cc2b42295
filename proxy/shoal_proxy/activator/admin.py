"""The activator's admin port: health, metrics, and the numbers of waiting requests."""

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

from shoal_proxy.observe.metrics import Metrics
from shoal_schema.interfaces.activator import MAX_POLL_S, REPORT_PATH, SEEN, ActivatorReport, encode


class Admin:
    """The HTTP application of the activator's admin port.

    Args:
        metrics: metrics to serve at ``/metrics``.
        waiting: returns the number of waiting requests, by service.
        reason: returns why the activator is not ready; empty if it is ready.
    """

    def __init__(self, metrics: Metrics, waiting: Callable[[], Mapping[str, int]], reason: Callable[[], str]) -> None:
        self._metrics = metrics
        self._waiting = waiting
        self._reason = reason
        # A new process starts a new epoch, so that no mark of an earlier one matches.
        self._epoch = uuid.uuid4().hex[:8]
        self._count = 0
        self._sent = ActivatorReport("", "", {})
        self._changed = asyncio.Event()
        self.version = ""
        """Version of the table in effect; empty before the first table."""
        self.refused: Mapping[str, str] = {}
        """By service, the reason that its port is not open."""

    def news(self) -> None:
        """Respond to waiting long polls if the report has changed."""
        news = ActivatorReport("", self.version, dict(self._waiting()), dict(self.refused))
        if news != self._sent:
            self._sent = news
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
                Route(REPORT_PATH, self.waiting),
            ]
        )

    async def healthz(self, request: Request) -> Response:
        """Respond with 200, since the process is alive."""
        return JSONResponse({"alive": True})

    async def readyz(self, request: Request) -> Response:
        """Respond with 200 if the activator is ready, else with 503 and the reason."""
        reason = self._reason()
        return JSONResponse({"ready": not reason, "reason": reason}, 503 if reason else 200)

    async def metrics(self, request: Request) -> Response:
        """Respond with all metrics, in the Prometheus text format."""
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def waiting(self, request: Request) -> Response:
        """Respond with the numbers of waiting requests.

        This is a long poll: if the client has the current report, the response waits for the next change.
        """
        # A long poll: the response waits for the next change.
        if request.query_params.get(SEEN) == self._mark:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MAX_POLL_S):
                    await self._changed.wait()
        return Response(encode(structs.replace(self._sent, news=self._mark)), media_type="application/json")

    @property
    def _mark(self) -> str:
        return f"{self._epoch}:{self._count}"
