"""One port for several models: each request goes, byte by byte, to the proxy of the model that its path names.

A connection of a caller has at most one to a proxy at a time, and no other caller's bytes ever travel there: what a
proxy does with a connection (deadlines, priorities, how long it waits for whom, what it makes of a caller who hangs up)
it does with the caller's own. When the next request is for another model, our half of the old connection is closed; the
proxy then answers what is open and closes its half, and not before that is the other one asked.
"""

import asyncio
import select
from collections import deque
from collections.abc import Mapping
from typing import Final

from shoal.serving.routing import Piece, Scanner
from shoal_schema.open_files import open_files

HEAD_TIMEOUT_S: Final = 30.0
"""For a head, from the connection's start or from its own first byte, where no proxy counts it yet."""
GONE_LOOK_S: Final = 0.01
MAX_GONE_LOOK_S: Final = 2.0
"""How often a caller that says no more is looked at, less and less often."""
HIGH_WATER_BYTES: Final = 1 << 20
_AWAY: Final = b'{"error": "the model\'s server is starting or stopping: ask again"}'
_FULL: Final = b'{"error": "too many connections are open: ask again"}'
WANTED_DESCRIPTORS: Final = 20_000
"""A caller and its server: two."""
KEPT_DESCRIPTORS: Final = 128


def refusal(body: bytes) -> bytes:
    """Return the answer that says so, after which the connection ends."""
    return (
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        b"retry-after: 1\r\nx-shoal-executed: no\r\nconnection: close\r\n\r\n%b" % (len(body), body)
    )


UNAVAILABLE: Final = refusal(_AWAY)


class Front:
    """The listener.

    Args:
        models: the paths of proxies' unix sockets, by model.
        pages: that of who answers what is for no model.
        default: the model that is meant by paths for one that they do not name; empty: there is none.
    """

    def __init__(self, models: Mapping[str, str], pages: str, default: str = "") -> None:
        self._models = models
        self._pages = pages
        self._default = default
        self.most_callers = (open_files(WANTED_DESCRIPTORS) - KEPT_DESCRIPTORS) // 2
        self._server: asyncio.Server | None = None
        self.callers: set[Caller] = set()

    async def listen(self, host: str, port: int) -> None:
        """Take connections from now on; raises ``OSError``."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Caller(self), host, port, reuse_address=True)

    def refuse_more(self) -> None:
        """Take no more connections; those that are open end with their proxies."""
        if self._server is not None:
            self._server.close()

    def close(self) -> None:
        """End the connections that no proxy has ended."""
        for caller in list(self.callers):
            caller.transport.abort()

    def address(self, model: str) -> str:
        """Return where a model is asked, or where it is said that there is none."""
        return self._models.get(self._default if model.startswith("/") else model, self._pages)


class Caller(asyncio.Protocol):
    """A caller's connection."""

    transport: asyncio.Transport

    def __init__(self, front: Front) -> None:
        self._front = front
        self._scanner = Scanner()
        self._pieces: deque[Piece] = deque()
        self._server: Server | None = None
        self._address = ""
        self._connecting: asyncio.Task[None] | None = None
        self._ended = self._gone = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a head (asyncio)."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        self._front.callers.add(self)
        if len(self._front.callers) > self._front.most_callers:
            self._gone = True
            transport.write(refusal(_FULL))
            transport.close()
            return
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Pass on what has come (asyncio)."""
        self._pieces.extend(self._scanner.feed(data))
        self._wait_for_head()
        self._pass_on()

    def _wait_for_head(self) -> None:
        """Bound the time of a head; between requests the proxy that answered the last one counts it."""
        waits = not self._pieces and (self._server is None or not self._scanner.between)
        if not waits and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif waits and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT_S, self.transport.abort)

    def _pass_on(self) -> None:
        while self._pieces and self._connecting is None and not self._gone:
            piece = self._pieces[0]
            if piece.model is not None and not self._is_with(self._front.address(piece.model)):
                return
            assert self._server is not None
            self._server.write(self._pieces.popleft().data)
        if self._ended and not self._pieces and self._server is not None:
            self._server.end()

    def _is_with(self, address: str) -> bool:
        """Return whether the connection to a server is there; if not, see to it that it will be."""
        if self._server is not None and self._address == address and not self._server.ending:
            return True
        if self._server is not None:
            self._server.end()
            self.pause_reading()
            return False
        self._address = address
        self._connecting = asyncio.get_running_loop().create_task(self._connect(address))
        return False

    async def _connect(self, address: str) -> None:
        try:
            _, self._server = await asyncio.get_running_loop().create_unix_connection(lambda: Server(self), address)
        except OSError:
            self.transport.write(UNAVAILABLE)
            self.transport.close()
            return
        self._connecting = None
        self.transport.resume_reading()
        self._pass_on()

    def pause_reading(self) -> None:
        """Take no more from the caller for now."""
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Take more from the caller again."""
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Take no more from the server: the caller reads slowly (asyncio)."""
        if self._server is not None:
            self._server.transport.pause_reading()

    def resume_writing(self) -> None:
        """Take more from the server again (asyncio)."""
        if self._server is not None:
            self._server.transport.resume_reading()

    def eof_received(self) -> bool:
        """Let the server know that no more comes; it may still answer (asyncio)."""
        self._ended = True
        if self._server is None and self._connecting is None:
            return False
        self._pass_on()
        asyncio.get_running_loop().call_later(GONE_LOOK_S, self._look_whether_gone, GONE_LOOK_S)
        return True

    def _look_whether_gone(self, after_s: float) -> None:
        """End what the server does for a caller that is gone: it sends what that one's machine answers with a reset."""
        if self._gone:
            return
        ends = select.poll()
        ends.register(self.transport.get_extra_info("socket").fileno(), 0)
        if ends.poll(0):  # both halves are gone
            self.transport.abort()
            return
        after_s = min(2 * after_s, MAX_GONE_LOOK_S)
        asyncio.get_running_loop().call_later(after_s, self._look_whether_gone, after_s)

    def server_gone(self) -> None:
        """Go on with the next server, or close: what was to be answered is."""
        self._server = None
        if self._pieces and not self._gone:
            self._pass_on()
        elif not self._gone:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the server too, so that it knows (asyncio)."""
        self._gone = True
        self._front.callers.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._server is not None:
            self._server.transport.abort()


class Server(asyncio.Protocol):
    """The connection to the server whose turn it is."""

    transport: asyncio.Transport

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.ending = False
        """No more requests are sent on it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be ready to write (asyncio)."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(HIGH_WATER_BYTES)

    def write(self, data: bytes) -> None:
        """Pass on what the caller sent."""
        self.transport.write(data)

    def end(self) -> None:
        """Say that no more comes."""
        if not self.ending and not self.transport.is_closing():
            self.ending = True
            self.transport.write_eof()

    def data_received(self, data: bytes) -> None:
        """Pass on what the server answers (asyncio)."""
        if not self._caller.transport.is_closing():
            self._caller.transport.write(data)

    def pause_writing(self) -> None:
        """Take no more from the caller: the server reads slowly (asyncio)."""
        self._caller.pause_reading()

    def resume_writing(self) -> None:
        """Take more from the caller again (asyncio)."""
        self._caller.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the caller's side (asyncio)."""
        self._caller.server_gone()
