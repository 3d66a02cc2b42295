"""Ports for processes under test.

The kernel gives ports of its own range to any socket that asks for none: one that was free a moment ago may be taken
before the process that is to have it listens. These lie below that range, and each test process has others.
"""

import os
import socket
from itertools import cycle
from typing import Final

_FIRST: Final = 10_000
_OF_A_PROCESS: Final = 1_000
_WORKER: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10
# Where a second run begins is another place, so that two clones can be tested at once.
_BEGIN: Final = os.getpid() % _OF_A_PROCESS
_offsets: Final = cycle([*range(_BEGIN, _OF_A_PROCESS), *range(_BEGIN)])


def free_port() -> int:
    """Return a port that nothing listens at; another one each time."""
    while True:
        port: int = _FIRST + _WORKER * _OF_A_PROCESS + next(_offsets)
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
