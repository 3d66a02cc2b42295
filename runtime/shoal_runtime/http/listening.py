"""Listening sockets and their HTTP connections, instead of uvicorn's server."""

import asyncio
import errno
import os
import socket
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import httptools
import uvicorn
from uvicorn.server import ServerState

from shoal_runtime.http.body import BODY, BodyReader, large_body
from shoal_runtime.http.connection_limits import ConnectionBounds, LimitedProtocol
from shoal_runtime.http.infer_cycle import Application, InferCycle
from shoal_schema.fields.addresses import Address
from shoal_schema.process.environment import SettingsError
from shoal_schema.wire.body import Body

BACKLOG: Final = 128


def open_socket(address: Address) -> socket.socket:
    """Return a socket bound to an address.

    The file of a Unix socket is replaced if no process listens on it.

    Raises:
        SettingsError: the address cannot be used, or another process uses it.
    """
    try:
        if address.path:
            return _unix_socket(address.path)
        family, kind, protocol, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            # A restarted process may bind while old connections are closing.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if address.host == "::":  # IPv4 addresses too
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind(where)
        except OSError:
            listener.close()
            raise
        return listener
    except OSError as error:
        raise SettingsError(f"SHOAL_RUNTIME_LISTEN={address} cannot be used: {error}") from None


def _unix_socket(path: str) -> socket.socket:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise OSError(errno.EEXIST, "the file there is not a socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            # A socket without a process is stale.
            if (code := probe.connect_ex(path)) == 0:
                raise OSError(errno.EADDRINUSE, "another process listens there")
            if code != errno.ECONNREFUSED:
                raise OSError(code, os.strerror(code))
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        # Proxy and runtime may run as different users; the permissions of the directory decide.
        os.chmod(path, 0o666)
    except OSError:
        listener.close()
        raise
    return listener


class Connections:
    """Listener on one socket, and its HTTP connections.

    Args:
        app: application that serves the requests.
        listener: bound socket, which `close` closes.
        on_empty: function that is called when the last connection is lost.
        bounds: limits of each connection; by default `ConnectionBounds` with the app's limit of a body.
    """

    def __init__(
        self,
        app: Application,
        listener: socket.socket,
        on_empty: Callable[[], None],
        bounds: ConnectionBounds | None = None,
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
        # uvicorn's protocol reads the loaded configuration; its server is not used.
        self._config.load()
        self._app = app
        self._bounds = ConnectionBounds(app.max_body_bytes) if bounds is None else bounds
        self._state = ServerState()
        self._listener = listener
        self._name = listener.getsockname()
        # The model's code may change the working directory.
        self._path = os.path.abspath(self._name) if isinstance(self._name, str) else ""
        self._on_empty = on_empty
        self._server: asyncio.Server | None = None

    def __len__(self) -> int:
        return len(self._state.connections)

    async def listen(self) -> tuple[str, str]:
        """Start to accept connections.

        Returns: The address, and which clients can reach it, as texts for the log.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self._app, self._config, self._state, self._lost, self._bounds).reader,
            sock=self._listener,
            backlog=BACKLOG,
        )
        if isinstance(self._name, str):
            return f"unix:{self._name}", "unix"
        host, port = self._name[:2]
        address = ip_address(host.partition("%")[0])
        reach = "this_machine" if address.is_loopback else "one_interface"
        if address.is_unspecified:
            reach = "every_interface: any host that reaches this machine can run the model; 127.0.0.1 limits it to one"
        return str(Address(host=host, port=port)), reach

    async def close(self) -> None:
        """Stop accepting connections, and abort open ones."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._state.connections):
            connection.transport.abort()
        self._listener.close()
        if self._path:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
        # One turn of the loop, in which the transports release their sockets.
        await asyncio.sleep(0)

    def _lost(self) -> None:
        if not self._state.connections:
            self._on_empty()


class _Connection(LimitedProtocol):
    def __init__(
        self,
        app: Application,
        config: uvicorn.Config,
        state: ServerState,
        on_lost: Callable[[], None],
        bounds: ConnectionBounds,
    ) -> None:
        super().__init__(config, state, bounds)
        self._app = app
        self._on_lost = on_lost
        self._limit_bytes = bounds.max_body_bytes
        self._body: Body | None = None
        self._awaiting_body: InferCycle | None = None
        """The infer request whose body is being read."""
        self.reader = BodyReader(self, self.count_body, self.on_message_complete)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._body is not None:
            # The rest of the body bypasses the parser, which would never see its end.
            self.parser = httptools.HttpRequestParser(self)
            self.reader.body = self._body

    def take_head(self, headers: Mapping[bytes, bytes]) -> bool:
        self._body = large_body(headers, self._limit_bytes)
        size = headers.get(b"content-length")
        # A batch bypasses ASGI: no other request is in progress, and its whole body follows.
        is_batch = (
            self.url in self._app.infer_targets
            and self.parser.get_method() == b"POST"
            and size is not None
            and int(size) <= self._limit_bytes
            and not self.expect_100_continue
            and (self.cycle is None or self.cycle.response_complete)
        )
        if not is_batch:
            self.scope.update({BODY: self._body})  # type: ignore[misc]  # ASGI lets servers add keys of their own
            return False
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        self._awaiting_body = InferCycle(self._app, self, headers, arrived_s=time.monotonic(), keep_alive=keep_alive)
        self.cycle = self._awaiting_body
        return True

    def on_body(self, body: bytes) -> None:
        if self._body is not None:
            self.count_body(len(body))
            self._body.add(body)
        elif self._awaiting_body is not None:
            self.count_body(len(body))
            self._awaiting_body.chunks.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        large, self._body = self._body, None
        cycle, self._awaiting_body = self._awaiting_body, None
        if cycle is None:
            super().on_message_complete()
            return
        self._in_body = False
        cycle.begin(large.view if large is not None else None)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._on_lost()
