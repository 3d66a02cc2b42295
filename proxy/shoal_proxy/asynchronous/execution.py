"""Execution of asynchronous requests: submits jobs to the scheduler, and keeps their results.

Jobs wait in a table of their own, and join the scheduler's queue only while it is short. So requests of waiting clients
keep their places, and far more jobs can wait than the scheduler's limits allow.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Final

from shoal_proxy.asynchronous.interfaces import JobRunner, ResultDelivery
from shoal_proxy.asynchronous.jobs import Job, JobRequest, JobState, JobTable, has_room, tag_of
from shoal_proxy.asynchronous.writes import StoreWrites, used_id
from shoal_proxy.batching.pending import PendingRequest
from shoal_proxy.codecs.base import EXECUTED, HttpResponse
from shoal_proxy.dispatch.dispatcher import Dispatcher
from shoal_proxy.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    Draining,
    InvalidRequest,
    ModelFailed,
    Overloaded,
    ProxyError,
    StoreUnavailable,
)
from shoal_proxy.lifecycle.drain import ProxyPhase
from shoal_proxy.observe.metrics import Metrics
from shoal_proxy.settings import Settings
from shoal_schema.interfaces.headers import CALLBACK
from shoal_schema.interfaces.metrics import AsyncOutcome, RejectionReason

if TYPE_CHECKING:
    from shoal_proxy.asynchronous.store import JobStore

logger = logging.getLogger(__name__)

TICK_S: Final = 0.5
"""Interval of checks for deadlines and expired results."""
STORE_PAUSE_S: Final = 1.0
"""Pause after the store has failed."""
PAUSE_S: Final = 0.05
"""Pause after the scheduler has rejected a job: it is overloaded, or the runtime is not ready."""
_ID_BYTES: Final = 16


class AsyncRequests:
    """The asynchronous requests that this replica accepted.

    All methods must be called in the event loop's thread.
    """

    def __init__(
        self,
        settings: Settings,
        dispatcher: Dispatcher,
        metrics: Metrics,
        runner: JobRunner,
        store: "JobStore | None" = None,
    ) -> None:
        limits = settings.asynchronous
        self.table = JobTable(
            max_jobs=limits.max_requests,
            max_bytes=limits.max_bytes,
            result_s=limits.result_seconds,
            ageing_s=settings.queue.priority_ageing_milliseconds / 1000,
        )
        self.delivery: ResultDelivery | None = None
        """Sends webhooks; None if the service sends none."""
        self.store = store
        """Keeps requests and results; None: they are in memory only."""
        self.on_settled: Callable[[], None] = lambda: None
        self._queue_rows = settings.queue_rows
        self._max_bytes = limits.max_bytes
        self._timeout_s = float(limits.timeout_seconds)
        self.result_s = float(limits.result_seconds)
        """Time that a result is kept."""
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._runner = runner
        self._loop = asyncio.get_running_loop()
        self._tag = tag_of(dispatcher.instance)
        self._pending: dict[str, PendingRequest] = {}
        """The requests of started jobs, by the job's id."""
        self._writes = None if store is None else StoreWrites(store, self._changed)
        self._claiming_rows = 0
        """Rows of jobs that are being claimed, and are in the scheduler's queue next."""
        self._paused_until_s = 0.0
        self._leaving = self._stopped = False

    @property
    def settled(self) -> bool:
        """Return whether every job has a result."""
        writing = self._writes is not None and self._writes.running
        return not (self.table.waiting or self.table.started or writing)

    def accept(
        self,
        request: JobRequest,
        pending: PendingRequest,
        job_id: str,
        accepted: Callable[[Job, ProxyError | None], None],
    ) -> None:
        """Accept a valid request whose rows are charged to its client.

        Args:
            request: the request.
            pending: its decoded form.
            job_id: an id that the client has got before; empty for a new one.
            accepted: called with the job once it is in the store, if there is one, or with the error of the store.

        Raises:
            Overloaded: a limit of asynchronous requests is reached.
            Draining: this replica is about to stop, and its results with it.
            Conflict: there is a request with this id.
            ProxyError: results cannot be sent to the callback URL.
        """
        if self.store is not None and not self.store.ready:
            raise StoreUnavailable("the store of asynchronous requests has not responded yet")
        if self.store is None and self._dispatcher.phase is not ProxyPhase.SERVING:
            raise Draining("this replica is about to stop, and keeps no results. Retry the request")
        if len(request.body) > self._max_bytes:
            raise BodyTooLarge(f"the body is over asynchronous.maxBytes ({self._max_bytes})")
        if request.callback:
            if self.delivery is None:
                raise InvalidRequest(f"{CALLBACK} requires the field asynchronous.webhooks, which is not set")
            self.delivery.check(request.callback)
        if job_id and self.table.find(job_id) is not None:
            raise used_id(job_id)
        now_s, client, rows = time.monotonic(), pending.client, pending.rows
        # The client's timeout, if it sent one.
        timeout_s = min(pending.soft_deadline_s - pending.arrived_s, self._timeout_s)
        job = Job(
            job_id or f"{token_hex(_ID_BYTES)}-{self._tag}",
            request,
            rows=rows,
            level=pending.lane.level,
            owner="" if client is None else client.name,
            accepted_s=now_s,
            deadline_s=now_s + timeout_s,
        )
        if limit := self.table.accept(job):
            # Rejected rows are demand that more replicas could serve.
            self._dispatcher.scheduler.traffic.arrived_rows += rows
            self._dispatcher.scheduler.traffic.count_rejected(RejectionReason.QUEUE_ROWS, rows)
            raise Overloaded(limit, reason=RejectionReason.QUEUE_ROWS, retry_after_s=1)
        job.client = None if client is None else client.take_charge()
        if self._writes is None:
            self._enqueue(job)
            accepted(job, None)
        else:
            self._writes.add_request(job, partial(self._request_written, job, accepted))

    def keep_error(self, job_id: str, request: JobRequest, owner: str, response: HttpResponse) -> Job | None:
        """Keep the error of a request whose client has got 202 from the activator; return None without room.

        Args:
            job_id: the id that the client has.
            request: the request, without its body.
            owner: name of the authenticated client; empty without access control.
            response: the error.
        """
        now_s = time.monotonic()
        job = Job(job_id, request, rows=0, level=0, owner=owner, accepted_s=now_s, deadline_s=now_s)
        if self.holds(job_id) or self.table.accept(job):
            return None
        self._end(job, response, AsyncOutcome.FINISHED)
        return job

    def holds(self, job_id: str) -> bool:
        """Return whether this process has a job."""
        return self.table.find(job_id) is not None

    def restore(self, job: Job) -> None:
        """Let a job of a stopped process wait here, if there is room."""
        if not self._leaving and not self.table.accept(job):
            logger.info("event=asynchronous_request_continued id=%s", job.id)
            self._enqueue(job)
            # One that is past its deadline ends now, and does not run.
            self.tick(time.monotonic())

    async def end_lost(self, job: Job, request: JobRequest, error: ProxyError) -> None:
        """End a job that a stopped process had started, and that may have run."""
        assert self.store is not None
        response = self._runner.job_error(request, error)
        if await self.store.add_result(job.id, job.owner, response):
            self._metrics.async_requests[AsyncOutcome.LOST] += 1
            self._deliver(job.id, request, response)
        await self.store.delete_request(job.id)

    def find(self, job_id: str, owner: str) -> Job | None:
        """Return a job of a client whose result has not expired."""
        self._expire(time.monotonic())
        job = self.table.find(job_id)
        return job if job is not None and job.owner == owner else None

    async def delete(self, job: Job) -> None:
        """Cancel a job without a result, or drop its result.

        Raises:
            StoreUnavailable: the store failed.
        """
        if job.state is not JobState.ENDED:
            self._metrics.async_requests[AsyncOutcome.CANCELLED] += 1
        pending = self._pending.pop(job.id, None)
        if pending is not None:
            self._runner.cancel(pending)  # rows that still run stay charged to the client
        self._forget(job)
        if self.store is not None:
            await self.store.cancel(job.id, job.owner, is_held=True)
            job.is_deleted = True

    def tick(self, now_s: float) -> None:
        """End waiting jobs past their deadline, delete old results, and submit jobs."""
        for job in self.table.overdue(now_s):
            late = DeadlineExceeded("the time for an asynchronous request passed while this one waited")
            self._end(job, late, AsyncOutcome.TIMED_OUT)
        self._expire(now_s)
        self._submit_waiting()

    async def watch(self) -> None:
        """Check deadlines and old results periodically, until cancelled."""
        while True:
            self.tick(time.monotonic())
            await asyncio.sleep(TICK_S)

    def leave(self) -> None:
        """Leave jobs that this replica has not started to others, at the start of the drain; only with a store."""
        self._leaving = True
        if self.store is not None:
            for job in self.table.waiting_jobs():
                if not job.claimed:
                    self._forget(job)

    def stop(self) -> None:
        """End all waiting jobs, at the end of the time for a drain; jobs that are rejected from now on end."""
        self._stopped = True
        unfinished = self.table.waiting + self.table.started
        if unfinished:
            logger.warning("event=asynchronous_requests_lost count=%d results=%d", unfinished, len(self.table))
        for job in self.table.waiting_jobs():
            stopped = Draining("the replica stopped before this asynchronous request ran")
            self._end(job, stopped, AsyncOutcome.LOST)

    async def close(self) -> None:
        """Complete writes to the store, and let other replicas continue."""
        if self._writes is not None:
            await self._writes.close()

    def _expire(self, now_s: float) -> None:
        self._metrics.async_results_expired += self.table.expire(now_s)

    def _enqueue(self, job: Job) -> None:
        self.table.enqueue(job)
        self._changed()
        # After the response with status 202.
        self._loop.call_soon(self._submit_waiting)

    def _forget(self, job: Job) -> None:
        """Drop a job that another process continues, or that was not accepted."""
        self._release(job)
        self.table.drop(job)
        self._changed()

    def _request_written(
        self, job: Job, accepted: Callable[[Job, ProxyError | None], None], error: ProxyError | None
    ) -> None:
        if error is not None:
            self._forget(job)
        accepted(job, error)
        if job.state is JobState.ACCEPTED:
            self._enqueue(job)

    def _submit_waiting(self) -> None:
        """Submit jobs to the scheduler while its queue is short."""
        scheduler, table = self._dispatcher.scheduler, self.table
        limits = scheduler.batcher.limits
        if not self._dispatcher.runs_jobs or time.monotonic() < self._paused_until_s:
            return
        while (job := table.next_waiting()) is not None:
            batch_rows = min(limits.max_rows, scheduler.batcher.tables.least_max_rows)
            queued_rows = scheduler.queue.rows + self._claiming_rows
            if not has_room(queued_rows, batch_rows, limits.in_flight, self._queue_rows):
                return
            table.start(job)
            self._changed()
            if self._writes is None or job.claimed:
                self._run(job)
            else:
                self._claiming_rows += job.rows
                self._writes.claim(job, partial(self._claim_ended, job))
            if job.state is JobState.WAITING:
                return  # rejected: the next one would be, too

    def _claim_ended(self, job: Job, claimed: bool | None) -> None:  # noqa: FBT001 (a callback)
        """Run a job, if this process has got the right; ``claimed`` is None if the store failed."""
        self._claiming_rows -= job.rows
        if job.state is not JobState.STARTED:
            return  # deleted meanwhile
        if claimed is None:
            self._give_back(job, STORE_PAUSE_S)
        elif not claimed:
            self._forget(job)  # another process runs it, or its client has cancelled it
        else:
            job.claimed = True
            self._run(job)

    def _give_back(self, job: Job, pause_s: float) -> None:
        self._paused_until_s = time.monotonic() + pause_s
        self._loop.call_later(pause_s, self._submit_waiting)
        self.table.give_back(job)
        self._changed()

    def _run(self, job: Job) -> None:
        pending = self._runner.run_job(job, partial(self._responded, job))
        if pending is not None and job.state is JobState.STARTED:
            self._pending[job.id] = pending
            self._metrics.async_wait_seconds.observe(time.monotonic() - job.accepted_s)

    def _responded(self, job: Job, response: HttpResponse) -> None:
        """Receive the response to a started job."""
        self._pending.pop(job.id, None)
        if job.state is not JobState.STARTED:
            return  # deleted meanwhile
        now_s = time.monotonic()
        rejected = response.status == 503 and EXECUTED[False] in response.lines
        if rejected and now_s < job.deadline_s and not self._stopped:
            self._give_back(job, PAUSE_S)
            return
        outcome = AsyncOutcome.FINISHED
        if response.status == DeadlineExceeded.status:
            outcome = AsyncOutcome.TIMED_OUT
        elif rejected and self._stopped:
            outcome = AsyncOutcome.LOST
        self._end(job, response, outcome)

    def _end(self, job: Job, result: HttpResponse | ProxyError, outcome: AsyncOutcome) -> None:
        """End a job with a response or an error."""
        request = job.request
        assert request is not None
        response = self._runner.job_error(request, result) if isinstance(result, ProxyError) else result
        # A copy: pieces of the body may be views of the whole batch's result.
        kept = HttpResponse(response.status, (b"".join(response.body),), response.content_type, response.lines)
        self._release(job)
        self._metrics.async_requests[outcome] += 1
        if not self.table.end(job, kept, time.monotonic()):
            size = f"the result of {kept.size_bytes} bytes does not fit into asynchronous.maxBytes beside the others"
            dropped = self._runner.job_error(request, ModelFailed(f"{size}. Fetch and delete results earlier"))
            if not self.table.end(job, dropped, time.monotonic()):
                self.table.drop(job)  # there is not even room for the error
        if self._writes is None:
            self._deliver(job.id, request, kept)
        else:
            delivered = partial(self._deliver, job.id, request, kept)
            self._writes.add_result(job, kept, delivered, partial(self.table.drop, job))
        self._changed()

    def _deliver(self, job_id: str, request: JobRequest, response: HttpResponse) -> None:
        if request.callback and self.delivery is not None:
            self.delivery.deliver(job_id, request.callback, response)

    def _release(self, job: Job) -> None:
        """Release the rows that are charged to the job's client."""
        if job.client is not None:
            job.client.release_charge()
            job.client = None

    def _changed(self) -> None:
        """Report waiting jobs to the scheduler's load, and observe its queue while there are any."""
        self._dispatcher.scheduler.waiting_job_rows = self.table.waiting_rows
        self._dispatcher.on_room = self._submit_waiting if self.table.waiting else None
        if self.settled:
            self.on_settled()
