"""Sockets of listeners: how they are bound, and from where clients reach them."""

import contextlib
import socket
from ipaddress import ip_address
from pathlib import Path

from shoal_schema.fields.addresses import Address

EVERYWHERE = "every_interface"


def bind(address: Address) -> socket.socket:
    """Return a socket bound to an address.

    Raises:
        OSError: the address cannot be bound; the message contains it.
    """
    try:
        if address.path:
            sock = socket.socket(socket.AF_UNIX)
            if Path(address.path).is_socket():
                # A process that has ended left its socket file, which would block the address forever.
                with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
                    # Only a refused connection proves that no process listens there.
                    try:
                        probe.connect(address.path)
                    except ConnectionRefusedError:
                        Path(address.path).unlink()
            sock.bind(address.path)
        else:
            host = address.host
            if host == "::":
                # Every address, of both families.
                try:
                    sock = socket.socket(socket.AF_INET6)
                except OSError:  # the kernel has no IPv6
                    sock, host = socket.socket(socket.AF_INET), "0.0.0.0"
                else:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            else:
                sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, address.port))
        sock.listen()  # before `event=listening` is logged, so that clients can connect from then on
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from None
    return sock


def bound_address(sock: socket.socket) -> str:
    """Return the address of a bound socket."""
    name = sock.getsockname()
    return f"unix:{name}" if isinstance(name, str) else str(Address(name[0], name[1]))


def reach(sock: socket.socket) -> str:
    """Return a word for the addresses on which a socket accepts connections.

    Such as ``unix`` or ``this_machine``.
    """
    name = sock.getsockname()
    if isinstance(name, str):
        return "unix"
    address = ip_address(name[0].partition("%")[0])
    if address.is_unspecified:
        return EVERYWHERE
    return "this_machine" if address.is_loopback else "one_interface"
