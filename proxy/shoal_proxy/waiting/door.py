"""What happens to a request at a service's port: it is held, and forwarded when it is its turn."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from shoal_proxy.codecs.base import EXECUTED
from shoal_proxy.connected import LINGER_S
from shoal_proxy.errors import ModelFailed, PerhapsExecuted, ProxyError, ServiceGone
from shoal_proxy.guard import codec_for
from shoal_proxy.metrics import Metrics
from shoal_proxy.waiting.forwarding import Forwarded, Forwarder, PodSilent
from shoal_proxy.waiting.hall import Hall
from shoal_proxy.waiting.line import Held, Line
from shoal_proxy.waiting.passing import (
    LONGEST_TIMEOUT_S,
    alive_document,
    announced_bytes,
    asked_s,
    is_liveness,
    request_headers,
)
from shoal_proxy.waiting.protocol import REFUSED

logger = logging.getLogger(__name__)

WAY_S = 0.5
"""What a pod's own answer at the deadline may take on its way: it knows more than the room does."""
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class CallerGone(Exception):
    """Nobody waits for the answer any more."""


class Desk:
    """What all doors share: who waits, how to reach pods, and whom to tell.

    Args:
        news: called when other requests wait than before.
    """

    def __init__(self, hall: Hall, forwarder: Forwarder, metrics: Metrics, news: Callable[[], None]) -> None:
        self.hall = hall
        self.forwarder = forwarder
        self.metrics = metrics
        self.news = news
        self._looks: dict[str, asyncio.TimerHandle] = {}

    def call(self, name: str) -> None:
        """Tell those whose turn it is."""
        line = self.hall.lines.get(name)
        if line is None:
            return
        for held, pod in line.turns(time.monotonic()):
            held.forward(pod)
        if (look := self._looks.pop(name, None)) is not None:
            look.cancel()
        if (at_s := line.next_look_s(time.monotonic())) is not None:
            self._looks[name] = asyncio.get_running_loop().call_later(
                max(0.0, at_s - time.monotonic()), self.call, name
            )
        self.news()


class Door:
    """One service's port, for one request."""

    def __init__(self, name: str, desk: Desk) -> None:
        self._name = name
        self._desk = desk
        self._whole = False
        """Whether the request's body has come."""
        self._begun = False
        """Whether a pod's answer has begun to go to the caller."""

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        if is_liveness(scope["path"]):
            await _answer(send, 200, alive_document(scope["path"]))
            return
        try:
            await self._hold(scope, receive, send)
        except CallerGone:
            self._desk.metrics.rejections["cancelled"] += 1
        except ProxyError as error:
            self._desk.metrics.rejected(error.reason)
            if not self._begun:  # else the connection ends amid the answer, as the pod's has
                await _refuse(send, scope["path"], error, None if self._whole else receive)
        except Exception:  # a surprise is told in the caller's protocol, as all else is
            logger.exception("event=request_failed service=%s", self._name)
            if not self._begun:
                await _refuse(send, scope["path"], ModelFailed("the waiting room failed with this request"), None)

    async def _hold(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        hall, now_s = self._desk.hall, time.monotonic()
        if self._name not in hall.lines:
            raise _no_more()
        hall.check_size(self._name, announced_bytes(scope["headers"]))
        turns: asyncio.Queue[str] = asyncio.Queue()
        held = Held(now_s, turns.put_nowait, lambda: turns.put_nowait(""))
        hall.enter(self._name, held, now_s)
        self._desk.news()
        try:
            body = await self._body(scope, receive, held)
            hall.lines[self._name].stand(held)
            async with _while_here(receive):
                self._desk.call(self._name)
                await self._forward(scope, body, held, turns, send)
        finally:
            hall.leave(self._name, held)
            self._desk.call(self._name)

    async def _body(self, scope: dict[str, Any], receive: Receive, held: Held) -> bytes:
        """Return the body; its pace is the connection's business, and only then its time begins, as at a proxy."""
        pieces = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise CallerGone
            if REFUSED in scope:
                raise scope[REFUSED]
            if held.gone:
                raise _no_more()
            self._desk.hall.grow(self._name, held, len(message["body"]), time.monotonic())
            pieces.append(message["body"])
            if not message.get("more_body"):
                self._whole = True
                return b"".join(pieces)

    async def _forward(
        self, scope: dict[str, Any], body: bytes, held: Held, turns: "asyncio.Queue[str]", send: Send
    ) -> None:
        """Try pods, each in this request's turn, until one has run it."""
        begun_s = time.monotonic()
        own_s = asked_s(scope["headers"])
        default_s = self._line().service.timeout_s
        deadline_s = begun_s + min(own_s or default_s, LONGEST_TIMEOUT_S)
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        while True:
            pod = await self._turn(held, turns, deadline_s)
            now_s = time.monotonic()
            headers = request_headers(scope["headers"], len(body), now_s - begun_s)
            request = Forwarded(scope["method"], target, headers, body)
            # A caller that names no time has at a pod what the pod gives it, from there on.
            within_s = (deadline_s - now_s if own_s else default_s) + WAY_S
            if await self._pod_runs(pod, request, within_s, send):
                return
            self._line().back(held, time.monotonic())
            self._desk.call(self._name)

    async def _turn(self, held: Held, turns: "asyncio.Queue[str]", deadline_s: float) -> str:
        """Return the pod that is to have the request now.

        Raises:
            ProxyError: there was none until its deadline, or the service is no more.
        """
        try:
            async with asyncio.timeout(deadline_s - time.monotonic()):
                pod = await turns.get()
        except TimeoutError:
            self._line()
            raise self._desk.hall.expired(self._name, held, time.monotonic()) from None
        if not pod:
            raise _no_more()
        return pod

    async def _pod_runs(self, pod: str, request: Forwarded, within_s: float, send: Send) -> bool:
        async def pass_on(message: dict[str, object]) -> None:
            self._begun = True
            await send(message)

        lines = self._desk.hall.lines
        try:
            ran = await self._desk.forwarder.forward(pod, request, within_s, pass_on)
        except PodSilent:
            if self._name in lines:
                lines[self._name].was_silent(pod, time.monotonic())
            raise
        if ran and self._name in lines:
            lines[self._name].has_answered(pod)
        return ran

    def _line(self) -> Line:
        """Return the service's line.

        Raises:
            ServiceGone: it is no more.
        """
        if self._name not in self._desk.hall.lines:
            raise _no_more()
        return self._desk.hall.lines[self._name]


@contextlib.asynccontextmanager
async def _while_here(receive: Receive) -> Any:
    """Cancel what the block does when the caller goes.

    Raises:
        CallerGone: it has gone.
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
        raise CallerGone from None
    finally:
        watching.cancel()


def _no_more() -> ProxyError:
    return ServiceGone("this service was deleted or is stopped: the waiting room holds nothing for it, and nothing ran")


async def _refuse(send: Send, path: str, error: ProxyError, receive: Receive | None) -> None:
    if error.may_have_run:
        error = PerhapsExecuted(error)
    reply = codec_for(path).error(error)
    name, _, value = EXECUTED[error.may_have_run].strip().partition(b": ")
    lines = [(name, value)]
    if error.retry_after_s is not None:
        lines.append((b"retry-after", b"%d" % error.retry_after_s))
    await _answer(send, reply.status, b"".join(reply.body), reply.content_type, lines, linger=receive)


async def _drop_the_rest(receive: Receive) -> None:
    """Read what still comes of a body, for a moment: a caller must read our answer before a reset."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while (await receive()).get("more_body"):
                pass


async def _answer(
    send: Send,
    status: int,
    body: bytes,
    content_type: bytes = b"application/json",
    lines: list[tuple[bytes, bytes]] | None = None,
    *,
    linger: Receive | None = None,
) -> None:
    length = (b"content-length", b"%d" % len(body))
    headers = [(b"content-type", content_type), length, *(lines or ()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if linger is not None:
        await _drop_the_rest(linger)
    await send({"type": "http.response.body", "body": b""})
