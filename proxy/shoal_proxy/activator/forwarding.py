"""Forward one request to one pod by HTTP/1.1, and stream its response back."""

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import httpcore

from shoal_proxy.activator.headers import Headers, did_not_run, is_response, response_headers
from shoal_proxy.errors import DeadlineExceeded, InvalidRequest, RuntimeLost
from shoal_proxy.observe.log_sampling import LogSampler

logger = logging.getLogger(__name__)

CONNECT_S = 2.0
MAX_PAUSE_S = 10.0
"""The longest pause within a pod's response."""
Send = Callable[[dict[str, object]], Awaitable[None]]
_NOT_CONNECTED = (httpcore.ConnectError, httpcore.ConnectTimeout)
_LOST = (httpcore.NetworkError, httpcore.RemoteProtocolError, httpcore.TimeoutException)
# A lost node closes no connection: keep-alive probes find idle ones, timeouts end all others.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
)


class ForwardedRequest(NamedTuple):
    """A request in the form that is sent to a pod."""

    method: str
    target: bytes
    headers: Headers
    body: bytes


class PodTimeoutError(DeadlineExceeded):
    """A pod did not respond before the deadline, and may have run the request."""

    may_have_run = True


class Forwarder:
    """The HTTP client for pods, with a new connection for each request.

    A pod might close a kept connection while the next request is sent.

    Args:
        max_pause_s: the longest pause within a pod's response.
    """

    def __init__(self, max_pause_s: float = MAX_PAUSE_S) -> None:
        self._max_pause_s = max_pause_s
        self._lost = LogSampler()
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=None, max_keepalive_connections=0, socket_options=_KEEPALIVE
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()

    async def forward(
        self, pod: str, request: ForwardedRequest, within_s: float, send: Send, *, final: bool = False
    ) -> bool:
        """Forward a request; return False if the pod did not run it, so that another pod may.

        Args:
            pod: ``HOST:PORT`` of the pod.
            request: the request to send.
            within_s: the time until the response must begin.
            send: receives the response (ASGI).
            final: whether ``send`` also receives a response which states that the pod did not run the request.

        Raises:
            InvalidRequest: the request is not valid HTTP/1.1; nothing was sent.
            PodTimeoutError: the pod received the request and did not respond within ``within_s``.
            RuntimeLost: the connection was lost, perhaps within the response; the request may have run.
        """
        try:
            async with asyncio.timeout(within_s) as deadline:
                return await self._exchange(pod, request, deadline, send, final=final)
        except _NOT_CONNECTED:
            return False
        except httpcore.LocalProtocolError as error:
            raise InvalidRequest(f"this request cannot be forwarded: {error}") from None
        except _LOST as error:
            self._log_lost(pod, error)
            if isinstance(error, httpcore.RemoteProtocolError):
                raise RuntimeLost("the pod's response is not valid HTTP/1.1") from None
            raise RuntimeLost("the connection to the pod was lost") from None
        except TimeoutError as error:
            self._log_lost(pod, error)
            raise PodTimeoutError("the pod did not respond before the deadline") from None

    async def _exchange(
        self, pod: str, request: ForwardedRequest, deadline: asyncio.Timeout, send: Send, *, final: bool
    ) -> bool:
        host, _, port = pod.rpartition(":")
        url = httpcore.URL(scheme=b"http", host=host.strip("[]"), port=int(port), target=request.target)
        left_s = (deadline.when() or 0.0) - asyncio.get_running_loop().time()
        # Shorter than the time left, so that a failed connection is distinct from a silent pod: it carried nothing.
        timeouts = {"timeout": {"connect": min(CONNECT_S, 0.9 * left_s)}}
        headers = list(request.headers)
        async with self._pool.stream(
            request.method, url, headers=headers, content=request.body, extensions=timeouts
        ) as response:
            if not final and did_not_run(response.status, response.headers):
                return False
            if not is_response(response.status, response.headers):
                raise httpcore.RemoteProtocolError(f"status {response.status}, or a header's value")
            deadline.reschedule(None)
            await send({
                "type": "http.response.start", "status": response.status,
                "headers": response_headers(response.status, response.headers),
            })  # fmt: skip
            pieces = response.aiter_stream()
            while True:
                deadline.reschedule(asyncio.get_running_loop().time() + self._max_pause_s)
                piece = await anext(pieces, None)
                deadline.reschedule(None)  # a client that reads slowly is not the pod's fault
                if piece is None:
                    break
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return True

    def _log_lost(self, pod: str, error: Exception) -> None:
        if (unlogged := self._lost.take(time.monotonic())) is not None:
            logger.warning("event=pod_lost pod=%s unlogged=%d error=%r", pod, unlogged, error)
