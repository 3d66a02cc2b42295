"""A deadline for a whole blocking HTTP exchange.

httpx bounds each read and each write, but not their sum: a server that sends one byte at a time never times out. Here
each socket operation gets at most the remaining time of the exchange. An asyncio exchange is cancelled instead.
"""

import socket
import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpcore
import httpx

_ENDS_S: ContextVar[float] = ContextVar("ends_s", default=float("inf"))
_PIECE_BYTES = 65536
"""Bytes of one write; a single large write could last forever with a slow peer."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Set a deadline, in ``seconds`` from now, for the HTTP exchanges of `bounded` clients inside the block."""
    token = _ENDS_S.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _ENDS_S.reset(token)


def bounded(client: httpx.Client) -> httpx.Client:
    """Make a client honor the deadlines of `within`, and return the client; custom transports are unchanged."""
    # httpx has no public access to its sockets; tests/client/test_client.py checks these attributes.
    for transport in (client._transport, *client._mounts.values()):
        pool = getattr(transport, "_pool", None)
        if isinstance(pool, httpcore.ConnectionPool) and not isinstance(pool._network_backend, _Backend):
            pool._network_backend = _Backend(pool._network_backend)
    return client


def _left_s(timeout_s: float | None, late: type[Exception]) -> float | None:
    # Infinite outside of `within`.
    left_s = _ENDS_S.get() - time.monotonic()
    if left_s <= 0:
        raise late("the deadline of the call has passed")
    return left_s if timeout_s is None else min(left_s, timeout_s)


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left_s(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # Without copies of the body.
        view = memoryview(buffer)
        for start in range(0, len(view), _PIECE_BYTES):
            piece: Any = view[start : start + _PIECE_BYTES]
            self._stream.write(piece, _left_s(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left_s = _left_s(timeout, httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left_s))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    def __init__(self, backend: httpcore.NetworkBackend) -> None:
        self._backend = backend

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left_s = _left_s(timeout, httpcore.ConnectTimeout)
        return _Stream(self._backend.connect_tcp(host, port, left_s, local_address, socket_options))

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        left_s = _left_s(timeout, httpcore.ConnectTimeout)
        # httpcore leaks its socket if no process listens, so try the connection first.
        with socket.socket(socket.AF_UNIX) as tried:
            tried.settimeout(left_s)
            try:
                tried.connect(path)
            except OSError as error:
                raise httpcore.ConnectError(str(error)) from error
        return _Stream(self._backend.connect_unix_socket(path, left_s, socket_options))

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)
