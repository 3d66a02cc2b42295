"""Exit of every command on Ctrl-C, a closed pipe or a full disk.

It imports little, so that Ctrl-C is handled while a command's own imports run.
"""

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress

INTERRUPTED = 130
NOBODY_READS = 141
"""Exit status after SIGPIPE, as in `shoal ... | head`."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of writing to a full disk or a closed terminal."""


def ended(run: Callable[[], int]) -> int:
    """Run a command and return its exit status."""
    # Open closed standard streams: the next file opened would get their number, and their output.
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 (open to the end)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    try:
        try:
            return run()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    # The reader has closed the pipe, as `head` does.
    except BrokenPipeError:
        _write_no_more()
        return NOBODY_READS
    except OSError as error:
        if error.errno not in FULL:
            raise
        _write_no_more()
        with suppress(OSError):
            print(f"shoal: cannot write: {error.strerror}", file=sys.stderr, flush=True)  # noqa: T201 (the output of commands)
        return 1


def _write_no_more() -> None:
    # Python flushes standard output at exit, and would print an error.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
