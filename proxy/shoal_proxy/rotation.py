"""Long work on single bodies, beside everything else that the event loop does.

All of it shares one small part of each turn of the loop, in rotation: neither a large body nor many of them hold up
other requests for longer than that.
"""

import asyncio
from collections import deque
from typing import Final, Protocol

TURN_COST: Final = 65536
"""What one turn of the loop may cost, in bytes that are unpacked: less than a millisecond."""


class Job(Protocol):
    """Work that is done in steps."""

    scheduled: bool
    """Whether it waits for its next step; set by `Rotation`."""

    def step(self) -> int:
        """Do a part, and schedule the next one; return what it cost."""


class Rotation:
    """Jobs that wait for their next step."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._due = False

    def schedule(self, job: Job) -> None:
        """Give ``job`` its turn, if it does not wait for it already."""
        if job.scheduled:
            return
        job.scheduled = True
        self._jobs.append(job)
        self._soon()

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._due = False
        left = TURN_COST
        try:
            while self._jobs and left > 0:
                job = self._jobs.popleft()
                job.scheduled = False
                left -= job.step()
        finally:  # a step that raises is logged by the loop, and holds nobody up
            if self._jobs:
                self._soon()
