"""The tasks that process keys of the work queue."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

from shoal_operator.children.observation import Key
from shoal_operator.errors import ApiError, NotLeadingError, reconcile_error
from shoal_operator.loop.workqueue import Outcome, Priority, WorkQueue
from shoal_schema.interfaces.metrics import ReconcileError

logger = logging.getLogger(__name__)

Reconcile = Callable[[Key], Awaitable[Outcome]]


class ReconcileCounts(Protocol):
    """The part of `shoal_operator.metrics.Metrics` that counts reconciliations."""

    def count_reconcile(self, outcome: Outcome, took_s: float) -> None: ...  # noqa: D102
    def count_reconcile_error(self, reason: ReconcileError) -> None: ...  # noqa: D102


class Workers:
    """Tasks that reconcile due keys of the work queue.

    Cancelling ``run`` cancels reconciliations in progress; their keys become due again.

    Args:
        clock: monotonic seconds.
        counts: counts outcomes and errors.
    """

    def __init__(
        self, queue: WorkQueue, reconcile: Reconcile, clock: Callable[[], float], counts: ReconcileCounts
    ) -> None:
        self._queue = queue
        self._reconcile = reconcile
        self._clock = clock
        self._counts = counts
        self._wake = asyncio.Event()

    def mark(self, key: Key, delay_s: float = 0.0, priority: Priority = Priority.REST) -> None:
        """Schedule the reconciliation of a key after a delay (s)."""
        self._queue.mark(key, self._clock() + delay_s, priority)
        self._wake.set()

    def mark_scaled(self, key: Key, delay_s: float = 0.0) -> None:
        """Schedule a key's reconciliation because its replicas or its state in the activator changed."""
        self.mark(key, delay_s, Priority.SCALING)

    def mark_all(self) -> None:
        """Schedule an immediate reconciliation of all keys in the queue."""
        for key in self._queue.waiting():
            self.mark(key)

    async def run(self, count: int) -> None:
        """Reconcile due keys with ``count`` tasks until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(count):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = self._queue.take(self._clock())
            if key is not None:
                await self._process(key)
                continue
            # Wait until the next key is due, or until another one is marked.
            due_s = self._queue.next_due_s()
            timeout_s = None if due_s is None else max(0.0, due_s - self._clock())
            self._wake.clear()
            # Not wait_for: before Python 3.12 it may swallow a cancellation that coincides with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()

    async def _process(self, key: Key) -> None:
        outcome, began_s = Outcome.FAILED, self._clock()
        try:
            outcome = await self._reconcile(key)
        except (ApiError, NotLeadingError) as error:
            # Deleted during the reconciliation: the event of the deletion ends the retries.
            if isinstance(error, ApiError) and error.is_deletion:
                logger.info("event=deleted_meanwhile service=%s error=%s", key, error)
                return
            self._counts.count_reconcile_error(reconcile_error(error))
            logger.warning("event=reconciliation_failed service=%s error=%s", key, error)
        except Exception as error:  # an unexpected error of one service must not stop the others
            self._counts.count_reconcile_error(reconcile_error(error))
            logger.exception("event=reconciliation_failed service=%s", key)
        finally:
            self._counts.count_reconcile(outcome, self._clock() - began_s)
            # Other keys of this name may be due now.
            self._queue.finish(key, outcome, self._clock(), jitter=random.random())
            self._wake.set()
