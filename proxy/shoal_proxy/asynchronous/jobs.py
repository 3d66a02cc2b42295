"""Table of asynchronous requests: their order, bounds and expiry.

A job is an accepted request:

    accept ──▶ enqueue ──▶ start ──▶ end ──▶ expire
                  ▲          │
                  └ give_back ┘

A job leaves the table by `expire` (its result is too old), or by `drop` (cancelled, or kept in a store instead). Times
are monotonic seconds.
"""

import heapq
import re
from collections import Counter, deque
from collections.abc import Mapping
from enum import StrEnum
from hashlib import blake2b
from typing import Final

from shoal_proxy.access.control import AuthenticatedClient
from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.codecs.base import HttpResponse

_ID: Final = re.compile("[0-9a-f]{32}(-[0-9a-f]{8})?")
_TAG_BYTES: Final = 4
_MIN_COMPACTED: Final = 256
_SHARE: Final = "and may not hold more than what is free. Fetch and delete results earlier"


class JobState(StrEnum):
    """States of a job; the first three have no result."""

    ACCEPTED = "accepted"
    """Being written to the store, before it waits."""
    WAITING = "waiting"
    STARTED = "started"
    """In the scheduler's queue, or at the runtime."""
    ENDED = "ended"


class JobRequest:
    """The request of a job, as it was received.

    Args:
        protocol: label of its protocol.
        headers: headers with names in lower case, without those that make the request asynchronous.
        body: the decompressed body.
        callback: URL to which the response is sent; empty for none.
    """

    __slots__ = ("body", "callback", "headers", "protocol")

    def __init__(
        self, protocol: str, headers: Mapping[bytes, bytes], body: bytes | memoryview, callback: str = ""
    ) -> None:
        self.protocol = protocol
        self.headers = headers
        self.body = body
        self.callback = callback


class Job:
    """An accepted request, and its response once it has ended.

    Args:
        id: its id, which the client got.
        request: the request.
        rows: its number of rows.
        level: its priority, 0 first.
        owner: name of the authenticated client; empty without access control.
        accepted_s: time of acceptance.
        deadline_s: time by which it must have ended.
    """

    __slots__ = (
        "accepted_s", "claimed", "client", "deadline_s", "ended_s", "held_bytes", "id", "is_deleted", "level", "owner",
        "request", "response", "rows", "serial", "starts", "state",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 (each with its name)
        self,
        id: str,
        request: JobRequest,
        *,
        rows: int,
        accepted_s: float,
        deadline_s: float,
        level: int = 0,
        owner: str = "",
    ) -> None:
        self.id = id
        self.request: JobRequest | None = request
        """None once it has ended."""
        self.rows = rows
        self.level = level
        self.owner = owner
        self.accepted_s = accepted_s
        self.deadline_s = deadline_s
        self.state = JobState.ACCEPTED
        self.client: AuthenticatedClient | None = None
        """Account to which the rows are charged until the job ends."""
        self.response: HttpResponse | None = None
        self.ended_s = NEVER_S
        self.is_deleted = False
        """Whether the store needs no result, as its client has deleted it."""
        self.held_bytes = len(request.body)
        """Bytes of the body, later of the result."""
        self.serial = 0
        self.starts = 0
        """Times that stopped processes had started it."""
        self.claimed = False
        """Whether this process has the right to run it; only with a store."""


class JobTable:
    """All jobs of a replica.

    Args:
        max_jobs: most jobs, including those that have ended.
        max_bytes: most bytes of bodies and results.
        result_s: time (s) that a result is kept.
        ageing_s: delay (s) per priority level, as in the scheduler's queue.
    """

    def __init__(self, *, max_jobs: int, max_bytes: int, result_s: float, ageing_s: float) -> None:
        self._max_jobs = max_jobs
        self._max_bytes = max_bytes
        self._result_s = result_s
        self._ageing_s = ageing_s
        self._jobs: dict[str, Job] = {}
        self._order: list[tuple[float, int, Job]] = []
        self._deadlines: list[tuple[float, int, Job]] = []
        self._ended: deque[Job] = deque()
        """Jobs with a result, the oldest first; also dropped ones."""
        self._serial = 0
        self._jobs_of: Counter[str] = Counter()
        self._bytes_of: Counter[str] = Counter()
        """Jobs and bytes by authenticated client."""
        self.held_bytes = 0
        self.waiting = 0
        self.waiting_rows = 0
        self.started = 0

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def unfinished(self) -> int:
        """Return the number of jobs without a result."""
        return sum(job.state is not JobState.ENDED for job in self._jobs.values())

    def find(self, job_id: str) -> Job | None:
        """Return a job by its id."""
        return self._jobs.get(job_id)

    def accept(self, job: Job) -> str:
        """Reserve room for a job that does not wait yet.

        An authenticated client that has other jobs may hold no more than what is free.

        Returns: the limit that rejects it, in words; empty if it is accepted.
        """
        if len(self._jobs) >= self._max_jobs:
            return f"this replica holds {len(self._jobs)} asynchronous requests and results, which is its limit"
        if self.held_bytes + job.held_bytes > self._max_bytes:
            return f"asynchronous requests and results take {self.held_bytes} of {self._max_bytes} bytes"
        if job.owner and self._jobs_of[job.owner]:
            if exceeds_share(self._jobs_of[job.owner], 1, len(self._jobs), self._max_jobs):
                return f"this client holds {self._jobs_of[job.owner]} asynchronous requests and results, {_SHARE}"
            if exceeds_share(self._bytes_of[job.owner], job.held_bytes, self.held_bytes, self._max_bytes):
                return f"requests and results of this client take {self._bytes_of[job.owner]} bytes, {_SHARE}"
        assert job.id not in self._jobs
        self._jobs[job.id] = job
        self._jobs_of[job.owner] += 1
        self._hold(job, job.held_bytes)
        return ""

    def enqueue(self, job: Job) -> None:
        """Let an accepted job wait for its turn."""
        self._set_state(job, JobState.WAITING)
        self._serial += 1
        job.serial = self._serial
        self._wait(job)
        heapq.heappush(self._deadlines, (job.deadline_s, job.serial, job))
        if len(self._deadlines) > _MIN_COMPACTED + 2 * len(self._jobs):
            self._deadlines = [each for each in self._deadlines if _has_no_result(each[2])]
            heapq.heapify(self._deadlines)

    def next_waiting(self) -> Job | None:
        """Return the job whose turn is next."""
        order = self._order
        while order and order[0][2].state is not JobState.WAITING:
            heapq.heappop(order)
        return order[0][2] if order else None

    def start(self, job: Job) -> None:
        """Record that the next waiting job is in the scheduler's queue from now on."""
        assert self._order[0][2] is job
        heapq.heappop(self._order)
        self._set_state(job, JobState.STARTED)

    def give_back(self, job: Job) -> None:
        """Let a started job that did not run wait again, at its former place."""
        self._set_state(job, JobState.WAITING)
        self._wait(job)

    def end(self, job: Job, response: HttpResponse, now_s: float) -> bool:
        """End a job with its response, and drop its request.

        Returns: False if the response does not fit into the limits of bytes; then the job has not ended.
        """
        more_bytes = response.size_bytes + len(response.lines) - job.held_bytes
        if more_bytes > 0:
            if self.held_bytes + more_bytes > self._max_bytes:
                return False
            others = job.owner and self._jobs_of[job.owner] > 1
            if others and exceeds_share(self._bytes_of[job.owner], more_bytes, self.held_bytes, self._max_bytes):
                return False
        self._set_state(job, JobState.ENDED)
        self._hold(job, more_bytes)
        job.held_bytes += more_bytes
        job.request = None
        job.response = response
        job.ended_s = now_s
        self._ended.append(job)
        if len(self._ended) > _MIN_COMPACTED + 2 * len(self._jobs):
            self._ended = deque(each for each in self._ended if each.response is not None)
        return True

    def drop(self, job: Job) -> None:
        """Remove a job in any state."""
        if self._jobs.pop(job.id, None) is None:
            return
        self._set_state(job, JobState.ENDED)
        self._hold(job, -job.held_bytes)
        self._jobs_of[job.owner] -= 1
        if not self._jobs_of[job.owner]:
            del self._jobs_of[job.owner], self._bytes_of[job.owner]
        job.held_bytes = 0
        job.request = job.response = None

    def overdue(self, now_s: float) -> list[Job]:
        """Return the waiting jobs that are past their deadline, once each.

        The scheduler observes the deadlines of started jobs; one that it gives back afterwards is returned then.
        """
        due: list[Job] = []
        kept: list[tuple[float, int, Job]] = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            entry = heapq.heappop(self._deadlines)
            if entry[2].state is JobState.WAITING:
                due.append(entry[2])
            elif entry[2].state is JobState.STARTED:
                kept.append(entry)
        for entry in kept:
            heapq.heappush(self._deadlines, entry)
        return due

    def expire(self, now_s: float) -> int:
        """Remove the results whose time is over; return their number."""
        expired = 0
        while self._ended and self._ended[0].ended_s + self._result_s <= now_s:
            job = self._ended.popleft()
            if job.id in self._jobs and self._jobs[job.id] is job:
                self.drop(job)
                expired += 1
        return expired

    def waiting_jobs(self) -> list[Job]:
        """Return the jobs that wait, in no order."""
        return [job for job in self._jobs.values() if job.state is JobState.WAITING]

    def _hold(self, job: Job, more_bytes: int) -> None:
        self.held_bytes += more_bytes
        self._bytes_of[job.owner] += more_bytes

    def _wait(self, job: Job) -> None:
        heapq.heappush(self._order, (job.accepted_s + job.level * self._ageing_s, job.serial, job))
        if len(self._order) > _MIN_COMPACTED + 2 * len(self._jobs):
            self._order = [each for each in self._order if each[2].state is JobState.WAITING]
            heapq.heapify(self._order)

    def _set_state(self, job: Job, state: JobState) -> None:
        if job.state is JobState.WAITING:
            self.waiting -= 1
            self.waiting_rows -= job.rows
        elif job.state is JobState.STARTED:
            self.started -= 1
        if state is JobState.WAITING:
            self.waiting += 1
            self.waiting_rows += job.rows
        elif state is JobState.STARTED:
            self.started += 1
        job.state = state


def _has_no_result(job: Job) -> bool:
    return job.state in (JobState.WAITING, JobState.STARTED)


def has_room(queued_rows: int, batch_rows: int, in_flight: int, max_rows: int) -> bool:
    """Return whether the scheduler's queue is so short that a job may join it.

    One full batch for each that runs at a time is enough that the runtime never waits for a job. Half of the queue's
    limit remains for requests of waiting clients.

    Args:
        queued_rows: rows in the queue.
        batch_rows: most rows of a batch.
        in_flight: batches that run at a time.
        max_rows: most rows of the queue.
    """
    return queued_rows < min(in_flight * batch_rows, max(1, max_rows // 2))


def exceeds_share(held: int, more: int, all_held: int, limit: int) -> bool:
    """Return whether a client would hold more than what is free.

    So the first client gets half, the next one a quarter, and there is always room for another one.

    Args:
        held: what the client holds.
        more: what it adds.
        all_held: what all clients hold, without ``more``.
        limit: the limit for all.
    """
    return held + more > limit - all_held


def is_job_id(text: str) -> bool:
    """Return whether a text has the form of a job's id."""
    return _ID.fullmatch(text) is not None


def tag_of(instance: bytes) -> str:
    """Return the part of a job's id that identifies its replica."""
    return blake2b(instance, digest_size=_TAG_BYTES).hexdigest()


def tag_in(job_id: str) -> str:
    """Return the tag of the replica in a job's id; empty without one."""
    return job_id.partition("-")[2]
