"""Exit statuses of commands after Ctrl-C, a closed pipe or a full disk.

This module imports little, so that Ctrl-C is handled while a command's own imports run.
"""

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress

INTERRUPTED = 130
BROKEN_PIPE = 141
"""Exit status after SIGPIPE, as in `shoal ... | head`."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of writing to a full disk or a closed terminal."""


def run_command(run: Callable[[], int]) -> int:
    """Run a command and return its exit status, also after Ctrl-C, a closed pipe or a full disk."""
    _open_closed_streams()
    try:
        try:
            return run()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    # The reader has closed the pipe, as `head` does.
    except BrokenPipeError:
        _discard_output()
        return BROKEN_PIPE
    except OSError as error:
        if error.errno not in FULL:
            raise
        _discard_output()
        with suppress(OSError):
            print(f"shoal: cannot write: {error.strerror}", file=sys.stderr, flush=True)  # noqa: T201 (the output of commands)
        return 1


def _open_closed_streams() -> None:
    # The next file opened would get a closed standard stream's number, and its output.
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 (open to the end)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _discard_output() -> None:
    # Python flushes standard output at exit, and would print an error.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
