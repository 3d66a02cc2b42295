"""One port for several models: pass the bytes of each request to the proxy of the model in its path.

Each client connection has at most one upstream connection at a time, which no other client shares, so a proxy's
handling of a connection (deadlines, priorities, timeouts, hang-ups) applies to one client. When the next
request is for another model, the write half of the upstream connection is closed; the proxy completes its responses and
closes the other half, and only then is the next upstream connected.
"""

import asyncio
import select
from collections import deque
from collections.abc import Mapping
from typing import Final

from shoal.serving.routing import Piece, Scanner
from shoal_schema.process.open_files import open_files

HEAD_TIMEOUT_S: Final = 30.0
"""Time for a request head while no proxy limits it."""
DISCONNECT_CHECK_S: Final = 0.01
MAX_DISCONNECT_CHECK_S: Final = 2.0
"""Interval of checks whether a half-closed client is gone; it doubles up to the maximum."""
HIGH_WATER_BYTES: Final = 1 << 20
"""Buffered bytes above which reading from the other side pauses."""
_UNAVAILABLE_BODY: Final = b'{"error": "the model\'s server is starting or stopping. Retry later"}'
_FULL: Final = b'{"error": "too many connections are open. Retry later"}'
WANTED_DESCRIPTORS: Final = 20_000
"""Open files to raise the limit to; a client and its upstream take two."""
KEPT_DESCRIPTORS: Final = 128
"""Open files for everything else."""


def unavailable(body: bytes) -> bytes:
    """Return a 503 response that ends the connection."""
    return (
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        b"retry-after: 1\r\nx-shoal-executed: no\r\nconnection: close\r\n\r\n%b" % (len(body), body)
    )


UNAVAILABLE: Final = unavailable(_UNAVAILABLE_BODY)


class SharedPort:
    """Listener that passes each request to the proxy of its model.

    Args:
        models: path of each proxy's unix socket, by model.
        pages: path of the socket for requests that are for no model.
        default: the model of paths without a model name; may be empty.
    """

    def __init__(self, models: Mapping[str, str], pages: str, default: str = "") -> None:
        self._models = models
        self._pages = pages
        self._default = default
        self.most_clients = (open_files(WANTED_DESCRIPTORS) - KEPT_DESCRIPTORS) // 2
        self._server: asyncio.Server | None = None
        self.clients: set[ClientConnection] = set()

    async def listen(self, host: str, port: int) -> None:
        """Listen and accept connections; raises ``OSError``."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: ClientConnection(self), host, port, reuse_address=True)

    def stop_accepting(self) -> None:
        """Stop accepting connections; open connections end with their proxies."""
        if self._server is not None:
            self._server.close()

    def close(self) -> None:
        """Abort the remaining connections."""
        for client in list(self.clients):
            client.transport.abort()

    def address(self, model: str) -> str:
        """Return the socket of a model's proxy; for an unknown model, the socket of ``pages``."""
        return self._models.get(self._default if model.startswith("/") else model, self._pages)


class ClientConnection(asyncio.Protocol):
    """Protocol of a client's connection to the shared port."""

    transport: asyncio.Transport

    def __init__(self, shared_port: SharedPort) -> None:
        self._shared_port = shared_port
        self._scanner = Scanner()
        self._pieces: deque[Piece] = deque()
        self._upstream: Upstream | None = None
        self._address = ""
        self._connecting: asyncio.Task[None] | None = None
        # _ended: the client sends no more. _gone: the connection is lost or rejected.
        self._ended = self._gone = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timeout of the first request head, or reject the connection."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        # Beyond the limit of open files, accept would fail for all clients.
        self._shared_port.clients.add(self)
        if len(self._shared_port.clients) > self._shared_port.most_clients:
            self._gone = True
            transport.write(unavailable(_FULL))
            transport.close()
            return
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Forward received bytes to the proxy of their model."""
        self._pieces.extend(self._scanner.feed(data))
        self._wait_for_head()
        self._forward()

    def _wait_for_head(self) -> None:
        """Start or cancel the timeout of the next request head.

        Between two requests of an open upstream connection, the proxy's own timeout applies instead.
        """
        waits = not self._pieces and (self._upstream is None or not self._scanner.between)
        if not waits and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif waits and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT_S, self.transport.abort)

    def _forward(self) -> None:
        while self._pieces and self._connecting is None and not self._gone:
            piece = self._pieces[0]
            if piece.model is not None:
                address = self._shared_port.address(piece.model)
                if self._upstream is None:
                    self._address = address
                    self._connecting = asyncio.get_running_loop().create_task(self._connect(address))
                    return
                if self._address != address or self._upstream.ending:
                    # Another model: continue once the upstream has completed its responses.
                    self._upstream.end()
                    self.pause_reading()
                    return
            assert self._upstream is not None
            self._upstream.write(self._pieces.popleft().data)
        if self._ended and not self._pieces and self._upstream is not None:
            self._upstream.end()

    async def _connect(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, self._upstream = await loop.create_unix_connection(lambda: Upstream(self), address)
        except OSError:
            # The proxy does not listen yet, or no longer.
            self.transport.write(UNAVAILABLE)
            self.transport.close()
            return
        self._connecting = None
        # Reading was paused if the previous upstream was for another model.
        self.transport.resume_reading()
        self._forward()

    def pause_reading(self) -> None:
        """Stop reading from the client until `resume_reading`."""
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading from the client."""
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Stop reading from the upstream, because the client reads slowly."""
        if self._upstream is not None:
            self._upstream.transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume reading from the upstream."""
        if self._upstream is not None:
            self._upstream.transport.resume_reading()

    def eof_received(self) -> bool:
        """Forward the end of the client's requests; the connection stays open for responses."""
        self._ended = True
        if self._upstream is None and self._connecting is None:
            return False
        self._forward()
        asyncio.get_running_loop().call_later(DISCONNECT_CHECK_S, self._check_disconnected, DISCONNECT_CHECK_S)
        return True

    def _check_disconnected(self, after_s: float) -> None:
        """Abort if the client has closed the connection completely; otherwise check again later."""
        if self._gone:
            return
        ends = select.poll()
        ends.register(self.transport.get_extra_info("socket").fileno(), 0)
        if ends.poll(0):  # POLLHUP or POLLERR
            self.transport.abort()
            return
        after_s = min(2 * after_s, MAX_DISCONNECT_CHECK_S)
        asyncio.get_running_loop().call_later(after_s, self._check_disconnected, after_s)

    def upstream_closed(self) -> None:
        """Connect to the proxy of the next request, or close if no request is left."""
        self._upstream = None
        if self._pieces and not self._gone:
            self._forward()
        elif not self._gone:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Abort the upstream connection of a client that has disconnected."""
        self._gone = True
        self._shared_port.clients.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._upstream is not None:
            self._upstream.transport.abort()


class Upstream(asyncio.Protocol):
    """Protocol of the connection to the proxy of the current request."""

    transport: asyncio.Transport

    def __init__(self, client: ClientConnection) -> None:
        self._client = client
        self.ending = False
        """Whether the write half is closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport, and limit its write buffer."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(HIGH_WATER_BYTES)

    def write(self, data: bytes) -> None:
        """Send a client's bytes to the proxy."""
        self.transport.write(data)

    def end(self) -> None:
        """Close the write half of the connection to the proxy."""
        if not self.ending and not self.transport.is_closing():
            self.ending = True
            self.transport.write_eof()

    def data_received(self, data: bytes) -> None:
        """Forward responses to the client."""
        if not self._client.transport.is_closing():
            self._client.transport.write(data)

    def pause_writing(self) -> None:
        """Stop reading from the client, because the proxy reads slowly."""
        self._client.pause_reading()

    def resume_writing(self) -> None:
        """Resume reading from the client."""
        self._client.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the client's connection that the proxy has closed this one."""
        self._client.upstream_closed()
