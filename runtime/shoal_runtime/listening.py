"""Sockets, and HTTP on them: uvicorn's protocol without its server, which stops differently."""

import asyncio
import errno
import os
import socket
import stat
import time
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import httptools
import uvicorn
from uvicorn.server import ServerState

from shoal_runtime.body import BODY, BodyReader, large_body
from shoal_runtime.guarding import Bounds, GuardedProtocol
from shoal_runtime.infer_cycle import Application, InferCycle
from shoal_schema.addresses import Address
from shoal_schema.environment import SettingsError
from shoal_schema.wire.body import Body

BACKLOG: Final = 128


def open_socket(address: Address) -> socket.socket:
    """Return a socket that is bound; a stale unix socket's file is replaced.

    Raises:
        SettingsError: the address cannot be had, or another process listens there.
    """
    try:
        return _unix_socket(address.path) if address.path else _tcp_socket(address)
    except OSError as error:
        raise SettingsError(f"SHOAL_RUNTIME_LISTEN={address} cannot be used: {error}") from None


def _tcp_socket(address: Address) -> socket.socket:
    family, kind, protocol, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address.host == "::":  # every address, of IPv4 too
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(where)
    except OSError:
        listener.close()
        raise
    return listener


def _unix_socket(path: str) -> socket.socket:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        # Proxy and runtime may run as different users; the folder says who gets near.
        os.chmod(path, 0o666)
    except OSError:
        listener.close()
        raise
    return listener


def _remove_stale(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise OSError(errno.EEXIST, "the file there is not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(errno.EADDRINUSE, "another process listens there")


class Connections:
    """HTTP connections on one socket.

    Args:
        app: answers.
        listener: bound; closed by `close`.
        on_empty: called when the last connection is lost.
        bounds: what each of them may take; by default the app's limit of a body, and all else as usual.
    """

    def __init__(
        self, app: Application, listener: socket.socket, on_empty: Callable[[], None], bounds: Bounds | None = None
    ) -> None:
        asgi: Any = app
        self._config = uvicorn.Config(
            asgi,
            http="httptools",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
        )
        self._config.load()
        self._app = app
        self._bounds = Bounds(app.max_body_bytes) if bounds is None else bounds
        self._state = ServerState()
        self._listener = listener
        self._name = listener.getsockname()
        # The model's code may change the working directory.
        self._path = os.path.abspath(self._name) if isinstance(self._name, str) else ""
        self._on_empty = on_empty
        self._server: asyncio.Server | None = None

    def __len__(self) -> int:
        return len(self._state.connections)

    async def listen(self) -> str:
        """Accept connections from now on; return the address in words, and who reaches it."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._protocol, sock=self._listener, backlog=BACKLOG)
        name = self._name
        return (
            f"unix:{name}"
            if isinstance(name, str)
            else f"{Address(host=name[0], port=name[1])} reach={_reach(name[0])}"
        )

    async def close(self) -> None:
        """Accept no more and cut the connections that are left."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._state.connections):
            connection.transport.abort()
        self._listener.close()
        if self._path:
            _remove(self._path)
        # One turn, for the transports to let go of their sockets.
        await asyncio.sleep(0)

    def _protocol(self) -> asyncio.BaseProtocol:
        return _Connection(self._app, self._config, self._state, self._lost, self._bounds).reader

    def _lost(self) -> None:
        if not self._state.connections:
            self._on_empty()


def _reach(host: str) -> str:
    """Return from where callers can connect, in words."""
    address = ip_address(host.partition("%")[0])
    if address.is_unspecified:
        return "every_interface: whoever reaches this machine can run the model; 127.0.0.1 is for this machine alone"
    return "this_machine" if address.is_loopback else "one_interface"


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)


class _Connection(GuardedProtocol):
    def __init__(
        self, app: Application, config: uvicorn.Config, state: ServerState, on_lost: Callable[[], None], bounds: Bounds
    ) -> None:
        super().__init__(config, state, bounds)
        self._app = app
        self._on_lost = on_lost
        self._limit_bytes = bounds.max_body_bytes
        self._body: Body | None = None
        self._due: InferCycle | None = None
        """The infer request whose body is being read."""
        self.reader = BodyReader(self, self.count_body, self.on_message_complete)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._body is not None:
            # The rest of it passes the parser by, which would wait for it for ever.
            self.parser = httptools.HttpRequestParser(self)
            self.reader.body = self._body

    def take_head(self, headers: Mapping[bytes, bytes]) -> bool:
        self._body = large_body(headers, self._limit_bytes)
        if not self._is_batch(headers):
            self.scope.update({BODY: self._body})  # type: ignore[misc]  # ASGI lets servers add keys of their own.
            return False
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        self._due = InferCycle(self._app, self, headers, arrived_s=time.monotonic(), keep_alive=keep_alive)
        self.cycle = self._due
        return True

    def _is_batch(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request may go the short way: nothing is before it, and its whole body is about to come."""
        size = headers.get(b"content-length")
        return (
            self.url in self._app.infer_targets
            and self.parser.get_method() == b"POST"
            and size is not None
            and int(size) <= self._limit_bytes
            and not self.expect_100_continue
            and (self.cycle is None or self.cycle.response_complete)
        )

    def on_body(self, body: bytes) -> None:
        if self._body is not None:
            self.count_body(len(body))
            self._body.add(body)
        elif self._due is not None:
            self.count_body(len(body))
            self._due.chunks.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        large, self._body = self._body, None
        due, self._due = self._due, None
        if due is None:
            super().on_message_complete()
            return
        self._in_body = False
        due.begin(large.view if large is not None else None)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._on_lost()
