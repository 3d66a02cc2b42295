"""Run a command that is killed with its parent, even if the parent gets SIGKILL.

A program of its own: ``python -I -S tether.py PARENT_PID COMMAND...`` sets the parent-death signal of this process
(Linux), then executes COMMAND. The setting survives exec, so the command needs no support for it, and no Python code
runs between fork and exec. Imports the standard library only.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Set the parent-death signal and execute the command."""
    parent_pid, *command = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have died before prctl took effect: then the kernel never sends the signal.
    if os.getppid() != int(parent_pid):
        sys.exit("the parent is gone")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
