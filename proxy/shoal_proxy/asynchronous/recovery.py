"""Recovery of asynchronous requests: a replica continues those of replicas that have stopped.

It also renews this replica's lease, and deletes old objects of the store.
"""

import asyncio
import logging
import time
from typing import Final, Protocol

from shoal_proxy.asynchronous.jobs import Job, JobRequest
from shoal_proxy.asynchronous.leases import RENEW_S, Leases
from shoal_proxy.asynchronous.records import UnreadableRecord, decode_request
from shoal_proxy.asynchronous.store import JobStore
from shoal_proxy.errors import RuntimeLost, StoreUnavailable
from shoal_proxy.observe.log_sampling import LogSampler

logger = logging.getLogger(__name__)

SWEEP_S: Final = 60.0
MAX_STARTS: Final = 2
"""Times that a request of an idempotent model is started, as a batch is retried once."""
_LEASES_KEPT_S: Final = 86_400.0


class JobKeeper(Protocol):
    """The part of `AsyncRequests` that recovery uses."""

    def holds(self, job_id: str) -> bool:
        """Return whether this process has the job."""

    def restore(self, job: Job) -> None:
        """Let a job of another process wait here, if there is room."""

    async def end_lost(self, job: Job, request: JobRequest, error: RuntimeLost) -> None:
        """End a job that another process had started."""


class Recovery:
    """Continues the requests of stopped processes.

    Args:
        store: the store.
        keeper: the requests of this process.
        idempotent: whether a request may run twice.
        timeout_s: longest time from acceptance to result (s).
        result_s: time that a result is kept (s).
    """

    def __init__(
        self, store: JobStore, keeper: JobKeeper, *, idempotent: bool, timeout_s: float, result_s: float
    ) -> None:
        self._store = store
        self._keeper = keeper
        self._max_starts = MAX_STARTS if idempotent else 1
        self._timeout_s = timeout_s
        self._result_s = result_s
        self._leases = Leases(store.process)
        self._swept_s = time.monotonic()
        self._failures = LogSampler()

    async def watch(self) -> None:
        """Renew the lease, and continue requests of stopped processes, until cancelled."""
        while True:
            now_s = time.monotonic()
            try:
                if not self._store.ready:
                    await self._store.check()
                await self.renew(now_s)
                self._store.ready = True
                await self.continue_requests(now_s)
            except StoreUnavailable as error:
                self._log(error, now_s)
            if now_s - self._swept_s >= SWEEP_S:
                self._swept_s = now_s
                # Also after a failed write: in a full store, only this makes room.
                try:
                    await self.sweep()
                except StoreUnavailable as error:
                    self._log(error, now_s)
            await asyncio.sleep(RENEW_S)

    async def renew(self, now_s: float) -> None:
        """Renew the lease of this process, and observe those of the others.

        Raises:
            StoreUnavailable: the store failed.
        """
        await self._store.renew_lease()
        self._leases.observe({each.name: each.version async for each in self._store.listed("processes")}, now_s)

    async def continue_requests(self, now_s: float) -> None:
        """Take over requests without a result whose process has stopped.

        Raises:
            StoreUnavailable: the store failed.
        """
        found = [each.name async for each in self._store.listed("requests")]
        for name in found:
            job_id, _, process = name.partition("/")
            if self._keeper.holds(job_id) or self._leases.is_alive(process, now_s):
                continue
            try:
                await self._continue(job_id, process, now_s)
            except UnreadableRecord as error:
                logger.warning("event=request_unreadable id=%s error=%s", job_id, error)
                await self._store.delete(f"requests/{name}")
            except StoreUnavailable:
                raise
            except Exception:  # one request must not keep the others waiting
                logger.exception("event=request_not_continued id=%s", job_id)

    async def _continue(self, job_id: str, process: str, now_s: float) -> None:
        if await self._store.result(job_id) is not None:
            await self._store.delete_request(job_id)  # the process stopped between the two
            return
        starts = await self._store.starts(job_id)
        if starts and self._leases.is_alive(starts[-1], now_s):
            return
        record = await self._store.request(job_id, process)
        if record is None:
            return
        job = decode_request(job_id, record, _wall_offset_s())
        job.starts = len(starts)
        if job.starts < self._max_starts:
            self._keeper.restore(job)
            return
        assert job.request is not None
        stopped = RuntimeLost("the replica stopped while it ran this asynchronous request")
        await self._keeper.end_lost(job, job.request, stopped)

    def _log(self, error: StoreUnavailable, now_s: float) -> None:
        if (unlogged := self._failures.take(now_s)) is not None:
            logger.error("event=store_unavailable unlogged=%d error=%s", unlogged, error.message)

    async def sweep(self) -> None:
        """Delete old results, and what belongs to them.

        Raises:
            StoreUnavailable: the store failed.
        """
        # Nothing may start a request again while its record may still be in the memory of a replica.
        limits = {
            "results": self._result_s,
            "started": self._timeout_s + self._result_s,
            "processes": max(_LEASES_KEPT_S, self._timeout_s),
        }
        for directory, age_s in limits.items():
            for each in [each async for each in self._store.listed(directory)]:
                if each.age_s > age_s:
                    await self._store.delete(f"{directory}/{each.name}")


def _wall_offset_s() -> float:
    return time.time() - time.monotonic()  # noqa: TID251 (deadlines in the store are dates)
