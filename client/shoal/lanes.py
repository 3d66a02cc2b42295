"""Connections of an asyncio client, each of which is found at once.

httpcore's pool asks the operating system about every idle connection whenever a call begins or ends, and httpx keeps 20
of them: with 32 callers that was most of what a call cost. Here each connection has a transport of its own. The one
used last is used next, so those that nobody needs grow old, and are closed.
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

from shoal.wire.places import ASKING, Place, choose, choose_other, not_run

MAX_CONNECTIONS: Final = 100
"""At a time; further calls wait for one, in the order in which they came."""
IDLE_S: Final = 5.0
"""After which a connection is closed; many servers do so after as long."""
_PATIENCE: Final = 0.9
"""Of the time that a request has: an address that said nothing for so long is not there."""


class Lanes(httpx.AsyncBaseTransport):
    """Send each request on a connection that nobody uses; answers are read whole."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._ssl = context
        self._limits = httpx.Limits(max_connections=1, keepalive_expiry=IDLE_S)
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)
        self._idle: deque[tuple[httpx.AsyncHTTPTransport, float]] = deque()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the answer to one request (httpx)."""
        async with self._places:
            lane = self._idle.pop()[0] if self._idle else self._made()
            try:
                answer = await lane.handle_async_request(request)
                try:
                    assert isinstance(answer.stream, httpx.AsyncByteStream)
                    body = b"".join([chunk async for chunk in answer.stream])
                finally:
                    await answer.aclose()
            finally:
                self._idle.append((lane, time.monotonic()))
        await self._close_old()
        return httpx.Response(
            answer.status_code, headers=answer.headers, stream=httpx.ByteStream(body), extensions=answer.extensions
        )

    async def aclose(self) -> None:
        """Close the connections (httpx)."""
        while self._idle:
            await self._idle.popleft()[0].aclose()

    def _made(self) -> httpx.AsyncHTTPTransport:
        return httpx.AsyncHTTPTransport(verify=self._ssl, limits=self._limits)

    async def _close_old(self) -> None:
        while self._idle and time.monotonic() - self._idle[0][1] > IDLE_S:
            await self._idle.popleft()[0].aclose()


class Fleet(httpx.AsyncBaseTransport):
    """Send each request to one of several addresses of the same model, by how long each says that it would take.

    What certainly did not run at one goes to another at once, if there is one that is not left alone.
    """

    def __init__(self, addresses: Sequence[httpx.URL], context: ssl.SSLContext) -> None:
        self._addresses = addresses
        self._places = [Place() for _ in addresses]
        # Connections of their own for each: `Lanes` gives the one used last, wherever it leads.
        self._lanes = [Lanes(context) for _ in addresses]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the answer to one request (httpx)."""
        request.headers.setdefault(*ASKING)
        number: int | None = choose(self._places, time.monotonic(), _sample)
        tried: list[int] = []
        while True:
            assert number is not None
            tried.append(number)
            try:
                answer = await self._ask(number, request)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if (number := self._other(tried)) is None:
                    raise
                continue
            if not not_run(request.method, answer.status_code, answer.headers):
                return answer
            if (number := self._other(tried)) is None:
                return answer

    async def _ask(self, number: int, request: httpx.Request) -> httpx.Response:
        place, address = self._places[number], self._addresses[number]
        request.url = request.url.copy_with(scheme=address.scheme, host=address.host, port=address.port)
        request.headers["host"] = address.netloc.decode("ascii")
        place.sent += 1
        place.under_way += 1
        due_s = time.monotonic() + _PATIENCE * (request.extensions["timeout"]["read"] or math.inf)
        try:
            answer = await self._lanes[number].handle_async_request(request)
        except httpx.TransportError:
            place.failed(time.monotonic())
            raise
        except asyncio.CancelledError:  # by a caller who has gone, or since the time is over
            if time.monotonic() >= due_s:
                place.failed(time.monotonic())
            raise
        finally:
            place.under_way -= 1
        if request.method != "GET" or answer.status_code != 200:  # only a prediction promises
            place.answered(answer.status_code, answer.headers, time.monotonic())
        return answer

    def _other(self, tried: Sequence[int]) -> int | None:
        return choose_other(self._places, tried, time.monotonic(), _sample)

    async def aclose(self) -> None:
        """Close the connections (httpx)."""
        for lanes in self._lanes:
            await lanes.aclose()


def _sample(count: int, drawn: int) -> Sequence[int]:
    return random.sample(range(count), drawn)
