"""How far the pods of jobs are: asked beside the looks, so that one whose pods hang delays no other."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from shoal_operator.load.fleet import Replica
from shoal_operator.planning.observation import Key
from shoal_operator.scraper import Scraper
from shoal_schema.progress import MAX_BYTES, PATH, Progress, share

_DECODER = msgspec.json.Decoder(Progress)
_MAX_REMAINING_S = 366 * 86400.0


@dataclass(slots=True)
class _Job:
    reported: dict[str, Progress] = field(default_factory=dict)
    began: tuple[float, float] | None = None
    task: asyncio.Task[None] | None = None


class Progresses:
    """What running pods said when they were asked last.

    Args:
        scraper: asks them.
        clock: monotonic seconds.
    """

    def __init__(self, scraper: Scraper, clock: Callable[[], float]) -> None:
        self._scraper = scraper
        self._clock = clock
        self._jobs: dict[Key, _Job] = {}

    def latest(self, key: Key, replicas: Sequence[Replica]) -> dict[str, Progress]:
        """Return what these pods of a job said, by uid, and ask them anew unless they are being asked."""
        job = self._jobs.setdefault(key, _Job())
        if replicas and (job.task is None or job.task.done()):
            job.task = asyncio.create_task(self._ask(job, replicas))
        known = {replica.uid for replica in replicas}
        return {uid: said for uid, said in job.reported.items() if uid in known}

    def remaining_s(self, key: Key) -> float | None:
        """Return how long a job takes still, at the pace since it was asked first; None where that is not known."""
        job = self._jobs.get(key)
        if job is None or job.began is None or not job.reported:
            return None
        then, began_s = job.began
        now = share(list(job.reported.values()))
        if now <= then:
            return None
        return min(_MAX_REMAINING_S, (1 - now) * (self._clock() - began_s) / (now - then))

    def forget(self, key: Key) -> None:
        """Stop asking."""
        job = self._jobs.pop(key, None)
        if job is not None and job.task is not None:
            job.task.cancel()

    async def close(self) -> None:
        """Stop asking anybody."""
        for key in list(self._jobs):
            self.forget(key)
        await self._scraper.close()

    async def _ask(self, job: _Job, replicas: Sequence[Replica]) -> None:
        found = await self._scraper.answers(replicas)
        said = {each.uid: answer for each, (_, answer) in zip(replicas, found, strict=True) if answer is not None}
        job.reported = said
        if said and job.began is None:
            job.began = (share(list(said.values())), self._clock())


def make_progresses(clock: Callable[[], float]) -> Progresses:
    """Return what asks pods at their port for progress."""
    return Progresses(Scraper(path=PATH, decode=read_progress), clock)


def read_progress(body: bytes) -> Progress:
    """Return what a body tells.

    Raises:
        ValueError: it tells nothing that the batch program could.
    """
    if len(body) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    return _DECODER.decode(body)
