"""A blocking exchange that ends in time, however slowly the other side reads or dribbles.

httpx bounds each read and each write, not all of them together, and a server may send a byte at a time for ever. What
is passed to the socket is therefore never more than what is left of the whole. An exchange of asyncio needs none of
this: it is cancelled.
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
# A write of all would go on as long as the other side takes a byte now and then.
_PIECE_BYTES = 65536


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Let all that a client made by `bounded` does in here, in this thread, end within ``seconds``."""
    token = _ENDS_S.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _ENDS_S.reset(token)


def bounded(client: httpx.Client) -> httpx.Client:
    """Make ``client`` obey `within`, and return it; transports that are not httpx's own are left as they are."""
    # httpx has no public way to its sockets; tests/client/test_client.py proves that this one is there.
    for transport in (client._transport, *client._mounts.values()):
        pool = getattr(transport, "_pool", None)
        if isinstance(pool, httpcore.ConnectionPool) and not isinstance(pool._network_backend, _Backend):
            pool._network_backend = _Backend(pool._network_backend)
    return client


def _left_s(timeout_s: float | None, late: type[Exception]) -> float | None:
    left_s = _ENDS_S.get() - time.monotonic()
    if left_s <= 0:
        raise late("the call's time is over")
    return left_s if timeout_s is None else min(left_s, timeout_s)


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left_s(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
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
        # httpcore leaves its socket open where nobody listens.
        with socket.socket(socket.AF_UNIX) as tried:
            tried.settimeout(left_s)
            try:
                tried.connect(path)
            except OSError as error:
                raise httpcore.ConnectError(str(error)) from error
        return _Stream(self._backend.connect_unix_socket(path, left_s, socket_options))

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)
