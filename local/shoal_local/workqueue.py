"""A queue of keys to reconcile. Each is in it once, one at a time is worked on, failures come back later."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from shoal_local.api_client import ApiError, UnreachableError
from shoal_local.objects import Key

LOG = logging.getLogger(__name__)
MIN_DELAY_S, MAX_DELAY_S = 0.1, 30.0
Reconcile = Callable[[Key], Awaitable[float | None]]


class WorkQueue:
    """Runs ``reconcile`` for every key that was marked dirty.

    ``reconcile`` returns in how many seconds it wants to look at the key again, or None.
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
        """Ask for a pass over the key."""
        self._dirty[key] = None
        self._wake.set()

    def mark_later(self, key: Key, delay_s: float) -> None:
        """Ask for a pass after a delay; an earlier request for the same key stands."""
        loop = asyncio.get_running_loop()
        known = self._timers.get(key)
        if known is not None and known.when() <= loop.time() + delay_s:
            return
        if known is not None:
            known.cancel()
        self._timers[key] = loop.call_later(delay_s, self._due, key)

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.mark(key)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._next()
            try:
                await self._pass(key)
            finally:
                self._busy.discard(key)
                if key in self._dirty:
                    self.mark(key)

    async def _next(self) -> Key:
        while True:
            for key in self._dirty:
                if key not in self._busy:
                    del self._dirty[key]
                    self._busy.add(key)
                    return key
            # Nobody looks between this line and the next: no mark is missed, and all workers look again at each.
            self._wake.clear()
            await self._wake.wait()

    async def _pass(self, key: Key) -> None:
        try:
            again_s = await self._reconcile(key)
        except (ApiError, UnreachableError) as error:
            again_s = self._failed(key, f"{error!r}: {error}")
        except Exception:
            # One object that nobody foresaw must not end the work on all others.
            LOG.exception("%s: pass over %s failed", self.name, key)
            again_s = self._failed(key, "see above")
        else:
            self._failures.pop(key, None)
        if again_s is not None:
            self.mark_later(key, again_s)

    def _failed(self, key: Key, why: str) -> float:
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay_s: float = min(MIN_DELAY_S * 2 ** min(count, 20), MAX_DELAY_S)
        LOG.info("%s: %s is tried again in %.1f s: %s", self.name, key, delay_s, why)
        return delay_s
