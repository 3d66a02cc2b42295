"""Responses to ``GET`` and ``DELETE`` of asynchronous results."""

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from shoal_proxy.asynchronous.execution import AsyncRequests
from shoal_proxy.asynchronous.ids import is_overdue, may_be_held
from shoal_proxy.asynchronous.jobs import JobState, is_job_id
from shoal_proxy.asynchronous.peers import PeerResults
from shoal_proxy.asynchronous.records import UnreadableRecord
from shoal_proxy.codecs.base import HttpResponse
from shoal_proxy.dispatch.runtime_connection import RuntimeResponse
from shoal_proxy.errors import ModelFailed, NotFound, ResultMissing

if TYPE_CHECKING:
    from shoal_proxy.asynchronous.store import JobStore

RETRY_AFTER_S: Final = 1
"""Interval of requests for a result that is not ready, in ``Retry-After``."""
_OF_CONNECTION: Final = frozenset({
    b"connection", b"content-length", b"date", b"keep-alive", b"server", b"transfer-encoding", b"vary",
})  # fmt: skip
"""Headers of a peer's response that concern its connection."""
_IN_MEMORY: Final = ". Results are kept in the memory of the replica that accepted the request, which may have stopped"


class Results:
    """The results of asynchronous requests, at this replica and its peers.

    Args:
        asynchronous: the requests that this replica accepted.
        peers: the results at other replicas; None without peers.
    """

    def __init__(self, asynchronous: AsyncRequests, peers: PeerResults | None) -> None:
        self._asynchronous = asynchronous
        self._peers = peers

    async def respond(
        self, request: Request, owner: str, credentials: Iterable[tuple[bytes, bytes]], *, only_here: bool
    ) -> Response:
        """Respond to a request for a result.

        Args:
            request: the request, with method ``GET``, ``HEAD`` or ``DELETE``.
            owner: name of the authenticated client; empty without access control.
            credentials: headers that authenticate the client.
            only_here: whether a peer sent the request.

        Raises:
            NotFound: the client has no such request.
            ResultMissing: an activator has accepted it, and its time has passed.
        """
        # The server drops the body of a response to HEAD; a peer's connection would wait for it.
        job_id, method = request.path_params["id"], b"DELETE" if request.method == "DELETE" else b"GET"
        job = self._asynchronous.find(job_id, owner)
        if job is not None:
            if method == b"DELETE":
                await self._asynchronous.delete(job)
                return Response(status_code=204)
            if job.response is not None and self._asynchronous.store is None:
                return stored_response(job.response)
            # With a store, the result is the first one that is written: another replica may have ended the request.
            ended = job.state is JobState.ENDED
            return _waiting(job.id, JobState.STARTED if ended else job.state)
        if not is_job_id(job_id) or self._asynchronous.holds(job_id):
            raise NotFound(f"no asynchronous request {job_id:.80}")
        if (store := self._asynchronous.store) is not None:
            try:
                stored = await _of_store(store, job_id, owner, method, self._asynchronous.result_s)
            except UnreadableRecord:
                raise ModelFailed(f"the store's record of {job_id} cannot be read") from None
            if stored is not None:
                return stored
        elif self._peers is not None and not only_here:
            found = await self._peers.find(method, job_id, tuple(credentials))
            if found is not None:
                return _relayed(found)
        wall_s = time.time()  # noqa: TID251 (the id has a date)
        if not only_here and method != b"DELETE" and may_be_held(job_id, wall_s):
            # An activator has accepted the request, and this replica may get it at any moment.
            return _waiting(job_id, JobState.WAITING)
        if not only_here and method != b"DELETE" and is_overdue(job_id, wall_s, self._asynchronous.result_s):
            raise ResultMissing(job_id)
        raise _gone(job_id, _IN_MEMORY if store is None else "")


async def _of_store(store: "JobStore", job_id: str, owner: str, method: bytes, result_s: float) -> Response | None:
    """Respond with a result in the store, or delete it; return None if the store does not have the request.

    Raises:
        NotFound: the client has no such request.
        StoreUnavailable: the store failed.
    """
    stored = await store.result(job_id)
    holder = None if stored is not None else await store.owner_of(job_id)
    if stored is None and holder is None:
        # The result may have replaced the request between the two.
        stored = await store.result(job_id)
        if stored is None:
            return None
    if stored is None:
        found = holder == owner
    else:
        # Old results are deleted periodically, so an expired one may still exist.
        found = stored.owner == owner and not stored.is_deleted and stored.age_s < result_s
    if not found:
        raise _gone(job_id)
    if method == b"DELETE":
        await store.cancel(job_id, owner)
        return Response(status_code=204)
    if stored is None:
        return _waiting(job_id, JobState.WAITING)
    return stored_response(stored.response)


def _gone(job_id: str, where: str = "") -> NotFound:
    return NotFound(f"no asynchronous request {job_id:.80}: it is unknown, deleted, or its result has expired{where}")


def _waiting(job_id: str, state: JobState) -> Response:
    status = "running" if state is JobState.STARTED else "waiting"
    return JSONResponse({"id": job_id, "status": status}, 202, {"retry-after": str(RETRY_AFTER_S)})


def stored_response(stored: HttpResponse) -> Response:
    """Return a stored response, unchanged."""
    response = Response(b"".join(stored.body), stored.status)
    response.raw_headers += [*stored.headers(), (b"content-type", stored.content_type)]
    return response


def _relayed(found: RuntimeResponse) -> Response:
    headers: Mapping[bytes, bytes] = found.headers
    response = Response(bytes(found.body), found.status)
    response.raw_headers += [(name, value) for name, value in headers.items() if name not in _OF_CONNECTION]
    return response
