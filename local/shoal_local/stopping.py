"""Runs a coroutine until a signal asks the process to stop."""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any

from shoal_schema.ending import INTERRUPTED


async def until_stopped(work: Coroutine[Any, Any, None]) -> int:
    """Run until the work ends, or cancel it at SIGINT or SIGTERM.

    Return the exit status: 130 after SIGINT, as of any program that Ctrl-C ended, else 0.
    """
    task = asyncio.create_task(work)
    loop = asyncio.get_running_loop()
    came: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        came.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return INTERRUPTED if signal.SIGINT in came else 0
