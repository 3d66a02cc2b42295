"""Ports of this machine: which are free, and whose they are about to be."""

import errno
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from shoal.serving.fields import MachineError

FIRST_USERS_PORT = 1024


def is_free(host: str, port: int) -> bool:
    """Return whether a server could listen on ``port`` of ``host``."""
    try:
        _try_port(host, port)
    except OSError:
        return False
    return True


@contextmanager
def claimed(port: int) -> Iterator[bool]:
    """Claim ``port`` for as long as this lasts, and say whether no other ``shoal serve`` has.

    A port is free until the proxy listens, seconds later; of two servers started together both would take it. An
    abstract socket (Linux) belongs to the same network as the port, and goes with whoever has it.
    """
    with socket.socket(socket.AF_UNIX) as claim:
        try:
            if sys.platform == "linux":
                claim.bind(f"\0shoal-serve-{port}")
        except OSError:
            yield False
        else:
            yield True


def find_port(host: str, port: int, *, option: str) -> int:
    """Return ``port`` if it is free, or any free port for 0.

    Raises:
        MachineError: the port is taken, or the host is not an address of this machine.
    """
    try:
        return _try_port(host, port)
    except OSError as error:
        raise MachineError(_cannot_listen(error, host, port, option)) from error


def _cannot_listen(error: OSError, host: str, port: int, option: str) -> str:
    """Return why nobody can listen there; the error's own text has it twice, with numbers."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: stop what listens there, or choose another with {option}"
    if error.errno == errno.EACCES and port < FIRST_USERS_PORT:
        return f"port {port} of {host} is the superuser's: choose one from {FIRST_USERS_PORT} on with {option}"
    # A name that leads nowhere has a negative number and a text of its own.
    why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
    return f"cannot listen on port {port} of {host}: {why or error}"


def _try_port(host: str, port: int) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listener:
        return int(listener.getsockname()[1])
