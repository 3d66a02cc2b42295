"""Callers of a port that speaks TLS, until they have shaken hands: how long that may take, and how many may be at it.

uvicorn's own servers bound neither, and what has not shaken hands is no connection yet that a `Guard` would count.
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
from shoal_proxy.guard import Guard
from shoal_proxy.listener import Listener

MOST_SHAKING: Final = 256
"""Handshakes at a time; then one gives way to the next: an honest one takes milliseconds."""
_GOODBYE_S: Final = 1.0
"""How long a caller may take to say that it has heard us close."""
_NO_DESCRIPTOR_S: Final = 0.01
_MISTAKEN: Final = b'{"error":"this port speaks TLS: ask it by https://"}'
_PLAIN: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
    % (len(_MISTAKEN), _MISTAKEN)
)
_READ_BYTES: Final = 65536


@dataclass(slots=True)
class Caller:
    """One who is to shake hands.

    Args:
        address: from where.
        spoke: something came.
    """

    address: str
    spoke: bool = False


_Task = TypeVar("_Task")


def who_gives_way(shaking: Mapping[_Task, Caller]) -> _Task:
    """Return whose handshake ends for the next: of those from where most are, one that is silent, or the oldest.

    Args:
        shaking: all of them, at least one, the oldest first.
    """
    [(crowded, _)] = Counter(caller.address for caller in shaking.values()).most_common(1)
    theirs = [task for task, caller in shaking.items() if caller.address == crowded]
    return next((task for task in theirs if not shaking[task].spoke), theirs[0])


class TlsListener(Listener):
    """A listener whose callers shake hands first, with the newest certificate.

    Args:
        guard: of their connections: a handshake may take as long as a head.
    """

    def __init__(self, config: uvicorn.Config, certificate: Certificate, guard: Guard) -> None:
        super().__init__(config)
        self._certificate = certificate
        self._guard = guard
        self._shaking: dict[asyncio.Task[bool], Caller] = {}
        """In the order in which they came."""
        self._accepting: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept callers (uvicorn)."""
        await super().startup(sockets=[])
        self._accepting = [asyncio.create_task(self._accept(sock)) for sock in sockets or []]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let nobody in any more, and serve those who are (uvicorn)."""
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
                caller, address = await loop.sock_accept(sock)
            except OSError as error:  # there is no descriptor left
                self._guard.note("connection_refused", str(error))
                await asyncio.sleep(_NO_DESCRIPTOR_S)
                continue
            if len(self._shaking) >= MOST_SHAKING:
                gone = who_gives_way(self._shaking)
                del self._shaking[gone]
                gone.cancel()
            known = Caller(str(address[0]) if isinstance(address, tuple) else "")
            task = loop.create_task(self._let_in(caller, known))
            self._shaking[task] = known
            task.add_done_callback(partial(self._ended, caller))
            await asyncio.sleep(0)  # a flood must not keep those waiting who are in

    def _ended(self, caller: socket.socket, task: asyncio.Task[bool]) -> None:
        self._shaking.pop(task, None)
        if task.cancelled() or not task.result():
            caller.close()

    async def _let_in(self, caller: socket.socket, known: "Caller") -> bool:
        try:
            async with asyncio.timeout(self._guard.patience.head_s):
                await _readable(caller)
                known.spoke = True
                if self._speaks_tls(caller):
                    await self._shake(caller)
                    return True
        except OSError as error:  # OpenSSL's and a time that is over are some too
            self._guard.note("handshake_failed", str(error) or f"it took more than {self._guard.patience.head_s:g} s")
        return False

    async def _shake(self, caller: socket.socket) -> None:
        if caller.family != socket.AF_UNIX:
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().connect_accepted_socket(
            self.make_protocol,
            caller,
            ssl=self._certificate.context,
            ssl_handshake_timeout=self._guard.patience.head_s,
            ssl_shutdown_timeout=_GOODBYE_S,
        )

    def _speaks_tls(self, caller: socket.socket) -> bool:
        """Return whether a handshake comes; who begins with a letter speaks plain HTTP, and is told so in it."""
        first = caller.recv(1, socket.MSG_PEEK)
        if not first.isalpha():
            return bool(first)
        self._guard.note("handshake_failed", "plain HTTP")
        caller.recv(_READ_BYTES)  # what is not read would turn our answer into a reset
        caller.send(_PLAIN)
        caller.shutdown(socket.SHUT_WR)
        return False


async def _readable(sock: socket.socket) -> None:
    loop, something = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sock, something.set)
    try:
        await something.wait()
    finally:
        loop.remove_reader(sock)
