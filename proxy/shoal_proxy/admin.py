"""The admin port: health for the kubelet, metrics for monitoring, drain for whoever stops this replica.

And for people: what bounds latency and throughput now, and a recording of what arrives.
"""

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Protocol

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal_proxy.dispatcher import Dispatcher
from shoal_proxy.explaining.load import read_load
from shoal_proxy.explaining.report import latency_document, report
from shoal_proxy.explaining.sentences import explain, explain_graph
from shoal_proxy.lifecycle.drain import Phase
from shoal_proxy.metrics import Metrics
from shoal_proxy.recording import LONGEST_RECORDING_S
from shoal_proxy.settings import Settings
from shoal_proxy.strangers import refusal
from shoal_schema import load
from shoal_schema.headers import INSTANCE
from shoal_schema.stay import MAX_S as MAX_STAY_S
from shoal_schema.stay import PATH as STAY_PATH

PAGES = """\
this is the admin port of a Shoal proxy; callers ask the model at its other port
GET /healthz      does the process live?
GET /readyz       should this replica get traffic, and why not?
GET /metrics      for Prometheus
GET /v1/load      what this replica holds, has done and can do, as JSON; the operator scales by it
GET /v1/explain   what bounds latency and throughput now, and which field to change
GET /v1/latency   what batches take, as JSON
GET /v1/trace     with a header x-shoal-admin: what arrives from now on, as CSV (shoal record)
POST /drain       with a header x-shoal-admin: finish what was accepted, and stop
POST /stay        with x-shoal-admin and ?seconds=N: once told to stop, keep serving for so long
"""
TRACE = "/v1/trace"
MAX_READY_WAIT_MS = 60_000
MAX_READY_WAITING = 16
"""Who asks beyond them is answered at once: waiting must not take the connections that liveness needs."""


class Stopping(Protocol):
    """What a replica does when it has to stop."""

    async def drain(self) -> None:
        """Start the drain, if it has not started, and return when it is done."""

    def stay(self, seconds: float) -> None:
        """Keep serving for so long once told to stop; 0 ends that."""


class Admin:
    """The handlers.

    Args:
        metrics: what ``/metrics`` shows.
        dispatcher: what is explained and recorded.
        settings: names the model, the hosts that this port answers to besides addresses and the cluster's names, and
            whose metrics these are, where anybody needs to know.
        reason: why this replica is not ready, or nothing when it is.
        started: set once it was ready for the first time, or has to stop.
        stopping: drains this replica, or keeps it serving.
    """

    def __init__(
        self,
        metrics: Metrics,
        dispatcher: Dispatcher,
        settings: Settings,
        *,
        reason: Callable[[], str],
        started: asyncio.Event,
        stopping: Stopping,
    ) -> None:
        self._metrics = metrics
        self._dispatcher = dispatcher
        self._model = settings.name
        self._reason = reason
        self._started = started
        self._waiting = 0
        self._stopping = stopping
        hosts = {*(host.lower() for host in settings.process.admin_hosts), socket.gethostname().lower()}
        self._hosts = frozenset(hosts)
        self._instance = instance = settings.process.instance
        self._named = {INSTANCE: instance} if instance else {}

    def app(self) -> Starlette:
        """Return the ASGI application of the admin port."""
        return Starlette(
            routes=[
                Route("/", self.pages),
                Route("/healthz", self.healthz),
                Route("/readyz", self.readyz),
                Route("/metrics", self.metrics),
                Route(load.PATH, self.load),
                Route("/v1/explain", self.explanation),
                Route("/v1/latency", self.latency),
                Route(TRACE, self.trace),
                Route("/drain", self.drain, methods=["POST"]),
                Route(STAY_PATH, self.stay, methods=["POST"]),
            ],
            middleware=[Middleware(_Door, hosts=self._hosts)],
            exception_handlers={404: self.no_page},
        )

    async def pages(self, request: Request) -> Response:
        """Say what is here."""
        return PlainTextResponse(PAGES)

    async def no_page(self, request: Request, error: Exception) -> Response:
        """Say that a path is not here, and what is."""
        return PlainTextResponse(f"no such path: {request.url.path}\n{PAGES}", 404)

    async def healthz(self, request: Request) -> Response:
        """Answer while the event loop turns."""
        return JSONResponse({"alive": True})

    async def readyz(self, request: Request) -> Response:
        """Answer whether this replica should get traffic; with ``?wait_ms=N`` the first yes is waited for.

        A kubelet that asks every 2 s would leave a ready replica without traffic for a second, on average. Later
        nothing waits: a replica that is unready again must be known to be.
        """
        asked = request.query_params.get("wait_ms", "0")
        wait_ms = int(asked) if re.fullmatch("[0-9]{1,6}", asked) else -1
        if not 0 <= wait_ms <= MAX_READY_WAIT_MS:
            return JSONResponse({"error": f"wait_ms must be 0 to {MAX_READY_WAIT_MS}"}, 400)
        await self._wait_until_started(wait_ms / 1000)
        why = self._reason()
        return JSONResponse({"ready": False, "reason": why} if why else {"ready": True}, 503 if why else 200)

    async def _wait_until_started(self, most_s: float) -> None:
        if self._waiting >= MAX_READY_WAITING:
            return
        self._waiting += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(most_s):
                    await self._started.wait()
        finally:
            self._waiting -= 1

    async def metrics(self, request: Request) -> Response:
        """Show the metrics."""
        return Response(self._metrics.text(), headers=self._named, media_type=CONTENT_TYPE_LATEST)

    async def load(self, request: Request) -> Response:
        """Tell what the operator scales by, and siblings choose by."""
        dispatcher = self._dispatcher
        now = read_load(
            dispatcher.scheduler,
            time.monotonic(),
            draining=dispatcher.phase is not Phase.SERVING,
            taking=dispatcher.takes,
            graph=dispatcher.graph_state,
        )
        return Response(msgspec.json.encode(now), headers=self._named, media_type="application/json")

    async def explanation(self, request: Request) -> Response:
        """Explain in sentences; as JSON, with the numbers behind them."""
        metrics = self._metrics
        now = report(
            self._dispatcher.scheduler.batcher,
            self._dispatcher.scheduler.throughput.busiest,
            model=self._model,
            padding=metrics.padded_elements / metrics.elements if metrics.elements else 0.0,
            rejected=dict(metrics.rejections),
            checks=self._dispatcher.scheduler.checks,
        )
        sentences = explain(now) if self._dispatcher.graph_state is None else explain_graph(now)
        if "application/json" in request.headers.get("accept", ""):
            return JSONResponse({"sentences": sentences, "report": asdict(now)})
        return PlainTextResponse("".join(f"{sentence}\n" for sentence in sentences))

    async def latency(self, request: Request) -> Response:
        """Show the latency tables."""
        return JSONResponse(
            latency_document(self._dispatcher.scheduler.batcher, self._dispatcher.scheduler.throughput.busiest)
        )

    async def trace(self, request: Request) -> Response:
        """Record what arrives from now on."""
        try:
            seconds = float(request.query_params.get("seconds", "10"))
        except ValueError:
            seconds = 0.0
        if not 0 < seconds <= LONGEST_RECORDING_S:
            return JSONResponse({"error": f"seconds must be more than 0 to {LONGEST_RECORDING_S:g}"}, 400)
        return StreamingResponse(self._dispatcher.recorder.lines(seconds), media_type="text/csv")

    async def drain(self, request: Request) -> Response:
        """Drain, and answer when it is done."""
        await self._stopping.drain()
        return JSONResponse({"drained": True})

    async def stay(self, request: Request) -> Response:
        """Keep a stopping replica serving; the operator asks so while no other replica is ready."""
        meant = request.headers.get(INSTANCE)
        if meant and self._instance and meant != self._instance:
            return JSONResponse({"error": f"this is instance {self._instance}"}, 409, headers=self._named)
        asked = request.query_params.get("seconds", "")
        if not re.fullmatch("[0-9]{1,4}", asked) or int(asked) > MAX_STAY_S:
            return JSONResponse({"error": f"seconds must be 0 to {MAX_STAY_S}"}, 400)
        self._stopping.stay(float(asked))
        return JSONResponse({"staying": int(asked)})


class _Door:
    """Lets no page of another site in."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        guarded = scope["path"] == TRACE
        why = refusal(request.method, request.headers, self._hosts, guarded=guarded)
        app = JSONResponse({"error": why}, 403) if why else self._app
        await app(scope, receive, send)
