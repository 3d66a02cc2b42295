"""A call of gRPC whose client has not read its answer: what is left of it, and the end of its connection.

gRPC keeps an answer until its last byte has left, tells nobody how much has, and has no way to end a call that is
answered. Both are found at the connection's socket, which only the kernel's list of open files leads to.
"""

import os
import socket
import stat
import struct
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final
from urllib.parse import unquote

_FILES: Final = Path("/proc/self/fd")
_ACKED: Final = struct.Struct("@Q")
_ACKED_AT: Final = 120
"""Where Linux's ``tcp_info`` has the bytes that the other side has acknowledged."""


class SlowCall:
    """What of one answer is not read yet.

    Args:
        peer: the client, as gRPC names it.
        port: the server's own.
        size_bytes: of the answer.
    """

    def __init__(self, peer: str, port: int, size_bytes: int) -> None:
        self._peer = peer
        self._port = port
        self._size_bytes = size_bytes
        self._acked_before: int | None = None

    @property
    def left_bytes(self) -> int:
        """Return how much is left, as far as it can be seen: all of it when this is read for the first time."""
        acked = self._acked()
        if self._acked_before is None:
            self._acked_before = acked
        return max(0, self._size_bytes - (acked - self._acked_before))

    def give_way(self) -> None:
        """End the connection, with all its calls."""
        if (connection := connection_of(self._peer, self._port)) is not None:
            with connection:
                connection.shutdown(socket.SHUT_RDWR)

    def _acked(self) -> int:
        connection = connection_of(self._peer, self._port)
        if connection is None:
            return 0
        with connection:
            told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AT + _ACKED.size)
        return int(_ACKED.unpack_from(told, _ACKED_AT)[0]) if len(told) == _ACKED_AT + _ACKED.size else 0


def connection_of(peer: str, port: int) -> socket.socket | None:
    """Return a second handle of the connection from ``peer`` (`ipv4:HOST:PORT`) to ``port``; None where it is gone."""
    host, _, remote_port = unquote(peer).partition(":")[2].rpartition(":")
    for file in _FILES.iterdir():
        try:
            if not stat.S_ISSOCK(file.stat().st_mode):
                continue
            found = socket.socket(fileno=os.dup(int(file.name)))
        except OSError:  # closed meanwhile
            continue
        if _is(found, host.strip("[]"), remote_port, port):
            return found
        found.close()
    return None


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
