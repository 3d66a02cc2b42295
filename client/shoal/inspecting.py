"""``shoal inspect``: a runtime that loads a model as it would to serve it, and reports instead."""

import asyncio
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from shoal.folder import own_folder
from shoal.outlet import Outlet
from shoal.processes import Process
from shoal.serving.fields import MachineError
from shoal.serving.supervision import CANNOT_LOAD, Exit, cause, exit_message

STANDARD_ERROR = 2
# What the model's code printed last waits this long for whoever reads it slowly.
READERS_PATIENCE_S = 2.0


def inspect(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the report of a runtime with this environment; what the model's code prints goes to standard error.

    Raises:
        MachineError: it ended without one.
        KeyboardInterrupt: somebody interrupted it.
    """
    with own_folder() as folder:
        file = Path(folder, "report.json")
        log = Outlet(STANDARD_ERROR)
        try:
            end = asyncio.run(_run(environment, str(file), log))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            log.close(READERS_PATIENCE_S)
        if end.returncode not in (0, CANNOT_LOAD) or not file.exists():
            raise MachineError(exit_message(end))
        report: dict[str, Any] = orjson.loads(file.read_bytes())
        return report


async def _run(environment: Mapping[str, str], file: str, log: Outlet) -> Exit:
    task = asyncio.current_task()
    assert task is not None
    # asyncio's own way wakes no loop that has just looked for signals and is about to sleep, which may be for long.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
    process = await Process.start("shoal_runtime", environment, "inspect", file, log=log)
    try:
        returncode = await process.wait()
    finally:
        process.kill()
    return Exit("runtime", returncode, cause(process.last_written), served=False)
