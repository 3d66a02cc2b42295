"""The tasks that take keys from the work queue."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable

from shoal_operator.errors import ApiError, NotLeadingError
from shoal_operator.planning.observation import Key
from shoal_operator.planning.workqueue import Outcome, WorkQueue

logger = logging.getLogger(__name__)

Look = Callable[[Key], Awaitable[Outcome]]


class Workers:
    """Run ``look`` for every key that is due, several keys at a time.

    Cancelling ``run`` cancels the looks that are under way; their keys become due again.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, queue: WorkQueue, look: Look, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._look = look
        self._clock = clock
        self._wake = asyncio.Event()

    def mark(self, key: Key, delay_s: float = 0.0) -> None:
        """Make a key due."""
        self._queue.mark(key, self._clock() + delay_s)
        self._wake.set()

    def mark_all(self) -> None:
        """Make every known key due."""
        for key in self._queue.waiting():
            self.mark(key)

    async def run(self, count: int) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(count):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = self._queue.take(self._clock())
            if key is None:
                await self._wait()
            else:
                await self._process(key)

    async def _process(self, key: Key) -> None:
        outcome = Outcome.FAILED
        try:
            outcome = await self._look(key)
        except (ApiError, NotLeadingError) as error:
            logger.warning("event=look_failed service=%s error=%s", key, error)
        except Exception:  # one service's surprise must not stop the others
            logger.exception("event=look_failed service=%s", key)
        finally:
            self._queue.finish(key, outcome, self._clock(), jitter=random.random())
            self._wake.set()

    async def _wait(self) -> None:
        due_s = self._queue.next_due_s()
        timeout_s = None if due_s is None else max(0.0, due_s - self._clock())
        self._wake.clear()
        # No wait_for: before Python 3.12 it forgets that it is cancelled in the moment that it has waited for.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
