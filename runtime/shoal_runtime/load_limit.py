"""A limit on how long bringing a model up may take.

A thread that is stuck in a file system, in a download or in a model's own code cannot be killed, so the process
ends, with a last line that says at what it was. Somebody starts a fresh one, or reads why not.
"""

import faulthandler
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from shoal_runtime.errors import EXIT_LOAD_FAILED
from shoal_runtime.readiness import Readiness
from shoal_runtime.watchdog import LOCK_HELD_AFTER_S, exit_now

FETCH_GRACE_S: Final = 90.0
"""Fetching looks at its limit itself, and cleans up; only what hangs within a single read meets this one."""
EXIT_UNLOADED: Final = partial(exit_now, code=EXIT_LOAD_FAILED)


@contextmanager
def within(
    limit_s: float,
    setting: str,
    readiness: Readiness,
    *,
    grace_s: float = 0.0,
    end: Callable[[str], None] = EXIT_UNLOADED,
) -> Iterator[None]:
    """End the process, with a last line, when what is within takes longer than the setting says.

    ``readiness`` tells at what it was; ``grace_s`` is more time, to look at the limit itself and to clean up.
    """

    def give_up() -> None:
        doing = readiness.reason
        readiness.lost(f"the model cannot be loaded within {limit_s:g} s")
        end(f"the model cannot be loaded: {doing} takes longer than {limit_s:g} s ({setting})")

    timer = threading.Timer(limit_s + grace_s, give_up)
    timer.daemon, timer.name = True, "load limit"
    timer.start()
    # A library that holds Python's own lock keeps the timer from running too.
    faulthandler.dump_traceback_later(limit_s + grace_s + LOCK_HELD_AFTER_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        timer.cancel()
