"""The admin port: health for the kubelet, metrics for monitoring, drain for the preStop hook.

For users it also explains latency and throughput, and records arriving requests.
"""

import asyncio
import contextlib
import inspect
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import asdict
from typing import Any, Final, Protocol

import msgspec
from msgspec import structs
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal_proxy.dispatch.dispatcher import Dispatcher
from shoal_proxy.explaining.load import read_load
from shoal_proxy.explaining.report import latency_document, report
from shoal_proxy.explaining.sentences import explain, explain_graph
from shoal_proxy.http.protocol import InferProtocol
from shoal_proxy.lifecycle.drain import ProxyPhase
from shoal_proxy.observe.metrics import Metrics
from shoal_proxy.observe.recorder import MAX_RECORDING_S
from shoal_proxy.rollout.rollout import Rollout
from shoal_proxy.routes.cross_site import rejection_reason
from shoal_proxy.settings import Settings
from shoal_schema.interfaces import load, rollout
from shoal_schema.interfaces.headers import INSTANCE
from shoal_schema.interfaces.stay import MAX_S as MAX_STAY_S
from shoal_schema.interfaces.stay import PATH as STAY_PATH
from shoal_schema.resource.passthrough import HEADER_NAME

PAGES = """\
this is the admin port of a Shoal proxy; inference requests go to the other port
GET /healthz      whether the process is alive
GET /readyz       whether this replica is ready, and if not, why
GET /metrics      metrics in the Prometheus format
GET /v1/load      queue, throughput and capacity as JSON, by which the operator scales
GET /v1/explain   what limits latency and throughput now, and which field to change
GET /v1/latency   execution times of batches as JSON
GET /v1/trace     requests from now on as CSV (shoal record); needs the header x-shoal-admin
GET /v1/rollout   counts of a rollout by candidate; PUT sets the plan and needs the header x-shoal-admin
POST /drain       finish accepted requests and stop; needs the header x-shoal-admin
POST /stay        keep serving for ?seconds=N once asked to stop; needs the header x-shoal-admin
"""
TRACE = "/v1/trace"
COMPILED: Final = not inspect.isfunction(InferProtocol.data_received)
"""Whether this proxy is compiled (compile.py)."""
MAX_RECORDINGS = 4
"""Most recordings at a time: each is copied for every request, and keeps its connection."""
MAX_READY_WAIT_MS = 60_000
MAX_READY_WAITING = 16
"""Most readiness requests that wait; others get a response at once, so that liveness finds a free connection."""


class ReplicaShutdown(Protocol):
    """The part of the proxy that stops this replica."""

    async def drain(self) -> None:
        """Start the drain, unless it has started already; return when the drain is complete."""

    def stay(self, seconds: float) -> None:
        """Keep a stopping replica serving for ``seconds``; 0 starts the drain."""


class Admin:
    """The handlers of the admin port's routes.

    Args:
        metrics: metrics that ``/metrics`` returns.
        dispatcher: source of load, explanations and recordings.
        settings: name of the model, allowed Host names, and this instance's name in responses.
        reason: returns why this replica is not ready; empty if it is ready.
        started: set when the replica is ready for the first time, or stops.
        stopping: drains this replica, or keeps it serving.
        rollout: carries out a rollout; None if the addresses of candidates are not set.
        instances: returns the number of ready runtimes and of all, if there are several; else None.
    """

    def __init__(  # noqa: PLR0913 (each with its name)
        self,
        metrics: Metrics,
        dispatcher: Dispatcher,
        settings: Settings,
        *,
        reason: Callable[[], str],
        started: asyncio.Event,
        stopping: ReplicaShutdown,
        rollout: Rollout | None = None,
        instances: Callable[[], tuple[int, int] | None] = lambda: None,
    ) -> None:
        self._instances = instances
        self._metrics = metrics
        self._dispatcher = dispatcher
        self._model = settings.name
        self._reason = reason
        self._started = started
        self._waiting = 0
        self._recordings = 0
        self._stopping = stopping
        self._rollout = rollout
        self._revision = settings.process.revision
        # Host names are case-insensitive; the machine's own name is always allowed.
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
                Route(rollout.PATH, self.rollout, methods=["GET", "PUT"]),
                Route("/drain", self.drain, methods=["POST"]),
                Route(STAY_PATH, self.stay, methods=["POST"]),
            ],
            middleware=[Middleware(_OriginCheck, hosts=self._hosts)],
            exception_handlers={404: self.not_found},
        )

    async def pages(self, request: Request) -> Response:
        """Respond with the list of the admin port's paths."""
        return PlainTextResponse(PAGES)

    async def not_found(self, request: Request, error: Exception) -> Response:
        """Respond with status 404 and the list of the admin port's paths."""
        return PlainTextResponse(f"no such path: {request.url.path}\n{PAGES}", 404)

    async def healthz(self, request: Request) -> Response:
        """Respond that the process is alive."""
        return JSONResponse({"alive": True})

    async def readyz(self, request: Request) -> Response:
        """Respond whether this replica is ready.

        Until the replica is ready for the first time, the response is delayed by up to ``?wait_ms=N``. Without this
        delay, a probe every 2 s would leave a ready replica without traffic for one second on average. Later responses
        are never delayed, so that an unready replica is reported at once.
        """
        text = request.query_params.get("wait_ms", "0")
        wait_ms = int(text) if re.fullmatch("[0-9]{1,6}", text) else -1
        if not 0 <= wait_ms <= MAX_READY_WAIT_MS:
            return JSONResponse({"error": f"wait_ms must be 0 to {MAX_READY_WAIT_MS}, not {text:.20}"}, 400)
        if self._waiting < MAX_READY_WAITING:
            self._waiting += 1
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_ms / 1000):
                        await self._started.wait()
            finally:
                self._waiting -= 1
        why = self._reason()
        document: dict[str, Any] = {"ready": False, "reason": why} if why else {"ready": True}
        if (counts := self._instances()) is not None:
            document["instances"] = dict(zip(("ready", "of"), counts, strict=True))
        return JSONResponse(document, 503 if why else 200)

    async def metrics(self, request: Request) -> Response:
        """Respond with all metrics in the Prometheus text format."""
        return Response(self._metrics.text(), headers=self._named, media_type=CONTENT_TYPE_LATEST)

    async def load(self, request: Request) -> Response:
        """Respond with this replica's load.

        The operator scales by it, and peers select a replica by it.
        """
        dispatcher = self._dispatcher
        now = read_load(
            dispatcher.scheduler,
            time.monotonic(),
            draining=dispatcher.phase is not ProxyPhase.SERVING,
            taking=dispatcher.accepts_requests,
            graph=dispatcher.graph_state,
            precision=dispatcher.precision,
        )
        now = structs.replace(now, latency_counts=tuple(self._metrics.request_seconds.counts))
        return Response(msgspec.json.encode(now), headers=self._named, media_type="application/json")

    async def explanation(self, request: Request) -> Response:
        """Respond with an explanation of latency and throughput.

        The explanation is text, or JSON with the measured values.
        """
        metrics = self._metrics
        now = report(
            self._dispatcher.scheduler.batcher,
            self._dispatcher.scheduler.throughput.busiest,
            model=self._model,
            padding=metrics.padded_elements / metrics.elements if metrics.elements else 0.0,
            rejected=dict(metrics.rejections),
            checks=self._dispatcher.scheduler.checks,
            precision=self._dispatcher.precision,
        )
        # A graph forms no batches that could be explained.
        sentences = explain(now) if self._dispatcher.graph_state is None else explain_graph(now)
        if "application/json" in request.headers.get("accept", ""):
            return JSONResponse({"sentences": sentences, "compiled": COMPILED, "report": asdict(now)})
        return PlainTextResponse("".join(f"{sentence}\n" for sentence in sentences))

    async def latency(self, request: Request) -> Response:
        """Respond with the execution times of batches."""
        return JSONResponse(
            latency_document(self._dispatcher.scheduler.batcher, self._dispatcher.scheduler.throughput.busiest)
        )

    async def trace(self, request: Request) -> Response:
        """Record the requests that arrive from now on, and respond with the recording."""
        try:
            seconds = float(request.query_params.get("seconds", "10"))
        except ValueError:
            seconds = 0.0
        if not 0 < seconds <= MAX_RECORDING_S:
            return JSONResponse({"error": f"seconds must be above 0 and at most {MAX_RECORDING_S:g}"}, 400)
        if self._recordings >= MAX_RECORDINGS:
            return JSONResponse(
                {"error": f"{MAX_RECORDINGS} recordings are in progress. Retry when one has ended"},
                503,
                headers={"retry-after": "10"},
            )
        self._recordings += 1
        return _Recording(self._dispatcher.recorder.lines(seconds), self._recording_ended)

    def _recording_ended(self) -> None:
        self._recordings -= 1

    async def drain(self, request: Request) -> Response:
        """Drain this replica, and respond when the drain is complete."""
        await self._stopping.drain()
        return JSONResponse({"drained": True})

    async def rollout(self, request: Request) -> Response:
        """Respond with the counts of a rollout; with PUT, set its plan first."""
        if request.method == "PUT":
            if (rejection := self._other_instance(request)) is not None:
                return rejection
            if self._rollout is None:
                message = "this proxy has no addresses of candidates. Set SHOAL_PROXY_CANDIDATES"
                return JSONResponse({"error": message}, 409, headers=self._named)
            try:
                plan = msgspec.json.decode(await request.body(), type=rollout.RolloutPlan)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                return JSONResponse({"error": f"the body is not a rollout plan: {error}"}, 400, headers=self._named)
            if plan.sticky_header and not re.search(HEADER_NAME, plan.sticky_header):
                return JSONResponse({"error": "sticky_header is not a header name"}, 400, headers=self._named)
            self._rollout.set_plan(plan)
        empty = rollout.RolloutReport(self._revision, "")
        report = empty if self._rollout is None else self._rollout.report()
        return Response(msgspec.json.encode(report), headers=self._named, media_type="application/json")

    def _other_instance(self, request: Request) -> Response | None:
        """Return the rejection of a request that names another instance; None if it is meant for this one."""
        # Addresses of pods are reused: the operator names the instance that it means.
        meant = request.headers.get(INSTANCE)
        if meant and self._instance and meant != self._instance:
            return JSONResponse({"error": f"this is instance {self._instance}"}, 409, headers=self._named)
        return None

    async def stay(self, request: Request) -> Response:
        """Keep a stopping replica serving for ``?seconds=N``."""
        if (rejection := self._other_instance(request)) is not None:
            return rejection
        text = request.query_params.get("seconds", "")
        if not re.fullmatch("[0-9]{1,4}", text) or int(text) > MAX_STAY_S:
            return JSONResponse({"error": f"seconds must be 0 to {MAX_STAY_S}"}, 400)
        self._stopping.stay(float(text))
        return JSONResponse({"staying": int(text)})


class _Recording(StreamingResponse):
    """The response of a recording in progress; ``on_end`` is called when the recording or its connection ends."""

    def __init__(self, lines: AsyncIterator[str], on_end: Callable[[], None]) -> None:
        super().__init__(lines, media_type="text/csv")
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


class _OriginCheck:
    """ASGI middleware that rejects requests from pages of other sites."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        guarded = scope["path"] == TRACE
        why = rejection_reason(request.method, request.headers, self._hosts, guarded=guarded)
        app = JSONResponse({"error": why}, 403) if why else self._app
        await app(scope, receive, send)
