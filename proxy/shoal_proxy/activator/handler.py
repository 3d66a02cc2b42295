"""Handle requests at a service's port: hold each one until a pod can run it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from shoal_proxy.activator.forwarding import ForwardedRequest, Forwarder, PodTimeoutError
from shoal_proxy.activator.headers import (
    HEALTHY,
    MAX_TIMEOUT_S,
    NO_BODY,
    Headers,
    content_length,
    request_headers,
    requested_timeout_s,
)
from shoal_proxy.activator.holder import RequestHolder
from shoal_proxy.activator.protocol import REFUSED
from shoal_proxy.activator.queue import HeldRequest, ServiceQueue
from shoal_proxy.codecs.base import EXECUTED, HttpResponse
from shoal_proxy.codecs.protocols import codec_for
from shoal_proxy.errors import MaybeExecuted, ModelFailed, ProxyError, ServiceGone
from shoal_proxy.http.timed_protocol import LINGER_S
from shoal_proxy.observe.metrics import Metrics

logger = logging.getLogger(__name__)

TRANSIT_S = 0.5
"""Added to a pod's deadline, so that its own timeout response arrives: it is more precise than the activator's."""
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class ClientDisconnected(Exception):
    """The client has closed the connection."""


class Terms(NamedTuple):
    """What holds for one held request: its headers for the pod, and its times (s)."""

    headers: Headers
    timeout_s: float
    """From the complete request until a pod runs it."""
    response_s: float | None
    """Time for a pod to respond; None: the time left."""


class RequestReleaser:
    """The component that forwards held requests to pods, for all services.

    Args:
        news: called when the numbers of waiting requests may have changed.
    """

    def __init__(self, holder: RequestHolder, forwarder: Forwarder, metrics: Metrics, news: Callable[[], None]) -> None:
        self.holder = holder
        self.forwarder = forwarder
        self.metrics = metrics
        self.news = news
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def release(self, name: str) -> None:
        """Forward requests of a service to pods with room; schedule the next attempt."""
        queue = self.holder.queues.get(name)
        if queue is None:
            return
        # One reading of the clock: a pause that ended between two readings would start no timer.
        now_s = time.monotonic()
        for held, pod in queue.release(now_s):
            held.forward(pod)
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()
        if (at_s := queue.next_release_s(now_s)) is not None:
            self._timers[name] = asyncio.get_running_loop().call_later(at_s - now_s, self.release, name)
        self.news()


class RequestHandler:
    """The ASGI application that handles one request at the port of a service.

    Args:
        name: the service.
        releaser: shared by the handlers of all requests.
    """

    def __init__(self, name: str, releaser: RequestReleaser) -> None:
        self.name = name
        self.releaser = releaser
        self._complete = False
        """Whether the whole body has been received."""
        self._responding = False
        """Whether a part of a pod's response has been sent to the client."""

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Hold the request, and forward it to a pod (ASGI)."""
        if (healthy := HEALTHY.get(scope["path"])) is not None:
            await _respond(send, 200, healthy)
            return
        try:
            await self.handle(scope, receive, send)
        except ClientDisconnected:
            self.releaser.metrics.rejections["cancelled"] += 1
        except ProxyError as error:
            self.releaser.metrics.rejected(error.reason)
            # Once a response has begun, an error can only close the connection, as the pod did.
            if not self._responding:
                await reject(send, scope["path"], error, None if self._complete else receive)
        except Exception:  # an unexpected error, too, is reported in the client's protocol
            logger.exception("event=request_failed service=%s", self.name)
            if not self._responding:
                await reject(send, scope["path"], ModelFailed("the activator failed with an internal error"), None)

    async def handle(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Hold a request until a pod responds."""
        held, turns = self.enter(scope)
        try:
            body = await self.body(scope, receive, held)
            self.releaser.holder.queues[self.name].enqueue(held)
            own_s = requested_timeout_s(scope["headers"])
            default_s = self.queue().service.timeout_s
            # Without a deadline of the client's, the pod's own default timeout starts when the request reaches it.
            terms = Terms(scope["headers"], min(own_s or default_s, MAX_TIMEOUT_S), None if own_s else default_s)
            async with _while_connected(receive):
                self.releaser.release(self.name)
                await self.forward(scope, body, held, turns, terms, send)
        finally:
            self.leave(held)

    def enter(self, scope: dict[str, Any]) -> tuple[HeldRequest, "asyncio.Queue[str]"]:
        """Hold a request, whose body may be incomplete.

        Returns: the held request, and the pods to forward it to, one per turn; an empty address: the service is gone.

        Raises:
            ProxyError: a limit is reached, or the service is gone.
        """
        self.queue()  # raises where the service is gone
        holder, now_s = self.releaser.holder, time.monotonic()
        # An announced size over the limit is rejected before any byte of the body is held.
        holder.check_size(self.name, content_length(scope["headers"]))
        turns: asyncio.Queue[str] = asyncio.Queue()
        # Both callbacks only put into the queue, which the request's task reads.
        held = HeldRequest(now_s, turns.put_nowait, lambda: turns.put_nowait(""))
        holder.enter(self.name, held, now_s)
        self.releaser.news()
        return held, turns

    def leave(self, held: HeldRequest) -> None:
        """Release a held request's place; a second call has no effect."""
        self.releaser.holder.leave(self.name, held)
        self.releaser.release(self.name)

    async def body(self, scope: dict[str, Any], receive: Receive, held: HeldRequest) -> bytes:
        """Receive the body, whose transfer does not count against the deadline."""
        pieces = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            if REFUSED in scope:
                raise scope[REFUSED]
            if held.gone:
                raise _service_gone()
            self.releaser.holder.grow(self.name, held, len(message["body"]), time.monotonic())
            pieces.append(message["body"])
            if not message.get("more_body"):
                self._complete = True
                return b"".join(pieces)

    async def forward(
        self,
        scope: dict[str, Any],
        body: bytes,
        held: HeldRequest,
        turns: "asyncio.Queue[str]",
        terms: Terms,
        send: Send,
    ) -> None:
        """Forward the request to one pod after another until one has run it.

        Raises:
            ProxyError: no pod ran the request before its deadline, or the service is gone.
        """
        begun_s = time.monotonic()
        deadline_s = begun_s + terms.timeout_s
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        while True:
            try:
                async with asyncio.timeout(deadline_s - time.monotonic()):
                    pod = await turns.get()
            except TimeoutError:
                self.queue()  # raises where the service is gone
                raise self.releaser.holder.expired(self.name, held, time.monotonic()) from None
            if not pod:
                raise _service_gone()
            now_s = time.monotonic()
            headers = request_headers(terms.headers, len(body), now_s - begun_s)
            request = ForwardedRequest(scope["method"], target, headers, body)
            within_s = (deadline_s - now_s if terms.response_s is None else terms.response_s) + TRANSIT_S
            if await self._pod_runs(pod, request, within_s, send):
                return
            self.queue().requeue(held, time.monotonic())
            self.releaser.release(self.name)

    async def _pod_runs(self, pod: str, request: ForwardedRequest, within_s: float, send: Send) -> bool:
        async def pass_on(message: dict[str, object]) -> None:
            self._responding = True
            await send(message)

        queues = self.releaser.holder.queues
        try:
            ran = await self.releaser.forwarder.forward(pod, request, within_s, pass_on)
        except PodTimeoutError:
            if self.name in queues:
                queues[self.name].record_timeout(pod, time.monotonic())
            raise
        if ran and self.name in queues:
            queues[self.name].record_response(pod)
        return ran

    def queue(self) -> ServiceQueue:
        """Return the queue of the service.

        Raises:
            ServiceGone: the service left the operator's table.
        """
        if self.name not in self.releaser.holder.queues:
            raise _service_gone()
        return self.releaser.holder.queues[self.name]


@contextlib.asynccontextmanager
async def _while_connected(receive: Receive) -> Any:
    """Run a ``with`` block until it ends or the client disconnects.

    Raises:
        ClientDisconnected: the client disconnected, and the block was cancelled.
    """
    task, gone = asyncio.current_task(), False
    assert task is not None

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not gone:
            raise
        task.uncancel()
        raise ClientDisconnected from None
    finally:
        watching.cancel()


def _service_gone() -> ProxyError:
    return ServiceGone("this service was deleted or is stopped; the request did not run")


def error_response(path: str, error: ProxyError) -> HttpResponse:
    """Return an error in the protocol of a path."""
    if error.may_have_run:
        error = MaybeExecuted(error)
    response = codec_for(path).error(error)
    response.lines += EXECUTED[error.may_have_run]
    if error.retry_after_s is not None:
        response.lines += b"retry-after: %d\r\n" % error.retry_after_s
    return response


async def reject(send: Send, path: str, error: ProxyError, receive: Receive | None) -> None:
    """Send an error; read the rest of the body from ``receive`` first, if given."""
    response = error_response(path, error)
    body = b"".join(response.body)
    await _respond(send, response.status, body, response.content_type, response.headers(), linger=receive)


async def replay(send: Send, response: HttpResponse) -> None:
    """Send a response that was kept."""
    await _respond(send, response.status, b"".join(response.body), response.content_type, response.headers())


async def _respond(
    send: Send,
    status: int,
    body: bytes,
    content_type: bytes = b"application/json",
    lines: list[tuple[bytes, bytes]] | None = None,
    *,
    linger: Receive | None = None,
) -> None:
    described = (
        [(b"content-type", content_type), (b"content-length", b"%d" % len(body))] if status not in NO_BODY else []
    )
    headers = [*described, *(lines or ()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if linger is not None:
        # Closing with unread input resets the connection, which may discard the response before the client reads it.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while (await linger()).get("more_body"):
                    pass
    await send({"type": "http.response.body", "body": b""})
