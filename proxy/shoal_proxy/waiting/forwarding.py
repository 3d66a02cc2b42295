"""One request to one pod, and its answer back, both streamed by HTTP/1.1."""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import httpcore

from shoal_proxy.edge.sampling import Sampler
from shoal_proxy.errors import DeadlineExceeded, InvalidRequest, RuntimeLost
from shoal_proxy.waiting.passing import Headers, answer_headers, did_not_run, is_answer

logger = logging.getLogger(__name__)

CONNECT_S = 2.0
MAX_PAUSE_S = 10.0
"""How long a pod may say nothing amid an answer."""
Send = Callable[[dict[str, object]], Awaitable[None]]
_NOT_CONNECTED = (httpcore.ConnectError, httpcore.ConnectTimeout)
_LOST = (httpcore.NetworkError, httpcore.RemoteProtocolError, httpcore.TimeoutException)
# A node that is lost does not close: an idle connection to it is probed. What ends all others is the time.
_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
)


class Forwarded(NamedTuple):
    """A request as a pod gets it."""

    method: str
    target: bytes
    headers: Headers
    body: bytes


class PodSilent(DeadlineExceeded):
    """The pod had the request, and said nothing until its time was over; nobody knows whether it ran."""

    may_have_run = True


class Forwarder:
    """Connections to pods: each carries one request, so none is found closed by a pod that has gone.

    Args:
        max_pause_s: how long a pod may say nothing amid an answer.
    """

    def __init__(self, max_pause_s: float = MAX_PAUSE_S) -> None:
        self._max_pause_s = max_pause_s
        self._lost = Sampler()
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=None, max_keepalive_connections=0, socket_options=_ALIVE
        )

    async def close(self) -> None:
        """Close what is open."""
        await self._pool.aclose()

    async def forward(self, pod: str, request: Forwarded, within_s: float, send: Send) -> bool:
        """Return whether the pod's answer was sent on; else it did not run the request, which may be tried again.

        Args:
            pod: its ``HOST:PORT``.
            request: what it gets.
            within_s: how long the pod may take until it begins to answer.
            send: takes the answer (ASGI).

        Raises:
            InvalidRequest: the request cannot be written down for a pod; nothing was sent.
            PodSilent: the pod had it, and did not answer within that time.
            RuntimeLost: the pod went away with the request, perhaps amid its answer; nobody knows whether it ran.
        """
        try:
            async with asyncio.timeout(within_s) as patience:
                return await self._exchange(pod, request, patience, send)
        except _NOT_CONNECTED:
            return False
        except httpcore.LocalProtocolError as error:
            raise InvalidRequest(f"this request cannot be passed on: {error}") from None
        except _LOST as error:
            self._note(pod, error)
            raise _lost(error) from None
        except TimeoutError as error:
            self._note(pod, error)
            raise PodSilent("the pod that had the request did not answer in time") from None

    async def _exchange(self, pod: str, request: Forwarded, patience: asyncio.Timeout, send: Send) -> bool:
        host, _, port = pod.rpartition(":")
        url = httpcore.URL(scheme=b"http", host=host.strip("[]"), port=int(port), target=request.target)
        left_s = (patience.when() or 0.0) - asyncio.get_running_loop().time()
        # Less than the time that is left: a connection that does not come about is known to have carried nothing.
        timeouts = {"timeout": {"connect": min(CONNECT_S, 0.9 * left_s)}}
        headers = list(request.headers)
        async with self._pool.stream(
            request.method, url, headers=headers, content=request.body, extensions=timeouts
        ) as answer:
            if did_not_run(answer.status, answer.headers):
                return False
            if not is_answer(answer.status, answer.headers):
                raise httpcore.RemoteProtocolError(f"status {answer.status}, or a header's value")
            patience.reschedule(None)
            await send({
                "type": "http.response.start", "status": answer.status,
                "headers": answer_headers(answer.status, answer.headers),
            })  # fmt: skip
            pieces = answer.aiter_stream()
            while (piece := await self._next(pieces, patience)) is not None:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return True

    async def _next(self, pieces: AsyncIterator[bytes], patience: asyncio.Timeout) -> bytes | None:
        """Return what comes next of an answer, in time; None at its end."""
        patience.reschedule(asyncio.get_running_loop().time() + self._max_pause_s)
        piece = await anext(pieces, None)
        patience.reschedule(None)  # how fast the caller takes it is not the pod's fault
        return piece

    def _note(self, pod: str, error: Exception) -> None:
        if (unlogged := self._lost.take(time.monotonic())) is not None:
            logger.warning("event=pod_lost pod=%s unlogged=%d error=%r", pod, unlogged, error)


def _lost(error: Exception) -> RuntimeLost:
    if isinstance(error, httpcore.RemoteProtocolError):
        return RuntimeLost("the pod that had the request gave no whole answer of HTTP/1.1")
    return RuntimeLost("the pod went away with the request")
