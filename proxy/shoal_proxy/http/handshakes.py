"""TLS handshakes, limited in duration and number.

uvicorn's servers limit neither, and `ConnectionLimits` counts a connection only after its handshake.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import uvicorn

from shoal_proxy.certificate import Certificate
from shoal_proxy.http.connection_limits import ConnectionLimits
from shoal_proxy.http.listener import Listener

MAX_SHAKING: Final = 256
"""Most handshakes in progress; beyond it one is aborted for the next. A regular one takes milliseconds."""
_GOODBYE_S: Final = 1.0
"""Time limit for a client to confirm the end of the TLS connection."""
_NO_DESCRIPTOR_S: Final = 0.01
"""The pause after the process ran out of file descriptors."""
_MISTAKEN: Final = b'{"error":"this port uses TLS. Use https://"}'
_PLAIN: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
    % (len(_MISTAKEN), _MISTAKEN)
)
_READ_BYTES: Final = 65536


@dataclass(slots=True)
class Handshake:
    """A TLS handshake in progress."""

    address: str
    """The client's IP address."""
    started: bool = False
    """Whether the client has sent anything."""


_Task = TypeVar("_Task")


def handshake_to_abort(shaking: Mapping[_Task, Handshake]) -> _Task:
    """Return the handshake to abort in favor of a new one.

    It belongs to the address with the most handshakes. A handshake without any received byte is preferred, otherwise it
    is the oldest.

    Args:
        shaking: all handshakes, at least one, the oldest first.
    """
    [(crowded, _)] = Counter(handshake.address for handshake in shaking.values()).most_common(1)
    theirs = [task for task, handshake in shaking.items() if handshake.address == crowded]
    return next((task for task in theirs if not shaking[task].started), theirs[0])


class TlsListener(Listener):
    """A listener with TLS, which uses the newest certificate.

    Args:
        limits: limits of connections; the time limit of a head also applies to a handshake.
    """

    def __init__(self, config: uvicorn.Config, certificate: Certificate, limits: ConnectionLimits) -> None:
        super().__init__(config)
        self._certificate = certificate
        self._limits = limits
        self._shaking: dict[asyncio.Task[bool], Handshake] = {}
        """In the order of arrival."""
        self._accepting: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections (uvicorn)."""
        # Without sockets: uvicorn only starts its other tasks.
        await super().startup(sockets=[])
        self._accepting = [asyncio.create_task(self._accept(sock)) for sock in sockets or []]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, and finish the open ones (uvicorn)."""
        tasks = [*self._accepting, *self._shaking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().shutdown(sockets)

    async def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        sock.settimeout(0)
        while True:
            try:
                client, address = await loop.sock_accept(sock)
            except OSError as error:  # no file descriptor is left
                self._limits.log_rejection("connection_refused", str(error))
                await asyncio.sleep(_NO_DESCRIPTOR_S)
                continue
            if len(self._shaking) >= MAX_SHAKING:
                aborted = handshake_to_abort(self._shaking)
                del self._shaking[aborted]
                aborted.cancel()
            handshake = Handshake(str(address[0]) if isinstance(address, tuple) else "")
            task = loop.create_task(self._connect(client, handshake))
            self._shaking[task] = handshake
            task.add_done_callback(partial(self._ended, client))
            await asyncio.sleep(0)  # a flood of clients must not block established connections

    def _ended(self, client: socket.socket, task: asyncio.Task[bool]) -> None:
        self._shaking.pop(task, None)
        if task.cancelled() or not task.result():
            client.close()

    async def _connect(self, client: socket.socket, handshake: Handshake) -> bool:
        """Make a TLS handshake; return False if the socket must be closed."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with asyncio.timeout(self._limits.timeouts.head_s):
                loop.add_reader(client, readable.set)
                try:
                    await readable.wait()
                finally:
                    loop.remove_reader(client)
                handshake.started = True
                # A TLS record begins with a byte below 24 (RFC 8446, section 5.1), plain HTTP with a letter.
                first = client.recv(1, socket.MSG_PEEK)
                if first.isalpha():
                    self._limits.log_rejection("handshake_failed", "plain HTTP")
                    # Closing with unread input would reset the connection and discard the response.
                    client.recv(_READ_BYTES)
                    client.send(_PLAIN)
                    client.shutdown(socket.SHUT_WR)
                elif first:
                    if client.family != socket.AF_UNIX:
                        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    await loop.connect_accepted_socket(
                        self.make_protocol,
                        client,
                        ssl=self._certificate.context,
                        ssl_handshake_timeout=self._limits.timeouts.head_s,
                        ssl_shutdown_timeout=_GOODBYE_S,
                    )
                    return True
        except OSError as error:  # ssl.SSLError and TimeoutError, too, are OSErrors
            self._limits.log_rejection(
                "handshake_failed", str(error) or f"it took more than {self._limits.timeouts.head_s:g} s"
            )
        return False
