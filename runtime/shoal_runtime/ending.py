"""The end of a process with its parent."""

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, even by SIGKILL (Linux)."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have ended before the call took effect. Processes without a parent belong to process 1.
    if os.getppid() != parent:
        sys.exit("the parent process has ended")
