"""Detection of an instance that is stopped by a signal, or that does not respond.

The instance's own watchdog ends a forward that takes too long, unless all of its threads are stopped. So the supervisor
checks from outside:

    stopped   the kernel reports the state T for `STOPPED_S`
    stuck     no response to a health request within the limit of a forward, and the time in which the instance's own
              watchdog would have ended it. Only after the instance was ready: loading and compiling have limits of
              their own
"""

import asyncio
from pathlib import Path
from typing import Final

import httpx

from shoal_runtime.execution.watchdog import LOCK_HELD_AFTER_S
from shoal_schema.fields.addresses import Address
from shoal_schema.interfaces.instances import FORWARD_TIMEOUT

STOPPED_S: Final = 5.0
"""Time for which an instance may be stopped, as by a debugger that attaches to it."""
CHECK_S: Final = 1.0
"""Interval of reading the state of a process."""
REQUEST_S: Final = 5.0
"""Interval of the health requests."""
STUCK_MARGIN_S: Final = LOCK_HELD_AFTER_S + 15.0
"""Time beyond the limit of a forward: a library may hold Python's lock during a forward, and until it is ended."""
CONFIRM_S: Final = 10.0
"""Limit of a second health request, in case that this process itself was paused."""


def health_client(address: Address) -> httpx.AsyncClient:
    """Return an HTTP client for the health requests of an instance."""
    return httpx.AsyncClient(
        base_url="http://runtime" if address.path else f"http://{address}",
        transport=httpx.AsyncHTTPTransport(uds=address.path or None),
        trust_env=False,
        # An open connection would delay the end of the instance.
        headers={"connection": "close"},
    )


def is_stopped(stat: str) -> bool:
    """Return whether a process is stopped by a signal, from the text of ``/proc/PID/stat``."""
    # The name of the command, in parentheses, may contain any character.
    return stat.rpartition(")")[2].split()[:1] == ["T"]


async def until_stopped(stat: Path, *, stopped_s: float = STOPPED_S, check_s: float = CHECK_S) -> str:
    """Wait until a process is stopped for some seconds; return an error message.

    Args:
        stat: file with the state of the process; if it cannot be read, this waits until it is cancelled.
        stopped_s: seconds for which it may be stopped.
        check_s: interval of the checks (s).
    """
    checks = 0
    while checks * check_s <= stopped_s:
        await asyncio.sleep(check_s)
        try:
            checks = checks + 1 if is_stopped(stat.read_text()) else 0  # noqa: ASYNC240 (memory of the kernel)
        except OSError:
            checks = 0
    return f"it is stopped by a signal (SIGSTOP) for more than {stopped_s:g} s"


async def until_stuck(
    client: httpx.AsyncClient,
    limit_s: float,
    *,
    margin_s: float = STUCK_MARGIN_S,
    confirm_s: float = CONFIRM_S,
    request_s: float = REQUEST_S,
) -> str:
    """Wait until an instance that was ready does not respond; return an error message.

    Args:
        client: HTTP client of the instance.
        limit_s: limit of a forward (s), unless the instance reports another one.
        margin_s: time beyond the limit of a forward (s).
        confirm_s: limit of the second request (s).
        request_s: interval of the requests (s).
    """
    was_ready = False
    while True:
        await asyncio.sleep(request_s)
        try:
            response = await client.get("/v2/health/ready", timeout=limit_s + margin_s)
        except httpx.TimeoutException:
            if was_ready and not await _responds(client, confirm_s):
                return f"it has not responded for {limit_s + margin_s + confirm_s:g} s"
            continue
        except httpx.TransportError:
            continue  # it starts, or has just ended
        if response.status_code == 200:
            was_ready, limit_s = True, float(response.json().get(FORWARD_TIMEOUT, limit_s))


async def _responds(client: httpx.AsyncClient, within_s: float) -> bool:
    try:
        await client.get("/v2/health/live", timeout=within_s)
    except httpx.TimeoutException:
        return False
    except httpx.TransportError:
        return True
    return True
