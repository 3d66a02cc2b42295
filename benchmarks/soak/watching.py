"""What the server's processes hold meanwhile, and whether it still says that it is ready."""

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.processes import find_child, resident_bytes
from examples.server import Server

INTERVAL_S = 0.25


@dataclass(slots=True)
class Watch:
    """The highest figures of one attack.

    Args:
        proxy_bytes, runtime_bytes: resident memory.
        descriptors: that the proxy held open.
        unready: how often ``/readyz`` did not answer 200.
        slowest_ready_s: how long its slowest answer took.
    """

    proxy_bytes: int = 0
    runtime_bytes: int = 0
    descriptors: int = 0
    unready: int = 0
    slowest_ready_s: float = 0.0


async def watch(server: Server, duration_s: float) -> Watch:
    """Look every quarter of a second."""
    seen = Watch()
    until_s = time.monotonic() + duration_s
    async with httpx.AsyncClient(base_url=server.admin_url, timeout=10, trust_env=False) as admin:
        while time.monotonic() < until_s:
            note_processes(server, seen)
            await note_readiness(admin, seen)
            await asyncio.sleep(INTERVAL_S)
    return seen


def note_processes(server: Server, seen: Watch) -> None:
    """Read memory and descriptors from /proc; a runtime that is being started again has none."""
    proxy = find_child(server.pid, "shoal_proxy")
    seen.proxy_bytes = max(seen.proxy_bytes, resident_bytes(proxy))
    seen.descriptors = max(seen.descriptors, len(os.listdir(Path("/proc") / str(proxy) / "fd")))
    with contextlib.suppress(LookupError, FileNotFoundError, StopIteration):
        seen.runtime_bytes = max(seen.runtime_bytes, resident_bytes(find_child(server.pid, "shoal_runtime")))


async def note_readiness(admin: httpx.AsyncClient, seen: Watch) -> None:
    """Ask as a kubelet would."""
    started_s = time.monotonic()
    try:
        answer = await admin.get("/readyz")
        good = answer.status_code == 200
    except httpx.TransportError:
        good = False
    seen.slowest_ready_s = max(seen.slowest_ready_s, time.monotonic() - started_s)
    if not good:
        seen.unready += 1
