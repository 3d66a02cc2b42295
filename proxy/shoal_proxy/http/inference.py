"""Handling of infer requests: decode, queue, and encode the response."""

import logging
import time
from collections.abc import Callable, Mapping
from urllib.parse import quote

from shoal_proxy.access.control import AccessControl, AuthenticatedClient
from shoal_proxy.asynchronous.execution import AsyncRequests
from shoal_proxy.asynchronous.jobs import Job, JobRequest
from shoal_proxy.balance.orca import load_line
from shoal_proxy.batching.pending import NEVER_S, Outcome, PendingRequest, RequestResult
from shoal_proxy.bodies.body import LARGE_BYTES
from shoal_proxy.bodies.body_memory import BodyMemory, BodyTransfer
from shoal_proxy.bodies.compression import Compression
from shoal_proxy.bodies.decompressor import CODINGS
from shoal_proxy.bodies.rotation import Rotation
from shoal_proxy.codecs.base import EXECUTED, DecodedRequest, HttpResponse, InferCall, check_rows
from shoal_proxy.codecs.protocols import CODECS, CodecOptions
from shoal_proxy.codecs.upstream import check_json
from shoal_proxy.dispatch.dispatcher import Dispatcher
from shoal_proxy.errors import (
    MaybeExecuted,
    ModelFailed,
    Overloaded,
    ProxyError,
    RuntimeUnavailable,
    Unauthenticated,
    UnsupportedCoding,
)
from shoal_proxy.http.cors import Cors
from shoal_proxy.http.early_responses import EarlyResponses
from shoal_proxy.http.header_cache import HeaderCache, InferRoute, QueueParameters, RequestHead
from shoal_proxy.http.job_acceptance import JobAcceptance
from shoal_proxy.http.parameters import ParameterReader
from shoal_proxy.http.pending_requests import PendingRequests
from shoal_proxy.lifecycle.drain import KEEPS_CONNECTIONS
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.observe.access_log import AccessLog
from shoal_proxy.observe.log_sampling import LogSampler
from shoal_proxy.observe.metrics import Metrics
from shoal_proxy.observe.timing import server_timing
from shoal_proxy.observe.tracer import GONE, Tracer, attach
from shoal_proxy.settings import Settings
from shoal_proxy.tracing.span import Span
from shoal_schema.interfaces.headers import INSTANCE, REVISION
from shoal_schema.interfaces.metrics import RejectionReason
from shoal_schema.interfaces.protocols import HTTP, RESULT, SHADOW_LABEL

logger = logging.getLogger(__name__)

_REVISION_LINE = f"{REVISION}: %b\r\n".encode()
CHALLENGE = b"www-authenticate: Bearer\r\n"
_ACCEPTED_CODINGS = b"accept-encoding: %b\r\n" % CODINGS
_SEND_AGAIN = (503, 504)
"""Statuses after which a client may retry, so that the message states whether the request may have run."""


def infer_routes(settings: Settings) -> Mapping[bytes, InferRoute]:
    """Return the infer routes of the served model, by path."""
    options = CodecOptions(settings.name, settings.queue.max_body_bytes, settings.model.extra_columns)
    routes: dict[bytes, InferRoute] = {}
    for protocol in HTTP.protocols:
        route = InferRoute(protocol.label, CODECS[protocol.label](options), supports_async=protocol.asynchronous)
        for path in protocol.infer_paths:
            routes[path.format(model=settings.name, version=settings.version).encode("ascii")] = route
    return routes


class Inference:
    """Decodes inference calls, submits them, and encodes their outcomes."""

    def __init__(
        self, settings: Settings, dispatcher: Dispatcher, metrics: Metrics, access_control: AccessControl | None = None
    ) -> None:
        self.access_control = access_control
        """Authenticates clients; None: all are allowed."""
        self._parameters = ParameterReader(settings.forwarded_headers, settings.fair_share_header)
        self._dispatcher = dispatcher
        self._metrics = metrics
        origins = settings.proxy_cors.allowed_origins
        self.cors = Cors(origins) if origins else None
        self.rotation = Rotation()
        min_bytes = settings.proxy.compression_min_bytes
        self.compression = None if min_bytes is None else Compression(min_bytes, self.rotation)
        """Compresses responses; None if that is disabled."""
        self.tracer: Tracer | None = None
        """Traces sampled requests; None if tracing is disabled."""
        percent = settings.process.access_log_percent
        self.access_log = AccessLog(percent) if percent else None
        """Logs sampled requests; None if there is no access log."""
        self._instance_line = b"%b: %b\r\n" % (INSTANCE.encode(), dispatcher.instance)
        self.bodies = BodyMemory(settings.queue.max_bytes)
        """Memory of bodies that are not in the queue yet; `reserve_body` adds to it."""
        self._undecoded = LogSampler()
        self._early_responses = EarlyResponses()
        self._pending_requests = PendingRequests(
            settings.queue.timeout_milliseconds / 1000, settings.longest_s, settings.process.padding_factor
        )
        self.routes = infer_routes(settings)
        self.async_routes = {
            path: InferRoute(route.label, route.codec, route.supports_async, is_async=True)
            for path, route in self.routes.items()
        }
        """The routes for targets with ``?async=true``."""
        self._acceptance: JobAcceptance | None = None
        """Accepts asynchronous requests; None if the service accepts none."""
        self._result_path = RESULT.replace("{model}", quote(settings.name))
        self._cached_bytes = (min(settings.queue.max_body_bytes, LARGE_BYTES), settings.process.max_head_bytes)
        self.header_cache: HeaderCache = self._new_header_cache()

    def _new_header_cache(self) -> HeaderCache:
        return HeaderCache(*self._cached_bytes, self._parameters.names)

    def set_sticky_header(self, name: bytes) -> None:
        """Assign clients to revisions by the header ``name``, in lower case; empty for none."""
        if name != self._parameters.sticky_header:
            self._parameters.sticky_header = name
            # Cached heads were interpreted without it.
            self.header_cache = self._new_header_cache()

    def set_asynchronous(self, asynchronous: AsyncRequests) -> None:
        """Accept asynchronous requests from now on."""
        self._acceptance = JobAcceptance(asynchronous, self._parameters, self._result_path, self.reject, self._counted)
        self._parameters.accepts_async = True

    @property
    def keeps_connections(self) -> bool:
        """Return whether connections stay open after a response."""
        return self._dispatcher.phase in KEEPS_CONNECTIONS

    def start(
        self, head: RequestHead, body: bytes | memoryview, respond: Callable[[HttpResponse], None]
    ) -> PendingRequest | None:
        """Queue a request; call ``respond`` exactly once with its response.

        Returns: None for an asynchronous request, and for a rejected one.
        """
        if self.tracer is not None:
            span = self.tracer.begin(head.headers, head.route.label, time.monotonic())
            if span is not None:
                return self._start(head, body, self._ending_span(self.tracer, span, respond), span)
        return self._start(head, body, respond, None)

    def run_job(self, job: Job, respond: Callable[[HttpResponse], None]) -> PendingRequest | None:
        """Queue the request of a job, which was accepted and charged to its client before.

        ``respond`` is called as by `start`.
        """
        request = job.request
        assert request is not None
        route = self._route_labelled(request.protocol)
        head = RequestHead(route, dict(request.headers), keep_alive=False)
        span = None if self.tracer is None else self.tracer.begin(head.headers, route.label, time.monotonic())
        if self.tracer is not None and span is not None:
            respond = self._ending_span(self.tracer, span, respond)
        try:
            signature = self._dispatcher.job_signature()
            decoded = self._decode(route, InferCall(head.headers, request.body), signature)
            pending = self._pending_requests.make(decoded, self._parameters.read(head), signature, time.monotonic())
            pending.deadline_s, pending.soft_deadline_s = job.deadline_s, NEVER_S
            pending.client = job.client
            if span is not None:
                attach(span, pending)
        except Exception as error:
            respond(self._reject_undecoded(route, error))
            return None
        decoded.inputs = {}
        pending.deliver = lambda outcome: respond(self._finish(route, decoded, outcome, signature, pending))
        try:
            self._dispatcher.submit_job(pending)
        except ProxyError as error:
            respond(self.reject(route, error))
            return None
        return pending

    def job_error(self, request: JobRequest, error: ProxyError) -> HttpResponse:
        """Return an error in the format of a job's protocol."""
        return self.reject(self._route_labelled(request.protocol), error)

    def _route_labelled(self, label: str) -> InferRoute:
        return next(route for route in self.routes.values() if route.label == label)

    def _ending_span(
        self, tracer: Tracer, span: Span, respond: Callable[[HttpResponse], None]
    ) -> Callable[[HttpResponse], None]:
        """Wrap ``respond`` to also end the request's span."""

        def end_span(response: HttpResponse) -> None:
            tracer.end(span, response.status, time.monotonic())
            respond(response)

        return end_span

    def _start(
        self, head: RequestHead, body: bytes | memoryview, respond: Callable[[HttpResponse], None], span: Span | None
    ) -> PendingRequest | None:
        route, parameters = head.route, head.parameters
        self._metrics.request_bytes += len(body)
        if self.access_control is not None:
            rejection = self.authenticate(head)
            if rejection is not None:
                self._early_responses.send(respond, self.reject(route, rejection), head)
                return None
            # The response ends the request's share of its client's limits.
            respond = self._releasing_limits(respond, head.client)
        try:
            signature = self._dispatcher.signature_to_decode()
            if parameters is None:
                parameters = head.parameters = self._parameters.read(head)
            if parameters.shadow:
                route = InferRoute(SHADOW_LABEL, route.codec)
            if parameters.load_format:
                respond = self._reporting_load(respond, parameters)
            decoded = self._decode(route, InferCall(head.headers, body), signature)
            pending = self._pending_requests.make(decoded, parameters, signature, time.monotonic())
            if self.access_control is not None and head.client is not None:
                pending.client = head.client
                # Raises `LimitReached` for a client over its limits.
                self.access_control.charge(head.client, pending.rows, pending.arrived_s, forwarded=pending.forwarded)
            if span is not None:
                attach(span, pending)
            if parameters.is_async:
                assert self._acceptance is not None
                self._acceptance.accept(head, body, pending, respond)
                return None
        except Exception as error:
            response = self._reject_undecoded(route, error)
            if parameters is not None and parameters.is_async and self._acceptance is not None:
                response = self._acceptance.kept_error(head, response)
            self._early_responses.send(respond, response, head)
            return None
        decoded.inputs = {}  # only the queue refers to them now, and frees them as soon as they are sent
        pending.deliver = lambda outcome: respond(self._finish(route, decoded, outcome, signature, pending))
        try:
            self._dispatcher.submit(pending)
        except ProxyError as error:
            response = self.reject(route, error, counts=not pending.forwarded)
            self._early_responses.send(respond, _with_revision(response, pending), head)
            return None
        return pending

    def _decode(self, route: InferRoute, call: InferCall, signature: ModelSignature) -> DecodedRequest:
        """Decode and check a request.

        Raises:
            ProxyError: the request is invalid.
        """
        decoded = route.codec.decode(call, signature)
        # Binary bodies are not limited by the number of JSON values.
        check_rows(decoded.rows)
        if not self._dispatcher.supports_binary:
            # The runtime cannot receive bytes, NaN and infinities as JSON.
            check_json(decoded.inputs, signature)
        return decoded

    def _reject_undecoded(self, route: InferRoute, error: Exception) -> HttpResponse:
        """Return the response to a request that failed before it was queued."""
        fault = error
        if isinstance(error, RuntimeUnavailable):
            self._dispatcher.scheduler.traffic.count_unread_rejection(RejectionReason.RUNTIME_AWAY)
        if not isinstance(fault, ProxyError):
            # An unexpected error in decoding fails only this request.
            if (unseen := self._undecoded.take(time.monotonic())) is not None:
                logger.error("event=decoding_failed unlogged=%d", unseen, exc_info=error)
            fault = ProxyError(f"the proxy could not decode this request: {type(error).__name__}: {error}")
        return self.reject(route, fault)

    def authenticate(self, head: RequestHead) -> ProxyError | None:
        """Authenticate the client; return the error if that fails, otherwise None."""
        if head.client is None and self.access_control is not None:
            try:
                head.client = self.access_control.identify(head.headers)
            except ProxyError as error:
                return error
        return None

    def _releasing_limits(
        self, respond: Callable[[HttpResponse], None], client: AuthenticatedClient | None
    ) -> Callable[[HttpResponse], None]:
        """Wrap ``respond`` to also record the response for the client's limits."""

        def release(response: HttpResponse) -> None:
            if self.access_control is not None and client is not None:
                self.access_control.record_response(client, response.status)
            respond(response)

        return release

    def _reporting_load(
        self, respond: Callable[[HttpResponse], None], parameters: QueueParameters
    ) -> Callable[[HttpResponse], None]:
        """Wrap ``respond`` to add this replica's load to the response.

        For a peer the name of this replica is added too.
        """

        def report(response: HttpResponse) -> None:
            load = self._dispatcher.load(time.monotonic(), peer=parameters.forwarded)
            if load is not None:
                response.lines += load_line(load, parameters.load_format)
            if parameters.forwarded:
                response.lines += self._instance_line
            respond(response)

        return report

    def cancel(self, pending: PendingRequest) -> None:
        """Cancel a request whose client has disconnected."""
        if self.tracer is not None and pending.span is not None:
            self.tracer.end(pending.span, GONE, time.monotonic())
        self._dispatcher.cancel(pending)
        if (
            pending.client is not None and self.access_control is not None
        ):  # after `cancel`: rows in a running batch still count
            self.access_control.release(pending.client)

    def reject(
        self, route: InferRoute, error: ProxyError, *, may_have_run: bool = False, counts: bool = True
    ) -> HttpResponse:
        """Return an error response in the route's protocol.

        ``counts`` is False where the replica that forwarded the request counts the error in its metrics.
        """
        if counts:
            self._metrics.rejected(error.reason)
        may_have_run = may_have_run or error.may_have_run
        if may_have_run and error.status in _SEND_AGAIN:
            error = MaybeExecuted(error)
        response = route.codec.error(error)
        response.lines += EXECUTED[may_have_run]
        if error.status == Unauthenticated.status:
            response.lines += CHALLENGE
        if isinstance(error, UnsupportedCoding):
            response.lines += _ACCEPTED_CODINGS
        if error.retry_after_s is not None:
            response.lines += b"retry-after: %d\r\n" % error.retry_after_s
        return self._counted(route, response)

    def reserve_body(self, body: BodyTransfer, size_bytes: int) -> None:
        """Reserve memory for received bytes of a body.

        Other bodies may be rejected to free this memory.

        Raises:
            Overloaded: bodies and queue exceed the limit, and this body is the one to reject.
        """
        waiting_bytes = self._dispatcher.scheduler.queue.size_bytes
        if not self.bodies.reserve(body, size_bytes, waiting_bytes, time.monotonic()):
            held = self.reading_bytes + waiting_bytes
            self._dispatcher.scheduler.traffic.count_unread_rejection(RejectionReason.QUEUE_BYTES)
            raise Overloaded(
                f"the limit of queued and incoming bytes is reached ({held})",
                reason=RejectionReason.QUEUE_BYTES,
                retry_after_s=1,
            )

    @property
    def reading_bytes(self) -> int:
        """Return the received bytes of all bodies that are not in the queue yet."""
        return self.bodies.size_bytes

    def _finish(
        self,
        route: InferRoute,
        decoded: DecodedRequest,
        outcome: Outcome,
        signature: ModelSignature,
        pending: PendingRequest,
    ) -> HttpResponse:
        if isinstance(outcome, RequestResult):
            try:
                response = route.codec.encode(decoded, outcome.outputs, outcome.lengths, signature)
                response.lines += server_timing(pending.queued_s, pending.timing)
                return self._counted(route, _with_revision(response, pending))
            except Exception as error:
                outcome = ModelFailed(f"the model's result cannot be encoded: {type(error).__name__}: {error}")
        # Triton's statistics have the time of failed requests.
        self._metrics.failed_s += time.monotonic() - pending.arrived_s
        response = self.reject(route, outcome, may_have_run=pending.may_have_run, counts=not pending.forwarded)
        return _with_revision(response, pending)

    def _counted(self, route: InferRoute, response: HttpResponse) -> HttpResponse:
        self._metrics.requests[route.label, response.status] += 1
        self._metrics.response_bytes += response.size_bytes
        return response


def _with_revision(response: HttpResponse, pending: PendingRequest) -> HttpResponse:
    """Add the revision that served the request, while the service has a candidate."""
    if pending.revision:
        response.lines += _REVISION_LINE % pending.revision
    return response
