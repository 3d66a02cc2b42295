"""Requests that another replica serves for a client of this one.

A request is sent as V2 with binary tensors and its remaining time, regardless of its original protocol. The result is
decoded like a result of this replica's runtime.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from shoal_proxy.balance.peers import ForwardingOutcome
from shoal_proxy.batching.batch import Rows, check_rows, make_batch
from shoal_proxy.batching.pending import Outcome, PendingRequest, RequestResult, RequestSlice
from shoal_proxy.codecs.upstream import decode_failure, decode_result, decode_rows_failed, encode_batch
from shoal_proxy.dispatch.replicas import REPORTS_LOAD, RemoteReplicas, ReplicaLink
from shoal_proxy.dispatch.runtime_connection import ANY_BYTES, RuntimeResponse
from shoal_proxy.errors import ModelFailed, NotExecuted, ProxyError
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.settings import Settings
from shoal_schema.interfaces.headers import EXECUTED, HEADER_LENGTH, PRIORITY, TIMEOUT_MS

logger = logging.getLogger(__name__)

MAX_JSON_BYTES: Final = 1 << 22
"""The longest JSON of a response: replicas send tensors in binary form, and parsing blocks the event loop."""
MIN_LEFT_S: Final = 0.001
"""A request with less time left is not forwarded."""
_EXECUTED, _HEADER_LENGTH = EXECUTED.encode(), HEADER_LENGTH.encode()
_TIMEOUT_MS, _PRIORITY = TIMEOUT_MS.encode(), PRIORITY.encode()
NO_HEADERS: Final[Mapping[bytes, bytes]] = {}
_NOT_TAKEN: Final = frozenset({400, 401, 403, 404, 408, 413, 415, 429, 431, 501, 503, 504})
"""Statuses of a replica that did not run the request: it is busy, or of another revision."""


class RemoteOutcome(NamedTuple):
    """How a forwarded request ended."""

    end: ForwardingOutcome
    outcome: Outcome | None = None
    """None: the outcome that it would have had here."""
    status: int = 0
    """HTTP status of a rejection; 0 if there was none."""


Ended = Callable[[RemoteOutcome], None]


class RemoteCall(NamedTuple):
    """A request to send to another replica."""

    link: ReplicaLink
    pending: PendingRequest
    signature: ModelSignature
    """Signature of the replica's model."""
    deadline_s: float
    """Time by which the response must have arrived."""
    ended: Ended
    """Receives the outcome, once."""
    extra: Mapping[bytes, bytes] = NO_HEADERS
    """Further headers."""
    merged: Mapping[str, Rows] | None = None
    """Inputs of a merged batch, instead of the request's own."""
    most_bytes: int = ANY_BYTES
    """A larger body of a response is rejected as soon as its size is known."""


def is_forwardable(pending: PendingRequest, signature: ModelSignature) -> bool:
    """Return whether another replica could serve the request.

    V2 has no form for rows of different lengths.
    """
    if pending.must_not_forward:
        return False
    for name, own in pending.lengths.items():
        axis = signature.inputs[name].pad_axis
        if axis is not None and min(own, default=0) != pending.inputs[name].shape[axis]:
            return False
    return True


class RemoteRequests:
    """The requests of this replica that are at other replicas now.

    All methods must be called in the event loop's thread.
    """

    def __init__(self, settings: Settings, replicas: RemoteReplicas) -> None:
        self._fair_share_header = settings.fair_share_header
        self._replicas = replicas
        self._tasks: dict[PendingRequest, asyncio.Task[RemoteOutcome]] = {}
        self._sent = 0
        """Number of forwarded requests; the source of their ids."""

    @property
    def has_forwarded(self) -> bool:
        """Return whether other replicas still have requests from this one."""
        return bool(self._tasks)

    def send(self, call: RemoteCall) -> None:
        """Send a request, whose inputs are not needed any more when this returns."""
        self._sent += 1
        mark = b'"id":"%d"' % self._sent
        alone = call.pending.copy_without_client()
        alone.trace = None  # sent as headers, as this is a request and not a batch
        batch = make_batch([RequestSlice(alone, 0, alone.rows, alone.inputs)])
        inputs = alone.inputs if call.merged is None else call.merged
        header, tensors = encode_batch(batch, inputs, call.signature, binary=True)
        call.link.peer.record_forwarded(alone.rows)
        # The mark is the first member of the JSON object, {"id":"N",...}.
        body = b"{%b,%b" % (mark, header[1:]), tensors
        task = asyncio.get_running_loop().create_task(self._exchange(call, body, mark))
        self._tasks[call.pending] = task
        task.add_done_callback(partial(self._ended, call, time.monotonic()))

    def cancel(self, pending: PendingRequest) -> bool:
        """Cancel the forwarded request of a disconnected client.

        Returns: False if no other replica has the request.
        """
        task = self._tasks.get(pending)
        if task is None:
            return False
        pending.abandon()
        task.cancel()
        return True

    def fail_all(self) -> None:
        """Fail all forwarded requests, because the drain has timed out."""
        for pending, task in list(self._tasks.items()):
            pending.may_have_run = True
            task.cancel()

    async def _exchange(
        self, call: RemoteCall, body: tuple[bytes, list[bytes | memoryview]], mark: bytes
    ) -> RemoteOutcome:
        link, pending, deadline_s = call.link, call.pending, call.deadline_s
        try:
            # The replica must finish early enough for the response to travel back.
            left_s = deadline_s - time.monotonic() - link.peer.travel_s
            headers = client_headers(pending, max(MIN_LEFT_S, left_s), self._fair_share_header)
            response = await link.upstream.infer(
                *body, [*{**headers, **call.extra}.items()], deadline_s, call.most_bytes
            )
            self._replicas.note_load(link, response)
            outcome = _decoded(response, pending, mark, call.signature)
            if outcome.end is ForwardingOutcome.BROKEN:
                link.upstream.drop_idle()  # the next response on them may be that of this request
            return outcome
        except TimeoutError:
            pending.may_have_run = True
            return RemoteOutcome(ForwardingOutcome.LATE)
        except ProxyError as error:
            pending.may_have_run = not isinstance(error, NotExecuted)
            return RemoteOutcome(ForwardingOutcome.LOST)
        except Exception:  # the client must get an outcome in any case
            logger.exception("event=hand_over_failed")
            pending.may_have_run = True
            return RemoteOutcome(ForwardingOutcome.LOST)

    def _ended(self, call: RemoteCall, sent_s: float, task: asyncio.Task[RemoteOutcome]) -> None:
        del self._tasks[call.pending]
        call.pending.timing = b"peer;dur=%.2f" % (1000 * (time.monotonic() - sent_s))
        call.ended(RemoteOutcome(ForwardingOutcome.CANCELLED) if task.cancelled() else task.result())


def client_headers(pending: PendingRequest, left_s: float, fair_share_header: bytes) -> dict[bytes, bytes]:
    """Return the headers with which another replica serves a client's request.

    ``left_s`` is the time (s) in which it must respond.
    """
    # Each name once: a forwarded or fair-share header may also be the client's credential.
    headers = dict([*REPORTS_LOAD, *pending.key.headers, (_TIMEOUT_MS, b"%.3f" % (1000 * left_s))])
    # The replica queues the request with the client's priority and share.
    if pending.lane.level:
        headers[_PRIORITY] = b"%d" % pending.lane.level
    if fair_share_header and pending.lane.share:
        headers[fair_share_header] = pending.lane.share
    if pending.client is not None:  # replicas authenticate the client themselves
        headers.update(pending.client.credentials)
    trace: Mapping[str, str] = pending.trace or {}
    headers.update({name.encode("latin-1"): value.encode("latin-1") for name, value in trace.items()})
    return headers


def _decoded(
    response: RuntimeResponse, pending: PendingRequest, mark: bytes, signature: ModelSignature
) -> RemoteOutcome:
    """Decode a replica's response to the outcome of a forwarded request.

    ``mark`` is a value that only the response to this request contains.
    """
    executed = response.headers.get(_EXECUTED)
    status, length = response.status, response.headers.get(_HEADER_LENGTH)
    json_bytes = int(length) if length is not None and length.isdigit() else len(response.body)
    if json_bytes > MAX_JSON_BYTES:
        return _broken(executed, pending)
    if status != 200:
        # Rejections and timeouts leave the decision to this replica; errors of the model go to the client.
        if status in _NOT_TAKEN and executed == b"no":
            return RemoteOutcome(ForwardingOutcome.REFUSED, status=status)
        if status in (503, 504):
            pending.may_have_run = True
            return RemoteOutcome(ForwardingOutcome.LATE, status=status)
        if rows_failed := decode_rows_failed(response.body):
            return RemoteOutcome(ForwardingOutcome.ERROR, rows_failed)
        if executed is None or not 400 <= status < 600 or status in _NOT_TAKEN:
            return _broken(executed, pending)
        error = decode_failure(status, response.body, executed)
        return RemoteOutcome(ForwardingOutcome.FAILED if status >= 500 else ForwardingOutcome.ERROR, error)
    try:
        if mark not in bytes(response.body[:json_bytes]):
            raise ModelFailed("the response belongs to another request")
        result = decode_result(response.body, length, signature)
        check_rows(make_batch([RequestSlice(pending, 0, pending.rows, {})]), result, signature)
    except (ProxyError, ValueError):
        return _broken(executed, pending)
    return RemoteOutcome(ForwardingOutcome.ANSWERED, RequestResult(result.outputs, pending.lengths))


def _broken(executed: bytes | None, pending: PendingRequest) -> RemoteOutcome:
    """Return the outcome of a request whose response from a replica is invalid.

    The client receives the error that this replica would have returned.
    """
    pending.may_have_run = executed != b"no"
    return RemoteOutcome(ForwardingOutcome.BROKEN)
