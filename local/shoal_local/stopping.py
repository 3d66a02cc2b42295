"""Runs one part of the cluster until SIGINT or SIGTERM."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Coroutine
from typing import Any

from shoal_local.kubeconfig import BadKubeconfigError
from shoal_schema.process.exit_status import INTERRUPTED
from shoal_schema.process.logs import configure


def run_part(work: Coroutine[Any, Any, None]) -> int:
    """Run a part of the cluster to SIGINT or SIGTERM; return its exit status."""
    configure()
    try:
        return asyncio.run(until_stopped(work))
    # Expected at the start: a port in use, a bad option or kubeconfig. No traceback.
    except (OSError, ValueError, BadKubeconfigError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


async def until_stopped(work: Coroutine[Any, Any, None]) -> int:
    """Run ``work`` to its end, or cancel it at SIGINT or SIGTERM.

    Returns the exit status: 130 after SIGINT, as shells report it, else 0.
    """
    task = asyncio.create_task(work)
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        # asyncio's handler, unlike signal.signal, may cancel a task safely.
        loop.add_signal_handler(number, stop, number)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return INTERRUPTED if signal.SIGINT in received else 0
