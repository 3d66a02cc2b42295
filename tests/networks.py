"""Networks of their own for tests: a namespace of Linux with a loopback device, configured as a test needs it."""

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def own_network(*commands: Sequence[str]) -> Iterator[None]:
    """Move this thread, and all that it starts until the block ends, to a network that reaches no other machine.

    Args:
        commands: configure it, after its loopback device is up.

    Raises:
        OSError: this process may not have one, or ``ip`` is missing; the text says what to do.
    """
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _check(_LIBC.unshare(_CLONE_NEWNET))
        for command in (("ip", "link", "set", "lo", "up"), *commands):
            subprocess.run(command, check=True, capture_output=True)
        yield
    finally:
        _check(_LIBC.setns(before, _CLONE_NEWNET))
        os.close(before)


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        remedy = "a network of its own needs root, or `unshare --map-root-user --net`"
        raise OSError(number, f"{os.strerror(number)}; {remedy}")
