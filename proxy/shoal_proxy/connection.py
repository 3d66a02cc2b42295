"""One kept HTTP/1.1 connection to the runtime, one exchange at a time.

A small client on httptools rather than httpx, because each batch passes here: httpx costs about 0.7 ms a call, this
about 0.01.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, cast

import httptools

from shoal_proxy.body import LARGE_BYTES
from shoal_proxy.errors import ModelFailed, NotExecuted, Overloaded, ProxyError, RuntimeLost
from shoal_schema.metrics import Rejection
from shoal_schema.wire.body import Body
from shoal_schema.wire.patience import Lookout

_NEVER_S: Final = float("inf")
MOST_HEAD_BYTES: Final = 1 << 16
"""Of an answer that is not trusted to be modest: its head, the answers before it (1xx), trailers."""
_A_BYTES_FRAME: Final = 8
"""Bytes around each byte of a body, in the smallest chunks that there are."""
LOST: Final = "the connection to the runtime was lost"


class Response:
    """The runtime's answer; header names in lower case."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: dict[bytes, bytes], body: bytes | memoryview) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class Room:
    """How many bytes the answers of servers may take together that are not trusted to be modest."""

    __slots__ = ("most_bytes", "taken_bytes")

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.taken_bytes = 0

    def refusal(self, size_bytes: int) -> ProxyError:
        """Return why an answer, of which so much has come, is not taken."""
        if size_bytes > self.most_bytes:
            return ModelFailed(f"the answer has more than {self.most_bytes} bytes")
        what = f"the answers of models take more than {self.most_bytes} bytes together"
        return Overloaded(what, reason=Rejection.QUEUE_BYTES, retry_after_s=1)


class Connection(asyncio.BufferedProtocol):
    """The protocol of one connection. ``on_lost`` is called once, whoever closed it.

    A large answer is parsed as far as its headers and read into place from there on; one for which there is no ``room``
    is not taken (None: its server is trusted).
    """

    def __init__(self, on_lost: "Callable[[Connection], None]", room: Room | None = None) -> None:
        self._on_lost = on_lost
        self._room = room
        self._came_bytes = 0
        self._parsed_bytes = 0
        self._answer: asyncio.Future[Response] | None = None
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._body: Body | None = None
        self._reads_body = False
        """The parser is out of it: what comes is the rest of the body."""
        self._scratch = memoryview(bytearray(LARGE_BYTES))
        self._status = 0
        self._keep = False
        self._due_s = _NEVER_S
        # One timer for all exchanges, which looks whether the present one is late: not one for each.
        self._lookout = Lookout(asyncio.get_running_loop().call_later, time.monotonic, self._look)
        self.idle_since_s = 0.0
        self.announced = False
        """The runtime said with its last answer that it closes the connection, or we close it: no sign of trouble."""

    @property
    def usable(self) -> bool:
        """Tell whether the next exchange may use this connection."""
        return self._transport is not None and not self._transport.is_closing() and self._answer is None

    async def exchange(
        self, head: bytes, parts: Sequence[bytes | memoryview] = (), due_s: float = _NEVER_S
    ) -> Response:
        """Send a request and return its response.

        Cancelling closes the connection, since the answer could not be told from the next one's.

        Raises:
            NotExecuted: nothing was sent.
            RuntimeLost: the connection was lost before the whole answer came.
            ModelFailed, Overloaded: there is no room for the answer.
            TimeoutError: it did not come by ``due_s``, in monotonic seconds; the connection is closed.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise NotExecuted(LOST)
        self._answer = asyncio.get_running_loop().create_future()
        self._due_s, self._parsed_bytes = due_s, 0
        if due_s < _NEVER_S:
            self._lookout.by(due_s, time.monotonic())
        transport.writelines([head, *parts])
        try:
            return await self._answer
        except BaseException:
            self.close()
            raise
        finally:
            self._answer = None
            self._due_s = _NEVER_S

    def _look(self, now_s: float) -> None:
        if self._answer is None or self._due_s == _NEVER_S:
            return
        if now_s < self._due_s:
            self._lookout.by(self._due_s, now_s)
        elif not self._answer.done():
            self._answer.set_exception(TimeoutError())

    def close(self) -> None:
        """Close without waiting; an exchange under way fails."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (asyncio)."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the exchange under way and report (asyncio)."""
        self._transport = None
        self._forget()
        # What is held here stays until a collector comes by: the parser and the lookout refer to us as we do to them.
        self._parser, self._scratch = httptools.HttpResponseParser(self), memoryview(b"")
        self._lookout.stop()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(RuntimeLost(LOST if exc is None else f"{LOST}: {exc}"))
        self._on_lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go (asyncio)."""
        if self._body is not None and self._reads_body:
            return self._body.rest
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Feed the parser, or note that more of the body is here (asyncio)."""
        if self._answer is None or self._answer.done():
            self._close_unasked()
            return
        if self._body is None or not self._reads_body:
            self._parse(self._scratch[:nbytes])
            return
        if not self._counted(nbytes):
            return
        self._body.filled(nbytes)
        if self._body.complete:
            self._parser = httptools.HttpResponseParser(self)
            self.on_message_complete()

    def _close_unasked(self) -> None:
        """Close, as what nobody asked for would be taken for the answer to what is asked next."""
        self.announced = True  # by us: the runtime is there
        self.close()

    def _parse(self, data: memoryview) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(RuntimeLost(f"the runtime does not speak HTTP/1.1: {error}"))
            self.close()
        self._reads_body = self._body is not None
        self._check_head(len(data))

    def _check_head(self, size_bytes: int) -> None:
        """Refuse what is more and more of an answer, and none of its body: each piece costs more than the last."""
        self._parsed_bytes += size_bytes
        if self._room is None or self._answer is None or self._answer.done():
            return
        if self._parsed_bytes > MOST_HEAD_BYTES + (1 + _A_BYTES_FRAME) * self._came_bytes:
            self._refuse(ModelFailed(f"the answer's head has more than {MOST_HEAD_BYTES} bytes"))

    def on_message_begin(self) -> None:
        """Start a new answer (httptools).

        Raises:
            httptools.HttpParserError: the one that was asked for is here already.
        """
        if self._answer is None or self._answer.done():
            self._close_unasked()
            raise httptools.HttpParserError("an answer that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header (httptools)."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Make room for a large body (httptools)."""
        self._status = self._parser.get_status_code()
        self._keep = self._parser.should_keep_alive()
        size_bytes = int(self._headers.get(b"content-length", 0))
        if self._room is not None and size_bytes > self._room.most_bytes:
            self._refuse(self._room.refusal(size_bytes))
        elif size_bytes > LARGE_BYTES:
            # A runtime of ours sends what it announces.
            self._body = Body(size_bytes, None if self._room is None else LARGE_BYTES)

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body (httptools)."""
        if not self._counted(len(body)):
            return
        if self._body is not None:
            self._body.add(body)
        else:
            self._chunks.append(body)

    def _counted(self, size_bytes: int) -> bool:
        """Take room for what has come; tell whether there was some."""
        if (room := self._room) is None:
            return True
        self._came_bytes += size_bytes
        room.taken_bytes += size_bytes
        if room.taken_bytes <= room.most_bytes:
            return True
        self._refuse(room.refusal(self._came_bytes))
        return False

    def _forget(self) -> None:
        """Drop what has come of an answer, and give its room back."""
        self._headers, self._chunks, self._body, self._reads_body = {}, [], None, False
        if self._room is not None:
            self._room.taken_bytes -= self._came_bytes
            self._came_bytes = 0

    def _refuse(self, error: ProxyError) -> None:
        """Take no more of an answer that is too large."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self._forget()
        self.close()

    def on_message_complete(self) -> None:
        """Hand the answer over (httptools)."""
        body = self._body.view if self._body is not None else b"".join(self._chunks)
        if self._status >= 200 and self._answer is not None and not self._answer.done():
            self._answer.set_result(Response(self._status, self._headers, body))
        self._forget()
        self.announced = not self._keep
        if not self._keep and self._transport is not None:
            self._transport.close()
