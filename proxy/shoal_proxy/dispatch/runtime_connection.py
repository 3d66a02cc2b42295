"""HTTP/1.1 client connection to the runtime: deadlines, and large bodies in their final memory."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from shoal_proxy.bodies.body_memory import LARGE_BYTES
from shoal_proxy.errors import ModelFailed, NotExecuted, Overloaded, ProxyError, RuntimeLost
from shoal_schema.http.client_connection import (
    READ_BYTES,
    ClientConnection,
    InvalidResponseError,
    ReceivedResponse,
    ResponseTooLargeError,
)
from shoal_schema.http.timeouts import DeadlineTimer
from shoal_schema.interfaces.metrics import RejectionReason
from shoal_schema.wire.body import Body

_NEVER_S: Final = float("inf")
MAX_HEAD_BYTES: Final = 1 << 16
"""Limit on a response without its body, for an untrusted server: head, interim responses (1xx), trailers."""
LOST: Final = "the connection to the runtime was lost"


class ResponseMemory:
    """Memory limit shared by all responses from untrusted servers."""

    __slots__ = ("most_bytes", "used_bytes")

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.used_bytes = 0

    def rejection(self, size_bytes: int) -> ProxyError:
        """Return the error for rejecting a response of ``size_bytes``.

        It is `ModelFailed` if this response exceeds the limit, else `Overloaded`.
        """
        if size_bytes > self.most_bytes:
            return ModelFailed(f"the response is over the limit of {self.most_bytes} bytes")
        what = f"the responses of all models are over the limit of {self.most_bytes} bytes"
        return Overloaded(what, reason=RejectionReason.QUEUE_BYTES, retry_after_s=1)


class RuntimeConnection(ClientConnection):
    """Protocol of one connection, which calls ``on_lost`` when it is closed.

    The body of a large response bypasses the parser and is read into its final memory. A response over the limit of
    ``memory`` is rejected (None: the server is trusted).
    """

    def __init__(self, on_lost: "Callable[[RuntimeConnection], None]", memory: ResponseMemory | None = None) -> None:
        super().__init__(memoryview(bytearray(READ_BYTES)), 0 if memory is None else MAX_HEAD_BYTES)
        self._on_lost = on_lost
        self._memory = memory
        self._deadline_s = _NEVER_S
        # One timer for all exchanges checks whether the present one is late, instead of one timer each.
        self._timer = DeadlineTimer(asyncio.get_running_loop().call_later, time.monotonic, self._check_deadline)
        self.idle_since_s = 0.0

    async def exchange(
        self, head: bytes, parts: Sequence[bytes | memoryview] = (), deadline_s: float = _NEVER_S
    ) -> ReceivedResponse:
        """Send a request and return the response.

        Cancellation closes the connection, as a late response could be mistaken for the next one.

        Raises:
            NotExecuted: nothing was sent.
            RuntimeLost: the connection was lost before the response was complete.
            ModelFailed, Overloaded: the response is over a limit.
            TimeoutError: there was no response by ``deadline_s`` (monotonic seconds); the connection is closed.
        """
        if deadline_s < _NEVER_S:
            self._timer.check_by(deadline_s, time.monotonic())
        self._deadline_s = deadline_s
        try:
            response = self.send([head, *parts])
        except ConnectionResetError:
            raise NotExecuted(LOST) from None
        try:
            return await response
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._deadline_s = _NEVER_S

    def _check_deadline(self, now_s: float) -> None:
        if self._deadline_s == _NEVER_S:
            return
        if now_s < self._deadline_s:
            self._timer.check_by(self._deadline_s, now_s)
        else:
            super().fail(TimeoutError())

    def fail(self, error: BaseException) -> None:
        """Fail the exchange in progress with an error of the proxy, and close the connection."""
        if isinstance(error, OSError):
            error = RuntimeLost(f"{LOST}: {error}" if str(error) else LOST)
        elif isinstance(error, ResponseTooLargeError):
            error = ModelFailed(str(error))
        elif isinstance(error, InvalidResponseError):
            error = RuntimeLost(f"{LOST}: {error}")
        super().fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the exchange in progress and call ``on_lost`` (asyncio)."""
        super().connection_lost(exc)
        self._timer.stop()
        self._on_lost(self)

    def take_head(self, headers: dict[bytes, bytes]) -> None:
        """Allocate memory for a large body."""
        size_bytes = int(headers.get(b"content-length", 0))
        if self._memory is not None and size_bytes > self._memory.most_bytes:
            raise self._memory.rejection(size_bytes)
        if size_bytes > LARGE_BYTES:
            # A trusted server sends all that it announces, so the whole body is allocated.
            self.body = Body(size_bytes, None if self._memory is None else LARGE_BYTES)

    def count_body(self, size_bytes: int) -> None:
        """Count received bytes; raise an error if they are over the limit."""
        if (memory := self._memory) is None:
            return
        self.received_bytes += size_bytes
        memory.used_bytes += size_bytes
        if memory.used_bytes > memory.most_bytes:
            raise memory.rejection(self.received_bytes)

    def release_body(self) -> None:
        """Release the memory of a response."""
        if self._memory is not None:
            self._memory.used_bytes -= self.received_bytes
