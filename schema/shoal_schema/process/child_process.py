"""The command of a child process that ends with this process, and the end of a child with its own children."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

_TETHER = str(Path(__file__).with_name("tether.py"))


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command of ``python -m module``, which is killed with this process."""
    return [
        # -I, -S: no user site and no site packages, which keeps the start fast.
        *(sys.executable, "-I", "-S", _TETHER, str(os.getpid())),
        # -P: no imports from the current directory, which may be a model's, with files of any name.
        *(sys.executable, "-P", "-m", module, *arguments),
    ]


def kill_session(pid: int) -> None:
    """Kill a child that leads a session, and the processes that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
