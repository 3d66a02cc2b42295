"""Slow readers of gRPC responses: unread bytes, and disconnection.

gRPC keeps a response until its last byte is sent, does not report how much is sent, and cannot abort a finished call.
This module uses the connection's socket instead, which it finds in the kernel's list of open files.
"""

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Collection
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


class SlowCall:
    """Unread part of one gRPC response.

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
        """Return the bytes that the client has not acknowledged."""
        acked = 0
        if (connection := connection_of(self._peer, self._port)) is not None:
            with connection:
                acked = _counter_of(connection, _ACKED_AT)
        if self._acked_before is None:
            self._acked_before = acked
        return max(0, self._size_bytes - (acked - self._acked_before))

    def evict(self) -> None:
        """Close the connection, which ends all its calls."""
        if (connection := connection_of(self._peer, self._port)) is not None:
            with connection:
                shut_down(connection)


def shut_down(connection: socket.socket) -> None:
    """Close the connection behind a duplicated socket."""
    with contextlib.suppress(OSError):  # the client has closed it
        connection.shutdown(socket.SHUT_RDWR)


def received_on(connection: socket.socket) -> int:
    """Return the number of bytes received on a connection; 0 if unknown."""
    return _counter_of(connection, _RECEIVED_AT)


def _counter_of(connection: socket.socket, offset: int) -> int:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, offset + _COUNTER.size)
    # Older kernels return a shorter structure.
    return int(_COUNTER.unpack_from(info, offset)[0]) if len(info) == offset + _COUNTER.size else 0


def connections_of(peers: Collection[str], port: int) -> dict[str, socket.socket]:
    """Return duplicated sockets of connections to ``port``, by peer."""
    wanted = {(_plain(host), remote_port): peer for peer in peers for host, remote_port in (peer_address(peer),)}
    found: dict[str, socket.socket] = {}
    for file in _FILES.iterdir():
        try:
            if not stat.S_ISSOCK(file.stat().st_mode):
                continue
            # Duplicated, as closing a Python socket closes its descriptor.
            connection = socket.socket(fileno=os.dup(int(file.name)))
        except OSError:  # closed in the meantime
            continue
        end = _client_end(connection, port)
        if end is not None and (peer := wanted.pop(end, None)) is not None:
            found[peer] = connection
        else:
            connection.close()
        if not wanted:
            break
    return found


def connection_of(peer: str, port: int) -> socket.socket | None:
    """Return a duplicated socket of a peer's connection; None if closed."""
    return connections_of([peer], port).get(peer)


def peer_address(peer: str) -> tuple[str, str]:
    """Return host and port of an address like ``ipv6:%5B::1%5D:5000``."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]"), port


def _client_end(found: socket.socket, port: int) -> tuple[str, str] | None:
    try:
        theirs, ours = found.getpeername(), found.getsockname()
        if found.type != socket.SOCK_STREAM or not isinstance(theirs, tuple) or ours[1] != port:
            return None
        return _plain(theirs[0]), str(theirs[1])
    except (OSError, ValueError):
        return None


def _plain(host: str) -> str:
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
