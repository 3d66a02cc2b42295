"""Step-by-step execution of long jobs (de/compression) on the event loop.

All jobs together use a bounded part of each iteration of the event loop, round robin. So neither one large body nor
many bodies delay other requests for longer than that part.
"""

import asyncio
from collections import deque
from typing import Final, Protocol

TURN_COST: Final = 65536
"""The cost limit of one iteration, in decompressed bytes: less than a millisecond."""


class Job(Protocol):
    """Long computation that is done in steps."""

    scheduled: bool
    """Whether it waits for its next step; set by `Rotation`."""

    def step(self) -> int:
        """Do a bounded part of the work, such as compressing some KiB.

        Returns: The cost of the part, in bytes.
        """


class Rotation:
    """The jobs that wait for their next step."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._due = False

    def schedule(self, job: Job) -> None:
        """Schedule the next step of ``job``.

        Nothing changes if a step of the job is scheduled already.
        """
        if job.scheduled:
            return
        job.scheduled = True
        self._jobs.append(job)
        self._soon()

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            # Runs in the next iteration, after the callbacks that are ready now.
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._due = False
        left = TURN_COST
        try:
            while self._jobs and left > 0:
                job = self._jobs.popleft()
                job.scheduled = False
                left -= job.step()
        finally:  # a step that raises is logged by the loop and does not stop other jobs
            if self._jobs:
                self._soon()
