"""A queue of keys to reconcile, one pass per key at a time, with retries."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from shoal_local.api_client import UnreachableError
from shoal_local.apiserver.errors import ApiError
from shoal_local.objects import Key

logger = logging.getLogger(__name__)
MIN_DELAY_S, MAX_DELAY_S = 0.1, 30.0
Reconcile = Callable[[Key], Awaitable[float | None]]


class WorkQueue:
    """A queue that calls ``reconcile`` for each marked key.

    ``reconcile`` returns the delay in seconds until the key is reconciled again, or None.
    """

    def __init__(self, name: str, reconcile: Reconcile, workers: int = 4) -> None:
        self.name = name
        self._reconcile = reconcile
        self._workers = workers
        self._dirty: dict[Key, None] = {}
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()

    def mark(self, key: Key) -> None:
        """Queue the key for reconciliation."""
        self._dirty[key] = None
        self._wake.set()

    def mark_later(self, key: Key, delay_s: float) -> None:
        """Queue the key after a delay, unless an earlier time is scheduled for it."""
        loop = asyncio.get_running_loop()
        known = self._timers.get(key)
        if known is not None and known.when() <= loop.time() + delay_s:
            return
        if known is not None:
            known.cancel()
        self._timers[key] = loop.call_later(delay_s, self._on_timer, key)

    def _on_timer(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.mark(key)

    async def run(self) -> None:
        """Reconcile keys until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            while (key := next((k for k in self._dirty if k not in self._busy), None)) is None:
                # Without an await between the search and clear() no mark is lost; each mark wakes all workers.
                self._wake.clear()
                await self._wake.wait()
            del self._dirty[key]
            self._busy.add(key)
            try:
                await self._reconcile_once(key)
            finally:
                self._busy.discard(key)
                # Marked again during the pass: another worker skipped it.
                if key in self._dirty:
                    self.mark(key)

    async def _reconcile_once(self, key: Key) -> None:
        try:
            requeue_s = await self._reconcile(key)
        except (ApiError, UnreachableError) as error:
            requeue_s = self._back_off(key, f"{error!r}: {error}")
        except Exception as error:
            # One unexpected object must not stop the reconciliation of all others.
            logger.exception("event=reconcile_failed queue=%s key=%s", self.name, "/".join(key))
            requeue_s = self._back_off(key, repr(error))
        else:
            # A success resets the back-off.
            self._failures.pop(key, None)
        if requeue_s is not None:
            self.mark_later(key, requeue_s)

    def _back_off(self, key: Key, error: str) -> float:
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        # The exponent is bounded: 2**1024 exceeds a float.
        delay_s: float = min(MIN_DELAY_S * 2 ** min(count, 20), MAX_DELAY_S)
        logger.info(
            "event=retry_scheduled queue=%s key=%s delay_s=%.1f error=%s", self.name, "/".join(key), delay_s, error
        )
        return delay_s
