"""How every command of Shoal ends when somebody interrupts it, or its reader has gone.

It imports next to nothing; what a command needs is imported while it runs, and Ctrl-C counts meanwhile.
"""

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress

INTERRUPTED = 130
NOBODY_READS = 141
"""What a shell says of a program that SIGPIPE ended, as it does with all that write on after `| head`."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What writing to a disk that takes no more, or a terminal that has gone, raises."""


def ended(run: Callable[[], int]) -> int:
    """Run a command; return its exit status."""
    _open_what_is_closed()
    try:
        try:
            return run()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _write_no_more()
        return NOBODY_READS
    except OSError as error:
        if error.errno not in FULL:
            raise
        _write_no_more()
        with suppress(OSError):
            print(f"shoal: cannot write: {error.strerror}", file=sys.stderr, flush=True)  # noqa: T201 (what every command's errors are)
        return 1


def _open_what_is_closed() -> None:
    """Have a standard output and error where the caller closed them: else the next file opened would be written to."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 (open to the end)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _write_no_more() -> None:
    """Drop what is left to write: Python would try once more as it ends, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
