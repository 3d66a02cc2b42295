"""Connection pools of the asyncio client, with constant-time lookup.

httpcore's pool polls every idle connection whenever a request starts or ends, which was most of the cost of 32
concurrent requests. Here each connection has a transport of its own. The connection used last is reused first, so that
surplus connections become idle and are closed.
"""

import asyncio
import math
import random
import ssl
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import httpx

from shoal.wire.balancing import REPORT_REQUEST, AddressState, choose, choose_other, not_run

MAX_CONNECTIONS: Final = 100
"""Open connections; further requests wait, first come, first served."""
IDLE_S: Final = 5.0
"""Idle time after which a connection is closed; many servers use the same limit."""
_TIMEOUT_SHARE: Final = 0.9
"""Share of a request's time after which a silent address counts as failed."""


class ConnectionPool(httpx.AsyncBaseTransport):
    """Pool of connections to one server; each response is read completely."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._ssl = context
        self._limits = httpx.Limits(max_connections=1, keepalive_expiry=IDLE_S)
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        # With the time of last use, oldest first.
        self._idle: deque[tuple[httpx.AsyncHTTPTransport, float]] = deque()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request on an idle or a new connection."""
        async with self._slots:
            if self._idle:
                connection = self._idle.pop()[0]
            else:
                connection = httpx.AsyncHTTPTransport(verify=self._ssl, limits=self._limits)
            try:
                response = await connection.handle_async_request(request)
                try:
                    assert isinstance(response.stream, httpx.AsyncByteStream)
                    body = b"".join([chunk async for chunk in response.stream])
                finally:
                    await response.aclose()
            finally:
                self._idle.append((connection, time.monotonic()))
        while self._idle and time.monotonic() - self._idle[0][1] > IDLE_S:
            await self._idle.popleft()[0].aclose()
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=httpx.ByteStream(body),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        while self._idle:
            await self._idle.popleft()[0].aclose()


class Addresses(httpx.AsyncBaseTransport):
    """Load balancer over the addresses of one model's replicas.

    A request goes to the address with the shorter expected wait. If the request certainly did not run there, it is sent
    at once to another address that is not in backoff.
    """

    def __init__(self, addresses: Sequence[httpx.URL], context: ssl.SSLContext) -> None:
        self._addresses = addresses
        self._states = [AddressState() for _ in addresses]
        # One pool for each address: `ConnectionPool` reuses connections whatever their address.
        self._pools = [ConnectionPool(context) for _ in addresses]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to the address with the shorter expected wait.

        If the request did not run there, send it to another address.
        """
        request.headers.setdefault(*REPORT_REQUEST)
        number: int | None = choose(self._states, time.monotonic(), _sample)
        tried: list[int] = []
        while True:
            assert number is not None
            tried.append(number)
            try:
                response = await self._send(number, request)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if (number := self._other(tried)) is None:
                    raise
                continue
            if not not_run(request.method, response.status_code, response.headers):
                return response
            if (number := self._other(tried)) is None:
                return response

    async def _send(self, number: int, request: httpx.Request) -> httpx.Response:
        state, address = self._states[number], self._addresses[number]
        # The request was built for the first address.
        request.url = request.url.copy_with(scheme=address.scheme, host=address.host, port=address.port)
        request.headers["host"] = address.netloc.decode("ascii")
        state.sent += 1
        state.in_flight += 1
        # Set by `request_of`: the remaining time of the call.
        due_s = time.monotonic() + _TIMEOUT_SHARE * (request.extensions["timeout"]["read"] or math.inf)
        try:
            response = await self._pools[number].handle_async_request(request)
        except httpx.TransportError:
            state.record_failure(time.monotonic())
            raise
        except asyncio.CancelledError:
            # Cancelled by the client's task, or by the deadline: only the latter is the address's failure.
            if time.monotonic() >= due_s:
                state.record_failure(time.monotonic())
            raise
        finally:
            state.in_flight -= 1
        if request.method != "GET" or response.status_code != 200:  # only predictions report the wait
            state.record_response(response.status_code, response.headers, time.monotonic())
        return response

    def _other(self, tried: Sequence[int]) -> int | None:
        return choose_other(self._states, tried, time.monotonic(), _sample)

    async def aclose(self) -> None:
        """Close the connections to all addresses."""
        for pool in self._pools:
            await pool.aclose()


def _sample(count: int, drawn: int) -> Sequence[int]:
    return random.sample(range(count), drawn)
