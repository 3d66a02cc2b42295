"""Writes of asynchronous requests and results to the store, each in a task of its own."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Final

from shoal_proxy.asynchronous.jobs import Job, tag_in
from shoal_proxy.asynchronous.records import encode_request
from shoal_proxy.codecs.base import HttpResponse
from shoal_proxy.errors import Conflict, ProxyError, StoreUnavailable

if TYPE_CHECKING:
    from shoal_proxy.asynchronous.store import JobStore

logger = logging.getLogger(__name__)

CLOSE_S: Final = 5.0
"""Time for the last writes to the store."""
MIN_PAUSE_S: Final = 0.05
MAX_PAUSE_S: Final = 10.0
"""Pauses before a result is written again; they double."""


class StoreWrites:
    """Writes to the store that are not finished.

    Args:
        store: the store.
        on_ended: called after each write.
    """

    def __init__(self, store: "JobStore", on_ended: Callable[[], None]) -> None:
        self._store = store
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> bool:
        """Return whether a write is not finished."""
        return bool(self._tasks)

    def add_request(self, job: Job, written: Callable[[ProxyError | None], None]) -> None:
        """Store the request of a job; call ``written`` with the error, if any."""
        self._spawn(self._add_request(job, written))

    async def _add_request(self, job: Job, written: Callable[[ProxyError | None], None]) -> None:
        offset_s = time.time() - time.monotonic()  # noqa: TID251 (deadlines in the store are dates)
        error: ProxyError | None = None
        try:
            await self._store.add_request(job.id, encode_request(job, offset_s))
            # An id that this replica has made is new.
            if not tag_in(job.id) and await self._store.withdraw_if_used(job.id):
                error = used_id(job.id)
        except StoreUnavailable as failure:
            error = failure
        written(error)

    def claim(self, job: Job, ended: Callable[[bool | None], None]) -> None:
        """Claim the right to run a job; call ``ended`` with whether it is granted, or None if the store failed."""
        self._spawn(self._claim(job, ended))

    async def _claim(self, job: Job, ended: Callable[[bool | None], None]) -> None:
        claimed: bool | None = None
        with contextlib.suppress(StoreUnavailable):
            claimed = await self._store.start(job.id, job.starts)
        ended(claimed)

    def add_result(
        self, job: Job, response: HttpResponse, created: Callable[[], None], ended: Callable[[], None]
    ) -> None:
        """Store the result of a job until that succeeds or the job is deleted, and delete its request.

        Args:
            job: the job.
            response: its result.
            created: called if the store had no result before, so that this one counts.
            ended: called when the store has the result, or the job is deleted.
        """
        self._spawn(self._add_result(job, response, created, ended))

    async def _add_result(
        self, job: Job, response: HttpResponse, created: Callable[[], None], ended: Callable[[], None]
    ) -> None:
        pause_s = MIN_PAUSE_S
        while not job.is_deleted:
            try:
                # Another process may have ended it, or its client has deleted it.
                if await self._store.add_result(job.id, job.owner, response):
                    created()
                await self._store.delete_request(job.id)
                break
            except StoreUnavailable:
                await asyncio.sleep(pause_s)
                pause_s = min(MAX_PAUSE_S, 2 * pause_s)
        ended()

    async def close(self) -> None:
        """Complete the writes, and let other replicas continue."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_S)
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(StoreUnavailable):
            await self._store.end_lease(self._store.process)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("event=asynchronous_write_failed", exc_info=error)
        self._on_ended()


def used_id(job_id: str) -> Conflict:
    """Return the error for an id that another request has."""
    return Conflict(f"there is an asynchronous request with the id {job_id}")
