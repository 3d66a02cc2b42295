"""Unread responses of gRPC calls: their remaining bytes, and the closing of their connections.

gRPC keeps a response until its last byte is sent, does not report how much is sent, and cannot abort a finished call.
This module uses the connection's socket instead, which it finds in the kernel's list of open files.
"""

import contextlib
import os
import socket
import stat
import struct
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final
from urllib.parse import unquote

_FILES: Final = Path("/proc/self/fd")
_COUNTER: Final = struct.Struct("@Q")
_ACKED_AT: Final = 120
"""Offset of ``tcpi_bytes_acked`` in Linux's ``tcp_info``."""
_RECEIVED_AT: Final = 128
"""Offset of ``tcpi_bytes_received``."""
_found: dict[tuple[str, int], str] = {}
"""The file that each connection was found at, checked before it is used; bounded by `_MAX_FOUND`."""
_MAX_FOUND: Final = 1024


class SlowCall:
    """The unread part of one response.

    Args:
        peer: the client's address, in gRPC's form.
        port: the server's port.
        size_bytes: size of the response.
    """

    def __init__(self, peer: str, port: int, size_bytes: int) -> None:
        self._peer = peer
        self._port = port
        self._size_bytes = size_bytes
        self._acked_before: int | None = None

    @property
    def unread_bytes(self) -> int:
        """Return the unread bytes: those not acknowledged since this was first read."""
        acked = _counter(self._peer, self._port, _ACKED_AT)
        if self._acked_before is None:
            self._acked_before = acked
        return max(0, self._size_bytes - (acked - self._acked_before))

    def evict(self) -> None:
        """Close the connection, with all its calls."""
        close_connection(self._peer, self._port)


def close_connection(peer: str, port: int) -> None:
    """Close the connection from ``peer`` to ``port``, with all its calls."""
    if (connection := connection_of(peer, port)) is not None:
        with connection, contextlib.suppress(OSError):  # the client has closed it
            connection.shutdown(socket.SHUT_RDWR)


def received_bytes(peer: str, port: int) -> int:
    """Return the bytes received on the connection from ``peer`` to ``port``; 0 if it is closed."""
    return _counter(peer, port, _RECEIVED_AT)


def _counter(peer: str, port: int, offset: int) -> int:
    connection = connection_of(peer, port)
    if connection is None:
        return 0
    with connection:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, offset + _COUNTER.size)
    # Older kernels return a shorter structure.
    return int(_COUNTER.unpack_from(info, offset)[0]) if len(info) == offset + _COUNTER.size else 0


def connection_of(peer: str, port: int) -> socket.socket | None:
    """Return a duplicate of the connection from ``peer`` (`ipv4:HOST:PORT`) to ``port``; None if it is closed."""
    host, remote_port = peer_address(peer)
    last = _found.pop((peer, port), None)
    if last is not None and (known := _duplicate(_FILES / last, host, remote_port, port)) is not None:
        _found[peer, port] = last
        return known
    for file in _FILES.iterdir():
        if (found := _duplicate(file, host, remote_port, port)) is not None:
            if len(_found) >= _MAX_FOUND:
                del _found[next(iter(_found))]
            _found[peer, port] = file.name
            return found
    return None


def _duplicate(file: Path, host: str, remote_port: str, port: int) -> socket.socket | None:
    """Return a duplicate of an open file if it is the connection from ``host`` and ``remote_port`` to ``port``."""
    try:
        if not stat.S_ISSOCK(file.stat().st_mode):
            return None
        # Duplicated, as closing a Python socket closes its descriptor.
        found = socket.socket(fileno=os.dup(int(file.name)))
    except OSError:  # closed in the meantime
        return None
    if _is(found, host, remote_port, port):
        return found
    found.close()
    return None


def peer_address(peer: str) -> tuple[str, str]:
    """Return host and port of an address in gRPC's form: ``ipv4:127.0.0.1:5000`` or ``ipv6:%5B::1%5D:5000``."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]"), port


def _is(found: socket.socket, host: str, remote_port: str, port: int) -> bool:
    try:
        theirs, ours = found.getpeername(), found.getsockname()
        return (
            found.type == socket.SOCK_STREAM
            and isinstance(theirs, tuple)
            and (str(theirs[1]), ours[1]) == (remote_port, port)
            and _plain(theirs[0]) == _plain(host)
        )
    except (OSError, ValueError):
        return False


def _plain(host: str) -> str:
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
