"""Responses to requests that never run, delayed while the event loop is busy with such requests.

A client that ignores Retry-After sends its next request as soon as it has the rejection. Hundreds of such clients fill
each iteration of the event loop with requests to reject, and a batch's results wait for the end of the iteration: the
runtime is idle meanwhile. A client whose response is delayed sends nothing.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from shoal_proxy.codecs.base import HttpResponse
from shoal_proxy.http.header_cache import RequestHead
from shoal_schema.interfaces.headers import FORWARDED

_FORWARDED: Final = FORWARDED.encode()

BUSY_S: Final = 0.005
"""The event loop is busy if one of its iterations lasts longer after its first early response."""
INTERVAL_S: Final = 0.001
"""Between two delayed responses."""
LONGEST_S: Final = 0.25
"""The longest delay of a response."""


class ResponsePace:
    """Decides how long an early response is delayed. Pure: the times are arguments."""

    def __init__(self) -> None:
        self._last_s = 0.0
        """When the last delayed response is sent."""

    def delay_s(self, now_s: float, iteration_s: float) -> float:
        """Return how long a response is delayed (s), from 0 to 0.25.

        Args:
            now_s: time.
            iteration_s: how long the iteration of the event loop has lasted since its first early response.
        """
        if iteration_s < BUSY_S and self._last_s <= now_s:
            return 0.0
        self._last_s = min(max(self._last_s, now_s) + INTERVAL_S, now_s + LONGEST_S)
        return self._last_s - now_s


class EarlyResponses:
    """Sends the responses to requests that never run."""

    def __init__(self) -> None:
        self._pace = ResponsePace()
        self._first_s: float | None = None
        """When this iteration of the event loop sent its first early response; None if it sent none."""

    def send(self, respond: Callable[[HttpResponse], None], response: HttpResponse, head: RequestHead) -> None:
        """Call ``respond`` with the response to a request, now or a little later."""
        if _FORWARDED in head.headers:
            # A peer has other replicas to try.
            respond(response)
            return
        loop, now_s = asyncio.get_running_loop(), time.monotonic()
        if self._first_s is None:
            self._first_s = now_s
            loop.call_soon(self._end_iteration)
        delay_s = self._pace.delay_s(now_s, now_s - self._first_s)
        if delay_s:
            loop.call_later(delay_s, respond, response)
        else:
            respond(response)

    def _end_iteration(self) -> None:
        self._first_s = None
