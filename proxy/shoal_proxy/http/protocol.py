"""The inference port's HTTP protocol: uvicorn's, with a fast path for the infer routes.

uvicorn runs an ASGI application as one task with two or three awaits per request, about 20 us. An infer request needs
no task: this module collects its body, decodes the complete body, queues the request, and writes the response when the
batch returns. All other paths go through uvicorn and Starlette unchanged. A disconnect is detected at once, and cancels
the client's requests.
"""

import asyncio
import logging
import random
import time
from collections import deque
from typing import Any
from urllib.parse import unquote_to_bytes

import httptools

from shoal_proxy.asynchronous.acceptance import queries_later_result
from shoal_proxy.batching.pending import PendingRequest
from shoal_proxy.batching.returns import Burst
from shoal_proxy.bodies.body import FIRST_BYTES, LARGE_BYTES, BodyReader
from shoal_proxy.bodies.body_memory import BodyTransfer
from shoal_proxy.bodies.compression import VARY
from shoal_proxy.bodies.decompression import CompressedBody
from shoal_proxy.bodies.decompressor import is_supported_coding
from shoal_proxy.codecs.base import HttpResponse
from shoal_proxy.errors import BodyTooLarge, Overloaded, ProxyError
from shoal_proxy.http.connection_limits import NO_EVENT, ConnectionLimits, RejectedRequest
from shoal_proxy.http.framed_protocol import FramedProtocol, origin_form
from shoal_proxy.http.header_cache import InferRoute, RequestHead
from shoal_proxy.http.inference import Inference
from shoal_proxy.http.timed_protocol import NOTHING
from shoal_proxy.observe.access_log import AccessLog, AccessLogEntry, client_host
from shoal_proxy.observe.tracer import GONE
from shoal_schema.interfaces.headers import REQUEST_ID, TRACEPARENT
from shoal_schema.interfaces.metrics import RejectionReason
from shoal_schema.wire.body import Body

logger = logging.getLogger(__name__)

_SMALL_BYTES = 65536
_ECHOED = (REQUEST_ID.encode(), TRACEPARENT.encode())
_METHODS = frozenset({b"POST", b"PUT"})
_CONTENT_ENCODING = b"content-encoding"


class _Held(BodyTransfer):
    """Memory account of the received part of one request's body."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: "InferCycle", expected_bytes: int) -> None:
        super().__init__()
        self._cycle = cycle
        self.expected_bytes = expected_bytes

    def evict(self) -> None:
        """Reject the request of this body to free memory.

        The body is the one that would hold its memory for longest.
        """
        self._cycle.stop(
            Overloaded(
                "request bodies exceed their memory limit, and this one is large and slow",
                reason=RejectionReason.QUEUE_BYTES,
                retry_after_s=1,
            )
        )


class InferCycle:
    """One infer request on one connection, from its head to its written response."""

    __slots__ = (
        "_chunks", "_expected_bytes", "_held", "_packed", "_pending", "_protocol", "_refusal", "active", "body",
        "complete", "disconnected", "head", "keep_alive", "response_complete",
    )  # fmt: skip
    message_event = NO_EVENT

    def __init__(self, protocol: "InferProtocol", head: RequestHead) -> None:
        self._protocol = protocol
        self._chunks: list[bytes] = []
        self._expected_bytes = 0
        self._held: _Held | None = None
        """Accounts for a body that arrives in pieces; None before the first one."""
        self._packed: CompressedBody | None = None
        """A compressed body; None for any other."""
        self._pending: PendingRequest | None = None
        self._refusal: ProxyError | None = None
        self.body: Body | None = None
        """The buffer of a large body; None if the body is small, of unknown length, or dropped."""
        self.head = head
        self.keep_alive = head.keep_alive
        self.active = False
        """Whether all earlier requests on the connection have their responses."""
        self.complete = False
        """Whether the whole body has arrived."""
        self.response_complete = False
        self.disconnected = False

    def begin(self) -> None:
        """Check the announced size and authenticate the client, before any byte of the body arrives."""
        declared = self.head.headers.get(b"content-length")
        limit_bytes = self._protocol.limits.max_body_bytes
        # A chunked body may have any size up to the limit.
        size_bytes = limit_bytes if declared is None else int(declared)
        if size_bytes > limit_bytes:
            self.stop(_too_large(limit_bytes))
            return
        inference = self._protocol.inference
        if inference.access_control is not None and (rejection := inference.authenticate(self.head)) is not None:
            self.stop(rejection)
            return
        coding = self.head.headers.get(_CONTENT_ENCODING)
        if coding is not None and is_supported_coding(coding):
            self._packed = CompressedBody(coding, self, inference.rotation)
            self._expected_bytes = limit_bytes
            return
        self._expected_bytes = size_bytes
        if declared is not None and size_bytes > LARGE_BYTES:
            self.body = Body(size_bytes, FIRST_BYTES)

    def activate(self) -> None:
        """Continue once all earlier requests of the connection have their responses."""
        self.active = True
        if self._refusal is not None:
            self.reject(self._refusal)
        elif self._packed is not None:
            if self._packed.ready:
                # From here on the request is like one with an uncompressed body.
                head = self.head
                headers = {name: value for name, value in head.headers.items() if name != _CONTENT_ENCODING}
                self.head = RequestHead(head.route, headers, keep_alive=head.keep_alive)
                self.head.client = head.client
                self.submit(self._packed.take())
        elif self.complete:
            body = self.body.view if self.body is not None else b"".join(self._chunks)
            self.body, self._chunks = None, []
            self.submit(body)

    def submit(self, body: bytes | memoryview) -> None:
        """Queue the request with its complete ``body``.

        Called once all earlier requests of the connection have responses.
        """
        self.active = self.complete = True
        self._pending = self._protocol.inference.start(self.head, body, self.respond)
        # The response to a request that never runs may be delayed, and needs no body.
        self._release()

    def add(self, chunk: bytes) -> None:
        """Store a piece of the body."""
        size_bytes = len(chunk)
        if self._packed is not None:
            if self.admit(size_bytes) and self._packed is not None:
                self._packed.add(chunk)
            return
        # A body in one piece goes to the queue at once, which has its own limit.
        if not (self.active and size_bytes == self._expected_bytes) and not self.admit(size_bytes):
            return
        if self._refusal is not None or self.response_complete:
            return
        if self.body is not None:
            self.body.add(chunk)
        else:
            self._chunks.append(chunk)

    def end_of_body(self) -> None:
        """Record that the body is complete."""
        self.complete = True
        if self._packed is not None:
            self._packed.end()
        elif self.active and not self.response_complete:
            self.activate()

    def count_decompressed(self, read_bytes: int, made_bytes: int) -> bool:
        """Count decompressed bytes instead of compressed ones.

        Returns: False if the request is rejected.
        """
        if self._held is not None:
            self._protocol.inference.bodies.shrink(self._held, read_bytes)
        return self._hold(made_bytes)

    def body_decompressed(self) -> None:
        """Queue the request once its body is decompressed and all earlier requests have responses."""
        if self.active and not self.response_complete:
            self.activate()

    def abandon(self) -> None:
        """Cancel the request, because its client has disconnected."""
        self.disconnected = True
        self._release()
        if self._pending is not None:
            self._protocol.inference.cancel(self._pending)

    def reject(self, error: ProxyError) -> None:
        """Respond with an error before the body is complete, and close the connection."""
        self.keep_alive = False
        self._protocol.limits.log_rejected_request(error)
        self.respond(self._protocol.inference.reject(self.head.route, error))

    def respond(self, response: HttpResponse) -> None:
        """Write ``response``, once; called when the request's batch returns."""
        if self.disconnected:
            return
        if self._pending is not None:
            # Before the response is written, as the client may be back at once.
            self._protocol.answered(self._pending)
        self._pending = None
        self._release()
        compression = self._protocol.inference.compression
        if compression is not None and (coding := compression.coding_for(self.head.headers, response)) is not None:
            compression.start(response, coding, self._write)
        else:
            self._write(response)

    def _write(self, response: HttpResponse) -> None:
        self.response_complete = True
        try:
            self._protocol.write_response(self, response)
        except Exception:
            # A failure must not affect the batch's other requests; this client's connection is closed.
            logger.exception("event=reply_failed")
            self._protocol.transport.abort()

    def admit(self, size_bytes: int) -> bool:
        """Count received bytes of the body.

        Returns: False if the request is rejected.
        """
        return self._hold(size_bytes)

    def _hold(self, size_bytes: int) -> bool:
        if self._refusal is not None or self.response_complete:
            return False
        limit_bytes = self._protocol.limits.max_body_bytes
        if self._held is None:
            self._held = _Held(self, self._expected_bytes)
        if self._held.held_bytes + size_bytes > limit_bytes:
            self.stop(_too_large(limit_bytes))
            return False
        try:
            self._protocol.inference.reserve_body(self._held, size_bytes)
        except Overloaded as error:
            self.stop(error)
            return False
        return True

    def stop(self, error: ProxyError) -> None:
        """Reject the request before it is queued, and ignore later input.

        The error response follows the responses to earlier requests.
        """
        self._refusal = error
        self._chunks.clear()
        self._release()
        self._protocol.ignore_input()
        if self.active:
            self.reject(error)

    def _release(self) -> None:
        """Release the memory account of the body.

        The queue counts the body now, or the body was dropped.
        """
        self.body = None
        if self._packed is not None:
            self._packed.drop()
        if self._held is not None:
            self._protocol.inference.bodies.release(self._held)
            self._held = None


class LoggedCycle(InferCycle):
    """An infer request with an entry in the access log."""

    __slots__ = ("_answered", "_entry", "_log")

    def __init__(self, protocol: "InferProtocol", head: RequestHead, log: AccessLog, entry: AccessLogEntry) -> None:
        super().__init__(protocol, head)
        self._log = log
        self._entry = entry
        self._answered: PendingRequest | None = None

    def submit(self, body: bytes | memoryview) -> None:
        """Queue the request, and record the size of its body for the log."""
        if self._packed is None:
            self._entry.bytes_in = len(body)
        super().submit(body)

    def admit(self, size_bytes: int) -> bool:
        """Account for received bytes of the body, also in the log entry."""
        self._entry.bytes_in += size_bytes
        return super().admit(size_bytes)

    def abandon(self) -> None:
        """Cancel the request, and log it."""
        pending = self._pending
        super().abandon()
        self._log.end(self._entry, GONE, 0, pending, self.head.client)

    def respond(self, response: HttpResponse) -> None:
        """Write ``response``, and log it."""
        self._answered = self._pending
        super().respond(response)

    def _write(self, response: HttpResponse) -> None:
        super()._write(response)
        self._log.end(self._entry, response.status, response.size_bytes, self._answered, self.head.client)
        # The connection keeps its last request, which must not keep its inputs.
        self._answered = None


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is over the limit of {limit_bytes} bytes")


class InferProtocol(FramedProtocol):
    """The protocol of one client's connection to the inference port.

    ``inference`` and ``limits`` are arguments in addition to uvicorn's.
    """

    def __init__(self, *args: Any, inference: Inference, limits: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(*args, limits=limits, **kwargs)
        self.inference = inference
        self._unanswered: deque[InferCycle] = deque()
        """Infer requests without a response, in the order of arrival."""
        self._burst: Burst | None = None
        """The clients whose responses were sent together with this one's."""
        self._burst_rows = 0
        self._ageing: asyncio.TimerHandle | None = None
        self._aged = False
        """Whether the connection closes after the next response, so that the client may reach a less busy replica."""
        self._reader: BodyReader | None = None
        """Replaces this protocol at the transport after the first large body."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, and limit its age (asyncio)."""
        super().connection_made(transport)
        most_s = self.limits.max_age_s
        if most_s:
            # Random, so that connections that were opened together are not reopened together.
            self._ageing = self.loop.call_later(random.uniform(most_s / 2, most_s), self._age)

    def _age(self) -> None:
        self._aged = True

    def data_received(self, data: bytes) -> None:
        """Match the input with the header cache, or parse it (asyncio)."""
        previous = self.cycle
        if self.incoming or not (previous is None or previous.response_complete):
            self._parse(data)
        elif (known := self.inference.header_cache.find(data)) is not None:
            head, start = known
            self.is_http_1_0 = False  # heads of HTTP/1.0 are never cached
            self._note_return()
            log = self.inference.access_log
            cycle = (
                InferCycle(self, head)
                if log is None
                else self._logged(log, head, *data[: data.find(b"\r")].split(b" ")[:2])
            )
            self.cycle = cycle
            self._unanswered.append(cycle)
            cycle.submit(data[start:])
        else:
            self._parse(data)
            if self.cycle is not previous and isinstance(self.cycle, InferCycle) and self.cycle.complete:
                self.inference.header_cache.store(data, self.cycle.head)

    def _parse(self, data: bytes) -> None:
        self.parse(data)
        if not self.incoming:
            return
        cycle = self.cycle
        if isinstance(cycle, InferCycle) and cycle.body is not None and not cycle.complete:
            # The rest of a large body is read into its buffer; the old parser would wait for it.
            self.new_parser()
            if self._reader is None:
                self._reader = BodyReader(self, self._more_in_place, self.on_message_complete)
                if not self.transport.is_closing():
                    # uvloop determines the kind of protocol when reading starts, so it is restarted.
                    if not self.flow.read_paused:
                        self.transport.pause_reading()
                    self.transport.set_protocol(self._reader)
                    if not self.flow.read_paused:
                        self.transport.resume_reading()
            self._reader.body = cycle.body

    def _more_in_place(self, size_bytes: int) -> None:
        self.meter.body_bytes += size_bytes
        self.cycle.admit(size_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the requests of the connection's client (asyncio)."""
        for cycle in self._unanswered:
            cycle.abandon()
        self._unanswered.clear()
        if self._ageing is not None:
            self._ageing.cancel()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Start a request (httptools)."""
        super().on_message_begin()
        self._note_return()

    def _note_return(self) -> None:
        if self._burst is not None:
            self._burst.record_return(self._burst_rows, time.monotonic())
            self._burst = None

    def check_repeated(self) -> None:
        """Reject a head with two Host headers or two credentials."""
        super().check_repeated()
        if self.inference.access_control is not None:
            self.inference.access_control.reject_repeated_credentials(self.headers)

    def take_head(self, headers: dict[bytes, bytes]) -> None:
        """Begin a request; requests for infer routes take the fast path."""
        routes = self.inference.routes
        route = routes.get(self.url) or self._route_of(self.url)
        if route is None or self.parser.get_method() not in _METHODS:
            super().take_head(headers)
            return
        previous = self.cycle
        head, log = RequestHead(route, headers, keep_alive=self.parser.should_keep_alive()), self.inference.access_log
        cycle = InferCycle(self, head) if log is None else self._logged(log, head, self.parser.get_method(), self.url)
        self.cycle = cycle
        self._unanswered.append(cycle)
        cycle.begin()
        if previous is not None and not previous.response_complete:
            # An earlier request has no response yet, so this one waits for its turn.
            self.pipeline.appendleft((cycle, self.app))
            self.pause_if_ahead()
            return
        cycle.activate()
        # The client waits for this before it sends the body (RFC 9110, section 10.1.1).
        if self.expect_100_continue and not cycle.response_complete:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _logged(self, log: AccessLog, head: RequestHead, method: bytes, target: bytes) -> InferCycle:
        """Return the cycle of an infer request; a `LoggedCycle` if the access log samples the request."""
        entry = log.begin(method, target, head.route.label, head.headers, client_host(self.client))
        return InferCycle(self, head) if entry is None else LoggedCycle(self, head, log, entry)

    def note_rejected_response(self, rejected: RejectedRequest, response: HttpResponse) -> None:
        """Log a rejected request, of which only target and headers may be known."""
        log = self.inference.access_log
        entry = (
            None
            if log is None
            else log.begin(b"", rejected.url, "http", dict(self.headers or ()), client_host(self.client))
        )
        if log is not None and entry is not None:
            log.end(entry, response.status, response.size_bytes)

    def _route_of(self, target: bytes) -> InferRoute | None:
        """Return the route of a target that has a query, a host or percent-encoded characters."""
        path, _, query = target.partition(b"?")
        try:
            if not path.startswith(b"/"):
                path = origin_form(path)
        except httptools.HttpParserError:
            return None
        # An encoded slash must not become a separator.
        if b"%" in path and b"%2f" not in path.lower():
            path = unquote_to_bytes(path)
        if queries_later_result(query):
            return self.inference.async_routes.get(path)
        return self.inference.routes.get(path)

    def on_body(self, body: bytes) -> None:
        """Pass a piece of the body to its request (httptools)."""
        if isinstance(self.cycle, InferCycle):
            self.meter.body_bytes += len(body)
            self.cycle.add(body)
        else:
            super().on_body(body)

    def message_complete(self) -> None:
        """Pass the end of the body to the request."""
        if isinstance(self.cycle, InferCycle):
            self.cycle.end_of_body()
        else:
            super().message_complete()

    def body_timed_out(self, error: ProxyError) -> None:
        """Reject a request whose body timed out."""
        if isinstance(self.cycle, InferCycle):
            self.cycle.stop(error)
        else:
            super().body_timed_out(error)

    def fail_open(self, cycle: Any, error: ProxyError) -> bool:
        """Reject an incomplete request.

        Returns: True if ``error`` needs no other response.
        """
        if not isinstance(cycle, InferCycle):
            return super().fail_open(cycle, error)
        cycle.stop(error)
        return True

    def ignore_input(self) -> None:
        """Discard further input, also the rest of a large body."""
        super().ignore_input()
        if self._reader is not None:
            self._reader.body = None

    def drop_open(self) -> None:
        """Drop the incomplete request.

        The request before it becomes the current one.
        """
        cycle = self.cycle
        if not isinstance(cycle, InferCycle) or cycle.complete or cycle.response_complete:
            return
        cycle.abandon()
        self._unanswered.remove(cycle)
        if self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()
        cycle.response_complete = True
        if self.pipeline:
            self.cycle = self.pipeline[0][0]
        elif self._unanswered:
            self.cycle = self._unanswered[-1]
        elif self.page is not None and not self.page.response_complete:
            self.cycle = self.page

    def answered(self, pending: PendingRequest) -> None:
        """Record a response, to predict when the client's next request arrives.

        The clients of one batch (a burst) may send their next requests together too.
        """
        if self._burst is None and (burst := pending.burst) is not None:
            burst.add_response(pending.rows)
            self._burst, self._burst_rows = burst, pending.rows

    def write_response(self, cycle: InferCycle, response: HttpResponse) -> None:
        """Write one whole response."""
        if self._unanswered:
            self._unanswered.popleft()
        if cycle.disconnected or self.transport.is_closing():
            return
        lines, headers = response.lines, cycle.head.headers
        for name in _ECHOED:
            if name in headers:
                lines += b"%b: %b\r\n" % (name, headers[name])
        if self.inference.compression is not None:
            lines += VARY
        if self.inference.cors is not None:
            lines += self.inference.cors.lines(headers.get(b"origin"))
        # An aged connection closes once no further request has arrived on it.
        last = self._aged and self.incoming == NOTHING and not (self.pipeline or self._unanswered)
        if last or not (cycle.keep_alive and self.inference.keeps_connections):
            cycle.keep_alive = False
            lines += b"connection: close\r\n"
        head = self.response_head(response, lines)
        if response.size_bytes <= _SMALL_BYTES:
            # For a small response one copy is cheaper than several buffers.
            self.transport.write(b"".join((head, *response.body)))
        else:
            self.write_large([head, *response.body])
        if cycle.keep_alive:
            self.on_response_complete()
        elif cycle.complete and not self._aged:
            self.transport.close()
        else:  # closing with unread input would reset the connection and discard the response
            self.linger()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Start the connection's next request (uvicorn, for pipelined requests)."""
        if isinstance(cycle, InferCycle):
            cycle.activate()
        else:
            super()._start_asgi_task(cycle, app)
