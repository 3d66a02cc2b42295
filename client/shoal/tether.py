"""Run a command that dies with its parent, even when the parent is killed with SIGKILL.

A program of its own: ``python -I -S tether.py PARENT_PID COMMAND...`` asks the kernel (Linux) to
kill this process when its parent dies, then becomes COMMAND. The request survives exec, so the
command needs to know nothing of it, and no code of ours runs between fork and exec. Imports the
standard library only.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Tie this process to its parent and become the command."""
    parent_pid, *command = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have died before the kernel was asked: then nobody will ever send the signal.
    if os.getppid() != int(parent_pid):
        sys.exit("the parent is gone")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
