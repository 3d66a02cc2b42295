"""Accept asynchronous requests for services without a pod, and hand each over to the first pod that accepts it.

A job is known here from before its 202 until a pod has sent its own 202. So a request for its result finds it here or
at a pod, whichever it reaches.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Sequence
from typing import Any, Final

from shoal_proxy.activator.asynchronous import (
    accepts_later_result,
    hand_over_headers,
    result_id,
    stored_response,
)
from shoal_proxy.activator.forwarding import ForwardedRequest
from shoal_proxy.activator.handler import (
    Receive,
    RequestHandler,
    RequestReleaser,
    Send,
    Terms,
    error_response,
    reject,
    replay,
)
from shoal_proxy.activator.headers import Headers, request_headers, requested_timeout_s
from shoal_proxy.activator.jobs import AcceptedJob, AcceptedJobs
from shoal_proxy.asynchronous.acceptance import accepted_response
from shoal_proxy.asynchronous.ids import RANDOM_BYTES, activator_id, is_overdue, may_be_held
from shoal_proxy.codecs.base import HttpResponse
from shoal_proxy.errors import ModelFailed, NotFound, Overloaded, ProxyError, ResultMissing
from shoal_schema.fields.addresses import TcpAddress
from shoal_schema.interfaces.activator import ActivatorAsynchronous
from shoal_schema.interfaces.headers import FORWARDED
from shoal_schema.interfaces.metrics import RejectionReason
from shoal_schema.interfaces.protocols import RESULT

logger = logging.getLogger(__name__)

MAX_RESULT_BYTES: Final = 65_536
"""Largest response of a pod that becomes a result: pods send only errors instead of 202."""
_PEER_S: Final = 2.0
"""Time for the response of another activator."""
_CANCEL_S: Final = 5.0
"""Time for the response of a pod that is about to accept a cancelled request."""
_ACCEPTED: Final = (202, 409)
"""Statuses of a pod that has the request: 409 if it had it already."""


class ReceivedResponse:
    """A pod's response, which the activator keeps instead of passing it on."""

    def __init__(self) -> None:
        self._status = 0
        self._headers: Headers = ()
        self._body = bytearray()

    async def take(self, message: dict[str, Any]) -> None:
        """Receive a part of the response (ASGI).

        Raises:
            ModelFailed: the response is too large to be kept.
        """
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], message["headers"]
        self._body += message.get("body", b"")
        if len(self._body) > MAX_RESULT_BYTES:
            raise ModelFailed(f"the pod's response is over the limit of {MAX_RESULT_BYTES} bytes")

    @property
    def response(self) -> HttpResponse:
        """The complete response."""
        return stored_response(self._status, self._headers, bytes(self._body))


class HandOvers:
    """The asynchronous requests of all services, and the tasks that wait for pods.

    Args:
        jobs: the accepted requests.
    """

    def __init__(self, jobs: AcceptedJobs) -> None:
        self.jobs = jobs
        self.peers: Sequence[str] = ()
        """IP addresses of all activators."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def track(self, job: AcceptedJob, task: "asyncio.Task[None]") -> None:
        """Keep the task that waits for a job's pod."""
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.id, None))

    async def cancel(self, job: AcceptedJob) -> bool:
        """Cancel a job, or delete its result; return False if a pod has accepted it."""
        if (task := self._tasks.get(job.id)) is not None:
            if job.at_pod:
                # The pod's response decides.
                await asyncio.wait({task}, timeout=_CANCEL_S)
            if not task.done():
                task.cancel()
                return True
        if job.response is None:
            return False
        self.jobs.drop(job)
        return True

    async def settle(self) -> None:
        """Wait until no job waits for a pod."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))


class JobHandler(RequestHandler):
    """The handler of one request, which accepts asynchronous ones.

    Args:
        name: the service.
        releaser: shared by the handlers of all requests.
        hand_overs: shared by the handlers of all requests.
    """

    def __init__(self, name: str, releaser: RequestReleaser, hand_overs: HandOvers) -> None:
        super().__init__(name, releaser)
        self._hand_overs = hand_overs
        self._jobs = hand_overs.jobs

    async def handle(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Respond to an asynchronous request or one for its result; hold any other one."""
        service = self.queue().service
        if service.asynchronous is not None:
            job_id = result_id(scope["path"])
            if job_id and await self._responds_for(scope, job_id, send):
                return
            later = accepts_later_result(scope["method"], scope["path"], scope["query_string"], scope["headers"])
            # Ready pods accept asynchronous requests themselves.
            if later and not service.addresses:
                await self._accept(scope, receive, send, service.asynchronous)
                return
        await super().handle(scope, receive, send)

    async def _accept(self, scope: dict[str, Any], receive: Receive, send: Send, limits: ActivatorAsynchronous) -> None:
        """Accept an asynchronous request, which waits for a pod without its client."""
        held, turns = self.enter(scope)
        try:
            body = await self.body(scope, receive, held)
            if self._jobs.is_full(self.name):
                raise Overloaded(
                    "the activator's limit of asynchronous requests is reached",
                    reason=RejectionReason.QUEUE_ROWS,
                    retry_after_s=self.queue().retry_after_s(time.monotonic()),
                )
        except BaseException:
            self.leave(held)
            raise
        timeout_s = min(requested_timeout_s(scope["headers"]) or limits.timeout_s, limits.timeout_s)
        wall_s = time.time()  # noqa: TID251 (replicas read the deadline in the id)
        job = AcceptedJob(activator_id(wall_s + timeout_s, os.urandom(RANDOM_BYTES)), self.name, held)
        headers = hand_over_headers(scope["headers"], job.id, timeout_s)
        terms = Terms(headers, timeout_s, self.queue().service.timeout_s)
        # Known before the response, so that the client's first request for the result finds it.
        self._jobs.add(job)
        waiting = self._hand_over(job, scope, body, turns, terms, limits.result_s)
        self._hand_overs.track(job, asyncio.create_task(waiting))
        await self._respond_accepted(send, job.id)

    async def _hand_over(
        self,
        job: AcceptedJob,
        scope: dict[str, Any],
        body: bytes,
        turns: "asyncio.Queue[str]",
        terms: Terms,
        result_s: float,
    ) -> None:
        """Wait for a pod that accepts a job; keep any other outcome as its result."""
        received = ReceivedResponse()
        try:
            self.queue().enqueue(job.held)
            self.releaser.release(self.name)
            await self.forward(scope, body, job.held, turns, terms, received.take)
            response = received.response
        except ProxyError as error:
            self.releaser.metrics.rejected(error.reason)
            response = error_response(scope["path"], error)
        except asyncio.CancelledError:
            self._jobs.drop(job)
            raise
        except Exception:  # an unexpected error, too, becomes the result
            logger.exception("event=request_failed service=%s", self.name)
            response = error_response(scope["path"], ModelFailed("the activator failed with an internal error"))
        finally:
            self.leave(job.held)
        if response.status in _ACCEPTED:
            # From now on requests for the result are forwarded to pods.
            self._jobs.drop(job)
        else:
            job.response = response
            asyncio.get_running_loop().call_later(result_s, self._jobs.drop, job)

    async def _responds_for(self, scope: dict[str, Any], job_id: str, send: Send) -> bool:
        """Respond to a request for a result; return False if pods are to respond."""
        service, deletes = self.queue().service, scope["method"] == "DELETE"
        job = self._jobs.find(self.name, job_id)
        if job is not None and deletes and await self._hand_overs.cancel(job):
            await replay(send, HttpResponse(204, ()))
        elif job is not None and not deletes:
            await (self._respond_accepted(send, job_id) if job.response is None else replay(send, job.response))
        elif any(name == FORWARDED.encode() for name, _ in scope["headers"]):
            await reject(send, scope["path"], _not_found(job_id), None)
        elif (response := await self._response_of_peer(scope)) is not None:
            await replay(send, response)
        elif service.addresses or (service.asynchronous is not None and service.asynchronous.store):
            return False
        else:
            await self._respond_unknown(scope, job_id, send)
        return True

    async def _response_of_peer(self, scope: dict[str, Any]) -> HttpResponse | None:
        """Return the response of the activator that holds a job; None if there is none."""
        headers = [*request_headers(scope["headers"], 0, 0.0), (FORWARDED.encode(), b"1")]
        request = ForwardedRequest(scope["method"], scope["raw_path"], headers, b"")
        port = self.queue().service.port

        async def ask(peer: str) -> HttpResponse | None:
            received, address = ReceivedResponse(), str(TcpAddress(peer, port))
            with contextlib.suppress(ProxyError):
                # An error may be the result, and state that the request did not run.
                if await self.releaser.forwarder.forward(address, request, _PEER_S, received.take, final=True):
                    return received.response
            return None

        found = await asyncio.gather(*map(ask, self._hand_overs.peers))
        return next((each for each in found if each is not None and each.status != NotFound.status), None)

    async def _respond_accepted(self, send: Send, job_id: str) -> None:
        response = accepted_response(RESULT.format(model=self.name.partition("/")[2], id=job_id), job_id)
        response.lines += b"retry-after: %d\r\n" % self.queue().retry_after_s(time.monotonic())
        await replay(send, response)

    async def _respond_unknown(self, scope: dict[str, Any], job_id: str, send: Send) -> None:
        """Respond to a request for a result that neither an activator nor a pod has."""
        limits, wall_s = self.queue().service.asynchronous, time.time()  # noqa: TID251 (the id has a date)
        if scope["method"] == "DELETE" or limits is None:
            await reject(send, scope["path"], _not_found(job_id), None)
        elif may_be_held(job_id, wall_s):
            # The activator that holds it may be unreachable.
            await self._respond_accepted(send, job_id)
        else:
            overdue = is_overdue(job_id, wall_s, limits.result_s)
            await reject(send, scope["path"], ResultMissing(job_id) if overdue else _not_found(job_id), None)


def _not_found(job_id: str) -> ProxyError:
    return NotFound(f"no asynchronous request has the id {job_id}, or its result has expired")
