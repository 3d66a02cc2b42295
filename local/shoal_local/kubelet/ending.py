"""Ends one run of a container: its hook, SIGTERM, and SIGKILL when the grace is over."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from shoal_local.kubelet.runs import Run

Object = dict[str, Any]
LEAST_S = 2.0
"""A process gets this long after SIGTERM even when its hook used the grace period up."""
Hook = Callable[[Object, float], Awaitable[None]]


async def bring_down(run: Run, spec: Object, grace_s: float, hook: Hook) -> None:
    """End a run; the time of the hook, which is given its handler, counts against the grace."""
    clock = asyncio.get_running_loop().time
    end_s = clock() + grace_s
    handler = (spec.get("lifecycle") or {}).get("preStop")
    if handler and grace_s > 0:
        await hook(handler, grace_s)
    run.terminate()
    try:
        async with asyncio.timeout(max(end_s - clock(), min(grace_s, LEAST_S))):
            await run.ended.wait()
    except TimeoutError:
        run.kill()
