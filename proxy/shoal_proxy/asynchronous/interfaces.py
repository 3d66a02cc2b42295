"""What the execution of asynchronous requests uses of other parts of the proxy."""

from collections.abc import Callable
from typing import Protocol

from shoal_proxy.asynchronous.jobs import Job, JobRequest
from shoal_proxy.batching.pending import PendingRequest
from shoal_proxy.codecs.base import HttpResponse
from shoal_proxy.errors import ProxyError

Respond = Callable[[HttpResponse], None]


class JobRunner(Protocol):
    """The part of `Inference` that runs jobs."""

    def run_job(self, job: Job, respond: Respond) -> PendingRequest | None:
        """Queue the request of a job; call ``respond`` exactly once."""

    def cancel(self, pending: PendingRequest) -> None:
        """Cancel the request of a job."""

    def job_error(self, request: JobRequest, error: ProxyError) -> HttpResponse:
        """Return an error in the format of a job's protocol, which also states whether the model may have run."""


class ResultDelivery(Protocol):
    """Sends results to callback URLs."""

    def check(self, url: str) -> None:
        """Raise a `ProxyError` if the URL is not allowed."""

    def deliver(self, job_id: str, url: str, response: HttpResponse) -> None:
        """Send a result, later and as often as necessary."""
