"""Link to a graph of models: readiness, and the way of each request."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from shoal_proxy.batching.batch import Batch, BatchResult
from shoal_proxy.batching.pending import PendingRequest
from shoal_proxy.dispatch.exchange import trace_headers
from shoal_proxy.dispatch.runtime_connection import LOST, ResponseMemory
from shoal_proxy.dispatch.upstream import RuntimeMemory
from shoal_proxy.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ProxyError,
    RowsFailed,
    RuntimeLost,
    RuntimeUnavailable,
    StepFailed,
    UnknownHost,
)
from shoal_proxy.graph.composer import Composer
from shoal_proxy.graph.graph_request import GraphRequest, RowsError
from shoal_proxy.graph.steps import CallContext, StepClient
from shoal_proxy.graph.walk import walk
from shoal_proxy.model.signature import ModelSignature, SignatureError, parse_metadata
from shoal_proxy.observe.metrics import Metrics
from shoal_proxy.settings import Settings
from shoal_schema.graphs.errors import GraphError, GraphFault
from shoal_schema.graphs.plan import GraphPlan, GraphStep, make_plan
from shoal_schema.graphs.types import TypedGraph, graph_metadata, type_check
from shoal_schema.interfaces.headers import GRAPHS, PRIORITY
from shoal_schema.interfaces.load import GRAPH_VALID, STEP_NOT_READY, GraphState
from shoal_schema.resource.graph import GraphSpec
from shoal_schema.wire.datatypes import Array

logger = logging.getLogger(__name__)

_GRAPHS, _PRIORITY = GRAPHS.encode(), PRIORITY.encode()
_CHECK_S: Final = 10.0
"""Longest time for a model's metadata, and interval of reading it again once a model has changed."""
_AWAY_INTERVAL_S, _SLOWER, _AWAY_MOST_S = 0.5, 1.2, 3.0
"""Interval of requests to models that are not available yet, its growth, and its maximum."""
_BEAT_S: Final = 1.0
"""Interval of checks of a composer's loop."""
_DOUBT_S: Final = 5.0
"""Least time between two reads of metadata because models reject their inputs or return unexpected outputs."""


class GraphResponse:
    """Outputs of a request that has passed a graph.

    Also holds the time of each step, and the number of rows that each optional step omitted.
    """

    def __init__(
        self, outputs: Mapping[str, Array], steps_s: Mapping[str, float], omitted: Mapping[str, int], sent_s: float
    ) -> None:
        self._outputs = outputs
        self._steps_s = steps_s
        self._omitted = omitted
        self.sent_s = sent_s
        self.completed_s = time.monotonic()

    def result(self, signature: ModelSignature) -> BatchResult:
        """Return the request's rows as the result of a batch."""
        return BatchResult(self._outputs)

    def timing(self, batch: Batch, batch_s: float) -> bytes:
        """Return the Server-Timing header: each step's time and skipped rows.

        A row skips an optional step that failed for it.
        """
        own = b"graph;dur=%.2f" % (1000 * batch_s)
        steps = [b"%b;dur=%.2f" % (name.encode(), 1000 * took_s) for name, took_s in self._steps_s.items()]
        without = [b'%b;desc="%d omitted"' % (name.encode(), rows) for name, rows in self._omitted.items()]
        return b", ".join([own, *steps, *without, b'rows;desc="%d"' % batch.rows])


class GraphLink:
    """Link to a graph of models, used instead of a link to a runtime.

    It is ready once every model has sent its metadata and the models are compatible. It stays ready if a model becomes
    unavailable: requests that need that model fail with the step's name, others are served.
    """

    def __init__(self, spec: GraphSpec, settings: Settings) -> None:
        self._name = settings.name
        namespace = settings.process.namespace
        self._identity = f"{settings.name}.{namespace}" if namespace else settings.name
        self._fair_share_header = settings.fair_share_header
        self._most_bytes = settings.queue.max_bytes
        self._room = ResponseMemory(settings.queue.max_bytes)
        self._plan: GraphPlan = make_plan(spec, settings.name)
        # Of each step only the outputs that the graph uses are requested.
        used = {each.name: [ref.tensor for _, ref in self._plan.refs if ref.step == each.name] for each in spec.steps}
        self._steps = {
            each.name: StepClient(each, list(dict.fromkeys(used[each.name])), self._room) for each in spec.steps
        }
        self._composer = Composer(spec.composer, settings.process.composer_dir) if spec.composer else None
        self._typed: TypedGraph | None = None
        self._walks: dict[PendingRequest, asyncio.Task[Any]] = {}
        self._wake = asyncio.Event()
        self._doubted_s = 0.0
        self._again_s: float | None = None
        """Interval of metadata requests while ready; None until a model has changed once, since it may change again."""
        self.signature: ModelSignature | None = None
        self.binary = True
        self.fault = ""
        """The reason word of an invalid graph; empty if the graph is valid, or not checked yet."""
        self.reason = "metadata of the graph's models has not been requested yet"
        self.on_change: Callable[[], None] = lambda: None
        self.losses = 0
        self.concurrency = settings.batching.in_flight
        self.started = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Return whether the graph accepts requests."""
        return not self.reason

    @property
    def device_memory(self) -> tuple[int, int] | None:
        """Return None: a graph has no device."""
        return None

    @property
    def memory(self) -> RuntimeMemory:
        """Return nothing: a graph has no runtime."""
        return RuntimeMemory()

    @property
    def graph_state(self) -> GraphState | None:
        """Return whether the graph's models are available and compatible."""
        if self.fault:
            return GraphState(self.fault, self.reason[:1024])
        if self.reason:
            return GraphState(STEP_NOT_READY, self.reason[:1024])
        return GraphState(GRAPH_VALID, "every step's model accepts its inputs")

    async def watch(self) -> None:
        """Request the models' metadata until the models are compatible.

        After that, request metadata only when a model rejects its inputs.
        """
        away_s = _AWAY_INTERVAL_S
        while True:
            self._wake.clear()
            reason, fault = await self._check_models()
            # While a model is unavailable only its own requests fail. A changed model makes the graph unready.
            if not self.ready or fault in (GraphFault.MISMATCH, GraphFault.CYCLE, GraphFault.INVALID):
                self._become(reason, fault)
            away_s = _AWAY_INTERVAL_S if self.ready else min(away_s * _SLOWER, _AWAY_MOST_S)
            try:
                async with asyncio.timeout(self._again_s if self.ready else away_s):
                    await self._until_doubtful()
            except TimeoutError:
                continue

    async def _until_doubtful(self) -> None:
        """Wait until the models' metadata must be requested again.

        Meanwhile check that the composer's code does not block its event loop.
        """
        while self.ready and self._composer is not None and not self._wake.is_set():
            try:
                await self._composer.load_signature()
            except GraphError as wrong:
                self._become(str(wrong), wrong.fault)
                return
            try:
                async with asyncio.timeout(_BEAT_S):
                    await self._wake.wait()
            except TimeoutError:
                continue
        await self._wake.wait()

    async def _check_models(self) -> tuple[str, str]:
        """Request the metadata of all models, and check their compatibility.

        Returns: A sentence and a one-word reason why the graph cannot serve; empty if it can.
        """
        try:
            composer = None if self._composer is None else await self._composer.load_signature()
        except GraphError as wrong:
            return str(wrong), wrong.fault
        warned = await asyncio.gather(*(self._request_metadata(each) for each in self._steps.values()))
        if problems := [(sentence, fault) for _, sentence, fault in warned if sentence]:
            return problems[0]
        documents = {name: document for name, (document, _, _) in zip(self._steps, warned, strict=True)}
        try:
            graph = type_check(self._plan, documents, self._identity, composer)
            for name, document in documents.items():
                step = self._steps[name]
                step.signature = parse_metadata(document)
                if self._composer is not None:  # its code may use any output
                    step.used = tuple(graph.signatures[name].outputs)
            signature = parse_metadata(graph_metadata(graph, self._name, frozenset({self._identity})))
            if self.signature is not None and signature != self.signature:
                logger.warning("event=signature_changed inputs=%s", list(signature.inputs))
                self._again_s = _CHECK_S
            self.signature = signature
        except GraphError as wrong:
            return str(wrong), wrong.fault
        except SignatureError as error:
            return str(error), GraphFault.MISMATCH
        self._typed = graph
        return "", ""

    async def _request_metadata(self, step: StepClient) -> tuple[dict[str, Any], str, str]:
        """Request a model's metadata.

        Returns: The metadata, and a sentence and a one-word reason if there is none.
        """
        try:
            async with asyncio.timeout(_CHECK_S):
                document = await step.upstream.metadata()
                _, step.binary = await step.upstream.server()
                return document, "", ""
        except RuntimeLost:  # a constant text, since each change of it is a write of a status
            return {}, f"step {step.name}: {LOST} ({step.url})", ""
        except RuntimeUnavailable as away:
            fault = GraphFault.MISSING if isinstance(away, UnknownHost) else ""
            return {}, f"step {step.name}: {away} ({step.url})", fault
        except (ProxyError, SignatureError) as error:
            return {}, f"step {step.name}: {error} ({step.url})", GraphFault.MISSING
        except TimeoutError:
            return {}, f"step {step.name}: no response from {step.url} within {_CHECK_S:g} s", ""

    def _become(self, reason: str, fault: str) -> None:
        changed = bool(reason) != bool(self.reason)
        if reason and reason != self.reason:
            # Models that start at the same time are no fault.
            logger.log(logging.WARNING if fault else logging.INFO, "event=not_ready reason=%r", reason[:1000])
        self.losses += changed and bool(reason)
        self.reason, self.fault = reason, fault
        if not reason:
            self.started.set()
        if changed:
            self.on_change()

    async def exchange(self, batch: Batch, signature: ModelSignature, metrics: Metrics) -> GraphResponse:
        """Pass a request, the only one of its batch, through the graph.

        Raises:
            ProxyError: a step failed; the message has the step's name.
        """
        graph, sent_s, task = self._typed, time.monotonic(), asyncio.current_task()
        assert graph is not None
        assert task is not None
        part = batch.slices[0]
        if part.pending.resolved:  # it was cancelled after it was sent, before there was a task to cancel
            raise DeadlineExceeded("the client has disconnected")
        took_s: dict[str, float] = {}
        context = CallContext(batch.deadline_s, self._headers(batch), batch.key.parameters, self._room)
        ask = partial(self._call_step, context, metrics, took_s)
        frame = GraphRequest(graph, part.inputs, part.pending.rows, self._most_bytes)
        self._walks[part.pending] = task
        try:
            if self._composer is None:
                outputs = await walk(graph.plan, frame, ask)
            else:
                outputs = await self._composer.run(graph, part.inputs, part.pending.rows, batch.deadline_s, ask)
        except RowsError as refused:  # another name: a compiled function has one type for each
            raise RowsFailed(refused.errors) from None
        except ProxyError as error:
            error.may_have_run = error.may_have_run or bool(took_s)
            raise
        finally:
            context.end()
            del self._walks[part.pending]
        return GraphResponse(outputs, took_s, frame.omitted, sent_s)

    def abandoned(self, pending: PendingRequest) -> None:
        """Cancel the walk of a request whose client has disconnected."""
        if (task := self._walks.get(pending)) is not None:
            task.cancel()

    def close(self) -> None:
        """Close all connections to models, and stop the composer."""
        for step in self._steps.values():
            step.upstream.close()
        if self._composer is not None:
            self._composer.close()

    async def _call_step(
        self,
        context: CallContext,
        metrics: Metrics,
        took_s: dict[str, float],
        step: GraphStep,
        inputs: Mapping[str, Array],
        rows: int,
    ) -> Mapping[str, Array]:
        """Call a step's model, and record its time or failure."""
        begun_s = time.monotonic()
        try:
            outputs = await self._steps[step.name].call(inputs, rows, context)
        except ProxyError as error:
            metrics.step_failures[step.name] += 1
            # A model that rejects its inputs may have changed: request its metadata again.
            now_s = time.monotonic()
            odd = error.status == InvalidRequest.status or (isinstance(error, StepFailed) and error.unfit)
            if odd and now_s - self._doubted_s > _DOUBT_S:
                self._doubted_s = now_s
                self._wake.set()
            raise
        took_s[step.name] = took_s.get(step.name, 0.0) + time.monotonic() - begun_s
        metrics.step_seconds[step.name].observe(time.monotonic() - begun_s)
        return outputs

    def _headers(self, batch: Batch) -> list[tuple[bytes, bytes]]:
        """Return the headers of the requests to all steps.

        Raises:
            InvalidRequest: the request has passed this graph before.
        """
        pending = batch.slices[0].pending
        passed = dict(batch.key.headers)
        through = passed.pop(_GRAPHS, b"")
        if self._identity.encode() in through.split(b","):
            raise InvalidRequest(f"the graph calls itself: {through.decode('latin-1')},{self._identity}")
        # Each graph adds its name, so that a cycle of graphs ends.
        passed[_GRAPHS] = b",".join([*filter(None, [through]), self._identity.encode()])
        if pending.lane.level:
            passed[_PRIORITY] = b"%d" % pending.lane.level
        if self._fair_share_header and pending.lane.share:
            passed[self._fair_share_header] = pending.lane.share
        return [*trace_headers(batch), *passed.items()]
