"""The admin port: health for the kubelet, metrics for monitoring, drain for whoever stops this replica."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shoal_proxy.metrics import Metrics


def make_admin_app(metrics: Metrics, reason: Callable[[], str], drain: Callable[[], Awaitable[None]]) -> Starlette:
    """Return the ASGI application of the admin port.

    Args:
        metrics: what ``/metrics`` shows.
        reason: why this replica is not ready, or nothing when it is.
        drain: starts the drain, if it has not started, and returns when it is done.
    """

    async def healthz(request: Request) -> Response:
        return JSONResponse({"alive": True})

    async def readyz(request: Request) -> Response:
        why = reason()
        return JSONResponse({"ready": False, "reason": why} if why else {"ready": True}, 503 if why else 200)

    async def show_metrics(request: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def start_drain(request: Request) -> Response:
        await drain()
        return JSONResponse({"drained": True})

    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", show_metrics),
            Route("/drain", start_drain, methods=["POST"]),
        ]
    )
