"""How every command of Shoal ends when somebody interrupts it, or nobody reads it any more.

Client, proxy, runtime, operator and local hold this module word for word (tests/contract/test_endings.py): none imports
another. It imports next to nothing; what a command needs is imported while it runs, and Ctrl-C counts meanwhile.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

INTERRUPTED = 130
NOBODY_READS = 141
"""What a shell says of a program that SIGPIPE ended, as it does with all that write on after `| head`."""


def ended(run: Callable[[], int]) -> int:
    """Run a command; return its exit status."""
    try:
        try:
            return run()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python would try to write the rest once more as it ends, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS
