"""Progress of jobs, read from their pods in the background."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from shoal_operator.children.observation import Key
from shoal_operator.loop.records import Records
from shoal_operator.scaling.scraper import Scraper
from shoal_operator.scaling.service_cache import Replica
from shoal_schema.interfaces.progress import MAX_BYTES, PATH, JobProgress, share

_DECODER = msgspec.json.Decoder(JobProgress)
_MAX_REMAINING_S = 366 * 86400.0


@dataclass(slots=True)
class ReportedJob:
    """The progress that one job's pods reported."""

    reported: dict[str, JobProgress] = field(default_factory=dict)
    began: tuple[float, float] | None = None
    """The first share done that was read, and when (s)."""
    task: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Stop reading the pods."""
        if self.task is not None:
            self.task.cancel()


class ProgressReader:
    """Progress that running pods of jobs reported last.

    Args:
        scraper: reads the pods.
        records: states of all jobs.
        clock: monotonic seconds.
    """

    def __init__(self, scraper: Scraper, records: Records, clock: Callable[[], float]) -> None:
        self._scraper = scraper
        self._records = records
        self._clock = clock

    def latest(self, key: Key, replicas: Sequence[Replica]) -> dict[str, JobProgress]:
        """Return the last progress of these pods by uid, and start the next read."""
        job = self._records.get(key, ReportedJob)
        if replicas and (job.task is None or job.task.done()):
            job.task = asyncio.create_task(self._read(job, replicas))
        uids = {replica.uid for replica in replicas}
        return {uid: progress for uid, progress in job.reported.items() if uid in uids}

    def remaining_s(self, key: Key) -> float | None:
        """Return a job's estimated remaining time (s); None before any progress."""
        job = self._records.find(key, ReportedJob)
        if job is None or job.began is None or not job.reported:
            return None
        first_share, began_s = job.began
        last_share = share(list(job.reported.values()))
        if last_share <= first_share:
            return None
        elapsed_s = self._clock() - began_s
        return min(_MAX_REMAINING_S, (1 - last_share) * elapsed_s / (last_share - first_share))

    async def close(self) -> None:
        """Stop all reads and close the connections to pods."""
        self._records.remove_all(ReportedJob)
        await self._scraper.close()

    async def _read(self, job: ReportedJob, replicas: Sequence[Replica]) -> None:
        found = await self._scraper.documents(replicas)
        job.reported = {each.uid: read for each, (_, read) in zip(replicas, found, strict=True) if read is not None}
        if job.reported and job.began is None:
            job.began = (share(list(job.reported.values())), self._clock())


def make_progress_reader(records: Records, clock: Callable[[], float]) -> ProgressReader:
    """Return a reader of the pods' progress endpoint."""
    return ProgressReader(Scraper(path=PATH, decode=read_progress), records, clock)


def read_progress(body: bytes) -> JobProgress:
    """Decode a response of the progress endpoint.

    Raises:
        ValueError: the body is no valid progress.
    """
    # Pods are untrusted.
    if len(body) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    return _DECODER.decode(body)
