"""Asynchronous requests that the activator has accepted: those that wait for a pod, and results without one."""

from collections import Counter

from shoal_proxy.activator.queue import HeldRequest
from shoal_proxy.codecs.base import HttpResponse


class AcceptedJob:
    """An accepted request, until a pod has accepted it too.

    Args:
        id: its id, which the client got.
        service: name of its service.
        held: the request that waits for a pod.
    """

    __slots__ = ("held", "id", "response", "service")

    def __init__(self, id: str, service: str, held: HeldRequest) -> None:
        self.id = id
        self.service = service
        self.held = held
        self.response: HttpResponse | None = None
        """The result, if no pod accepted the request; None while it waits."""

    @property
    def at_pod(self) -> bool:
        """Whether it is being forwarded, and its pod has not responded."""
        return bool(self.held.pod)


class AcceptedJobs:
    """All accepted requests of an activator.

    Args:
        max_jobs: most jobs, including results.
        service_max_jobs: most jobs of one service, including results.
    """

    def __init__(self, max_jobs: int, service_max_jobs: int) -> None:
        self._max_jobs = max_jobs
        self._service_max_jobs = service_max_jobs
        self._jobs: dict[str, AcceptedJob] = {}
        self._of_service: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._jobs)

    def is_full(self, service: str) -> bool:
        """Return whether no further job of a service fits."""
        return len(self._jobs) >= self._max_jobs or self._of_service[service] >= self._service_max_jobs

    def add(self, job: AcceptedJob) -> None:
        """Add a job that waits for a pod."""
        self._jobs[job.id] = job
        self._of_service[job.service] += 1

    def find(self, service: str, job_id: str) -> AcceptedJob | None:
        """Return a job of a service; None if it is unknown."""
        job = self._jobs.get(job_id)
        return job if job is not None and job.service == service else None

    def drop(self, job: AcceptedJob) -> None:
        """Remove a job that a pod has accepted, or whose time is over; a second call has no effect."""
        if self._jobs.pop(job.id, None) is not None:
            self._of_service[job.service] -= 1
            if not self._of_service[job.service]:
                del self._of_service[job.service]
