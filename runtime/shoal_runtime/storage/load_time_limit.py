"""Time limit for fetching or loading a model.

A thread that is stuck in a file system, a download or a model's own code cannot be killed. At the limit the process
ends with a log line that names the step, and its supervisor starts it again.
"""

import faulthandler
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from shoal_runtime.errors import EXIT_LOAD_FAILED
from shoal_runtime.execution.watchdog import LOCK_HELD_AFTER_S, exit_now
from shoal_runtime.readiness import Readiness

FETCH_GRACE_S: Final = 90.0
"""Fetching checks the limit itself and cleans up; this one applies if a single read hangs."""
EXIT_UNLOADED: Final = partial(exit_now, code=EXIT_LOAD_FAILED)


@contextmanager
def load_time_limit(
    limit_s: float,
    setting: str,
    readiness: Readiness,
    *,
    grace_s: float = 0.0,
    end: Callable[[str], None] = EXIT_UNLOADED,
) -> Iterator[None]:
    """Context that ends the process, with a log line, if it takes longer than the limit.

    Args:
        limit_s: limit in seconds.
        setting: name of the limit's setting, for the message.
        readiness: holds the current step, for the message.
        grace_s: additional seconds, for a block that checks the limit itself and cleans up.
        end: function that ends the process.
    """

    def give_up() -> None:
        step = readiness.reason
        readiness.lost(f"the model cannot be loaded within {limit_s:g} s")
        end(f"the model cannot be loaded: {step} takes longer than {limit_s:g} s ({setting})")

    timer = threading.Timer(limit_s + grace_s, give_up)
    # A daemon, so that it does not keep the process alive.
    timer.daemon, timer.name = True, "load limit"
    timer.start()
    # A library that holds the GIL also stops the timer's thread; faulthandler needs no GIL.
    faulthandler.dump_traceback_later(limit_s + grace_s + LOCK_HELD_AFTER_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        timer.cancel()
