"""The inference port's HTTP protocol: uvicorn's, with a short way for the infer routes.

uvicorn runs an ASGI application as one task with two or three awaits per request, about 20 us. An infer request needs
none of that: its body is collected here, decoded when complete, queued, and its reply written when the batch is back.
Every other path goes through uvicorn and Starlette unchanged. A caller that disconnects is known at once and leaves the
queue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from shoal_proxy.batching.pending import Pending
from shoal_proxy.batching.returns import Burst
from shoal_proxy.body import LARGE_BYTES, Body, BodyReader
from shoal_proxy.codecs.base import Reply
from shoal_proxy.errors import BodyTooLarge, ProxyError, RequestTimeout
from shoal_proxy.heads import Head
from shoal_proxy.inference import Inference
from shoal_proxy.settings import Settings

logger = logging.getLogger("shoal.proxy")

LINGER_S = 2.0
"""How long an unread body is thrown away after an early refusal: the caller must read our answer before a reset."""
_SMALL_BYTES = 65536
_PIPELINE = 16
"""Requests that one caller may send ahead of its answers before it is read no further."""
_ECHOED = (b"x-request-id", b"traceparent")
_METHODS = frozenset({b"POST", b"PUT"})


class _NobodyWaits:
    """What uvicorn's protocol sets when a connection closes; an infer request awaits nothing."""

    def set(self) -> None:
        """Do nothing."""


_NOBODY_WAITS = _NobodyWaits()


class InferCycle:
    """One infer request on one connection, from its head until its reply is written."""

    __slots__ = (
        "_chunks", "_held_bytes", "_pending", "_protocol", "_refusal", "active", "body", "complete", "disconnected",
        "head", "keep_alive", "response_complete",
    )  # fmt: skip
    message_event = _NOBODY_WAITS

    def __init__(self, protocol: InferProtocol, head: Head) -> None:
        self._protocol = protocol
        self._chunks: list[bytes] = []
        self._held_bytes = 0
        self._pending: Pending | None = None
        self._refusal: ProxyError | None = None
        self.body: Body | None = None
        """Where a large body goes; None for one that is small, of unknown length, or not wanted."""
        self.head = head
        self.keep_alive = head.keep_alive
        self.active = False
        """It is this request's turn: earlier ones on the connection have been answered."""
        self.complete = False
        """The whole body has arrived."""
        self.response_complete = False
        self.disconnected = False

    def begin(self) -> None:
        """Take the headers' word for the body's size, before any of it has come."""
        declared = self.head.headers.get(b"content-length")
        if declared is not None:
            size_bytes = int(declared)
            self._admit(size_bytes)
            if size_bytes > LARGE_BYTES and self._refusal is None:
                self.body = Body(size_bytes)

    def activate(self) -> None:
        """Go on, now that it is this request's turn to be answered."""
        self.active = True
        if self._refusal is not None:
            self.refuse(self._refusal)
        elif self.complete:
            body = self.body.view if self.body is not None else b"".join(self._chunks)
            self.body, self._chunks = None, []
            self.submit(body)

    def submit(self, body: bytes | memoryview) -> None:
        """Queue the request, whose turn it is and whose ``body`` is here."""
        self.active = self.complete = True
        self._pending = self._protocol.inference.start(self.head, body, self.reply)
        if self._pending is not None:
            self._release()

    def add(self, chunk: bytes) -> None:
        """Take a piece of the body."""
        if b"content-length" not in self.head.headers:
            self._admit(len(chunk))
        if self._refusal is not None or self.response_complete:
            return
        if self.body is not None:
            self.body.add(chunk)
        else:
            self._chunks.append(chunk)

    def end_of_body(self) -> None:
        """Note that the whole body is here."""
        self.complete = True
        if self.active and not self.response_complete:
            self.activate()

    def abandon(self) -> None:
        """Note that the caller has gone."""
        self.disconnected = True
        self._release()
        if self._pending is not None:
            self._protocol.inference.cancel(self._pending)

    def refuse(self, error: ProxyError) -> None:
        """Answer before the body has been read, and read no more of it."""
        self.keep_alive = False
        self.reply(self._protocol.inference.refuse(self.head.route, error))

    def reply(self, reply: Reply) -> None:
        """Write ``reply``, once; the queue calls this when the request's batch has come back."""
        if self._pending is not None:
            self._protocol.answered(self._pending.rows)
        self._pending = None
        self.response_complete = True
        self._release()
        try:
            self._protocol.write_reply(self, reply)
        except Exception:
            # The neighbours in the batch must get theirs whatever happens here; this caller sees its connection close.
            logger.exception("event=reply_failed")
            self._protocol.transport.abort()

    def _admit(self, size_bytes: int) -> None:
        """Account for body bytes; refuse the request when it, or all requests together, hold too many."""
        if self._refusal is not None:
            return
        limit = self._protocol.settings.max_body_bytes
        try:
            if self._held_bytes + size_bytes > limit:
                raise BodyTooLarge(f"the body is over the limit of {limit} bytes")
            self._protocol.inference.hold_body(size_bytes)
        except ProxyError as error:
            self._refusal = error
            self._chunks.clear()
            if self.active:
                self.refuse(error)
        else:
            self._held_bytes += size_bytes

    def _release(self) -> None:
        """The body is the queue's to count now, or nobody's."""
        self.body = None
        if self._held_bytes:
            self._protocol.inference.release_body(self._held_bytes)
            self._held_bytes = 0


class InferProtocol(HttpToolsProtocol):
    """One caller's connection. ``inference`` and ``settings`` come on top of what uvicorn passes."""

    cycle: Any
    pipeline: deque[Any]

    def __init__(self, *args: Any, inference: Inference, settings: Settings, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.inference = inference
        self.settings = settings
        self._unanswered: deque[InferCycle] = deque()
        """Infer requests in the order in which they came, which is the order of their answers."""
        self._idle_since_s = 0.0
        self._burst: Burst | None = None
        """The callers this one was answered with."""
        self._burst_rows = 0
        self._message_open = False
        self._body_timer: asyncio.TimerHandle | None = None
        self._defaults: list[tuple[bytes, bytes]] | None = None
        self._default_lines = b""
        self._reader: BodyReader | None = None
        """Reads in our place once this caller has sent a large body."""

    def data_received(self, data: bytes) -> None:
        """Parse what is not known by heart, and bound the time that a half-sent request may take (asyncio)."""
        previous = self.cycle
        if self._message_open or not (previous is None or previous.response_complete):
            self._parse(data)
        elif (known := self.inference.heads.find(data)) is not None:
            head, start = known
            self._note_return()
            self.cycle = cycle = InferCycle(self, head)
            self._unanswered.append(cycle)
            cycle.submit(data[start:])
        else:
            self._parse(data)
            if self.cycle is not previous and isinstance(self.cycle, InferCycle) and self.cycle.complete:
                self.inference.heads.remember(data, self.cycle.head)

    def _parse(self, data: bytes) -> None:
        super().data_received(data)
        if self._message_open:
            if self._body_timer is None:
                self._body_timer = self.loop.call_later(self.settings.body_timeout_s, self._too_slow)
            self._read_into_place()
        elif self._body_timer is not None:
            self._stop_body_timer()

    def _read_into_place(self) -> None:
        """Let the rest of a large body pass the parser by."""
        cycle = self.cycle
        if isinstance(cycle, InferCycle) and cycle.body is not None and not cycle.complete:
            # The old one would wait for the body for ever.
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            if self._reader is None:
                self._reader = BodyReader(self, self._body_in_place)
                self._be_read_by(self._reader)
            self._reader.body = cycle.body

    def _body_in_place(self) -> None:
        self._stop_body_timer()
        self.on_message_complete()

    def _be_read_by(self, reader: BodyReader) -> None:
        """Let ``reader`` have what comes; uvloop takes note of its kind when it starts to read."""
        if self.transport.is_closing():
            return
        if not self.flow.read_paused:
            self.transport.pause_reading()
        self.transport.set_protocol(reader)
        if not self.flow.read_paused:
            self.transport.resume_reading()

    def _stop_body_timer(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Take this caller's requests out of the queue (asyncio)."""
        for timer in (self._body_timer, self.timeout_keep_alive_task):
            if timer is not None:
                timer.cancel()
        for cycle in self._unanswered:
            cycle.abandon()
        self._unanswered.clear()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Start a request, without the ASGI scope, which an infer request does not need (httptools)."""
        self._message_open = True
        self._note_return()
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def _note_return(self) -> None:
        if self._burst is not None:
            self._burst.came_back(self._burst_rows, time.monotonic())
            self._burst = None

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header (httptools)."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Choose the short way for an infer route (httptools)."""
        headers = dict(self.headers)
        self.expect_100_continue = headers.get(b"expect", b"").lower() == b"100-continue"
        routes = self.inference.routes
        route = routes.get(self.url) or routes.get(self.url.partition(b"?")[0])
        if route is None or self.parser.get_method() not in _METHODS:
            self._headers_for_asgi()
            return
        previous = self.cycle
        self.cycle = cycle = InferCycle(self, Head(route, headers, keep_alive=self.parser.should_keep_alive()))
        self._unanswered.append(cycle)
        cycle.begin()
        if previous is not None and not previous.response_complete:
            self.pipeline.appendleft((cycle, self.app))
            self._read_no_further()
            return
        cycle.activate()
        if self.expect_100_continue and not cycle.response_complete:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _headers_for_asgi(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Hand a piece of the body to its request (httptools)."""
        if isinstance(self.cycle, InferCycle):
            self.cycle.add(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Note the end of a request (httptools)."""
        self._message_open = False
        if isinstance(self.cycle, InferCycle):
            self.cycle.end_of_body()
        else:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on to the connection's next request; one keep-alive timer a connection, not one a request (uvicorn)."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._idle_since_s = time.monotonic()
            if self.timeout_keep_alive_task is None:
                self._look_again_in(self.timeout_keep_alive)
        self._read_no_further()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it has been idle all the while, else look again later (uvicorn)."""
        idle_s = time.monotonic() - self._idle_since_s
        if self.cycle.response_complete and idle_s >= self.timeout_keep_alive:
            super().timeout_keep_alive_handler()
        else:
            self._look_again_in(max(1.0, self.timeout_keep_alive - idle_s))

    def _look_again_in(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _unset_keepalive_if_required(self) -> None:
        """Leave the timer alone: it looks for itself whether the connection was idle (uvicorn)."""

    def pause_writing(self) -> None:
        """A caller that does not read its answers is not read either (asyncio)."""
        super().pause_writing()
        self._read_no_further()

    def resume_writing(self) -> None:
        """Read again (asyncio)."""
        super().resume_writing()
        self.flow.resume_reading()
        self._read_no_further()

    def answered(self, rows: int) -> None:
        """Note that the caller has its answer with others, and may be back with them."""
        if self._burst is None and (burst := self.inference.burst) is not None:
            burst.answered(rows)
            self._burst, self._burst_rows = burst, rows

    def write_reply(self, cycle: InferCycle, reply: Reply) -> None:
        """Write one whole response."""
        if self._unanswered:
            self._unanswered.popleft()
        if cycle.disconnected or self.transport.is_closing():
            return
        head = self._reply_head(cycle, reply)
        if reply.size_bytes <= _SMALL_BYTES:
            self.transport.write(b"".join((head, *reply.body)))
        else:
            self.transport.writelines([head, *reply.body])
        if cycle.keep_alive:
            self.on_response_complete()
        elif cycle.complete:
            self.transport.close()
        else:
            self._linger()

    def _reply_head(self, cycle: InferCycle, reply: Reply) -> bytes:
        if self._defaults is not self.server_state.default_headers:  # uvicorn makes them anew each second
            self._defaults = self.server_state.default_headers
            self._default_lines = b"".join(b"%b: %b\r\n" % header for header in self._defaults)
        lines = reply.lines
        headers = cycle.head.headers
        for name in _ECHOED:
            if name in headers:
                lines += b"%b: %b\r\n" % (name, headers[name])
        if not (cycle.keep_alive and self.inference.keeps_connections):
            cycle.keep_alive = False
            lines += b"connection: close\r\n"
        first = STATUS_LINE[reply.status]
        return b"%b%bcontent-type: %b\r\ncontent-length: %d\r\n%b\r\n" % (
            first, self._default_lines, reply.content_type, reply.size_bytes, lines,
        )  # fmt: skip

    def _linger(self) -> None:
        """Say that no more comes, and drop what the caller still sends until it has seen our answer."""
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_S, self.transport.close)

    def _too_slow(self) -> None:
        """The request did not arrive whole in time."""
        self._body_timer = None
        if isinstance(self.cycle, InferCycle) and self.cycle.active and not self.cycle.response_complete:
            self.cycle.refuse(RequestTimeout(f"the request did not arrive within {self.settings.body_timeout_s:g} s"))
        else:
            self.transport.close()

    def _read_no_further(self) -> None:
        """Stop reading a caller that asks ahead without end or does not take its answers.

        A few requests may come ahead of their turn, because while reading is paused nobody sees the caller hang up.
        """
        if len(self.pipeline) >= _PIPELINE or self.flow.write_paused:
            self.flow.pause_reading()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Start whichever request is next on this connection (uvicorn, for pipelined requests)."""
        if isinstance(cycle, InferCycle):
            cycle.activate()
        else:
            super()._start_asgi_task(cycle, app)
