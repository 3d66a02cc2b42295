"""Free ports of this machine, and the claim on a default port."""

import errno
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from shoal.serving.errors import LocalError

FIRST_USERS_PORT = 1024


def is_free(host: str, port: int) -> bool:
    """Return whether a server could listen on ``port`` of ``host``."""
    try:
        _try_port(host, port)
    except OSError:
        return False
    return True


@contextmanager
def claimed(host: str, port: int) -> Iterator[bool]:
    """Claim ``port`` of ``host`` for this ``shoal serve`` during the block.

    Yields whether the claim succeeded: the port is free, and no other ``shoal serve`` claims it.

    A port stays free until the proxy listens, seconds later, so two servers started together would choose the same
    port. The claim is an abstract socket (Linux): it has the port's network namespace, and vanishes with its process.
    """
    if not is_free(host, port):
        yield False
        return
    with socket.socket(socket.AF_UNIX) as claim:
        try:
            if sys.platform == "linux":
                # A leading NUL makes the name abstract.
                claim.bind(f"\0shoal-serve-{host}-{port}")
        except OSError:
            yield False
        else:
            yield True


def find_port(host: str, port: int, *, option: str) -> int:
    """Return ``port`` if it is free, or any free port for 0.

    Raises:
        LocalError: the port is in use, or the host is not an address of this machine.
    """
    try:
        return _try_port(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            what = f"port {port} of {host} is in use. Stop the program that listens there, or choose another port with"
            raise LocalError(f"{what} {option}") from error
        if error.errno == errno.EACCES and port < FIRST_USERS_PORT:
            what = f"port {port} of {host} is reserved for the superuser. Choose one from {FIRST_USERS_PORT} on with"
            raise LocalError(f"{what} {option}") from error
        # Failures of name resolution have a negative number and a text of their own.
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise LocalError(f"cannot listen on port {port} of {host}: {why or error}") from error


def _try_port(host: str, port: int) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listener:
        return int(listener.getsockname()[1])
