"""Acceptance of asynchronous requests, and the responses with the location of their results."""

from collections.abc import Callable
from typing import Final

from shoal_proxy.asynchronous.acceptance import accepted_response
from shoal_proxy.asynchronous.execution import AsyncRequests
from shoal_proxy.asynchronous.ids import is_activator_id
from shoal_proxy.asynchronous.jobs import Job, JobRequest
from shoal_proxy.batching.pending import PendingRequest
from shoal_proxy.codecs.base import HttpResponse
from shoal_proxy.errors import InvalidRequest, ProxyError
from shoal_proxy.http.header_cache import InferRoute, RequestHead
from shoal_proxy.http.parameters import ParameterReader
from shoal_schema.interfaces.headers import ASYNC_ID, CALLBACK

_CALLBACK: Final = CALLBACK.encode()
_ASYNC_ID: Final = ASYNC_ID.encode()


class JobAcceptance:
    """Accepts decoded requests as jobs.

    Args:
        requests: the asynchronous requests of this replica.
        parameters: reads the headers to keep with a request.
        result_path: path of a result, with ``{id}`` for the job's id.
        reject: returns the response to a rejected request.
        counted: counts a response in the metrics, and returns it.
    """

    def __init__(
        self,
        requests: AsyncRequests,
        parameters: ParameterReader,
        result_path: str,
        reject: Callable[[InferRoute, ProxyError], HttpResponse],
        counted: Callable[[InferRoute, HttpResponse], HttpResponse],
    ) -> None:
        self._requests = requests
        self._parameters = parameters
        self._result_path = result_path
        self._reject = reject
        self._counted = counted

    def accept(
        self,
        head: RequestHead,
        body: bytes | memoryview,
        pending: PendingRequest,
        respond: Callable[[HttpResponse], None],
    ) -> None:
        """Accept an asynchronous request, and respond with the location of its result.

        Raises:
            ProxyError: the request is rejected, and has no response yet.
        """
        headers, route = head.headers, head.route
        given = headers.get(_ASYNC_ID, b"").decode("latin-1")
        if given and not is_activator_id(given):
            raise InvalidRequest(f"{ASYNC_ID} must be 32 hexadecimal digits")
        callback = headers.get(_CALLBACK, b"").decode("latin-1")
        self._requests.accept(
            JobRequest(route.label, self._parameters.job_headers(headers), body, callback),
            pending,
            given,
            lambda job, error: respond(self._accepted(route, job) if error is None else self._reject(route, error)),
        )

    def kept_error(self, head: RequestHead, response: HttpResponse) -> HttpResponse:
        """Keep an error as the result of a request that the activator has accepted.

        The activator forwards a request with 503 to another pod.
        """
        job_id = head.headers.get(_ASYNC_ID, b"").decode("latin-1")
        if response.status in (409, 503) or not is_activator_id(job_id):
            return response
        callback = head.headers.get(_CALLBACK, b"").decode("latin-1")
        request = JobRequest(head.route.label, {}, b"", callback)
        owner = "" if head.client is None else head.client.name
        job = self._requests.keep_error(job_id, request, owner, response)
        return response if job is None else self._accepted(head.route, job)

    def _accepted(self, route: InferRoute, job: Job) -> HttpResponse:
        return self._counted(route, accepted_response(self._result_path.replace("{id}", job.id), job.id))
