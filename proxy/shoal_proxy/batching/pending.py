"""Requests without a result: their batch keys, deliveries and deadlines."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from shoal_proxy.access.control import AuthenticatedClient
from shoal_proxy.batching.returns import Burst
from shoal_proxy.errors import ModelFailed, ProxyError, RowsFailed
from shoal_proxy.tracing.span import Span
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.row_errors import RowError


class BatchKey(NamedTuple):
    """The properties in which requests must agree to share a batch."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Name and trailing shape of each input, padded axes replaced by their bucket (or -1 without buckets)."""
    parameters: bytes = b""
    tensors: bytes = b""
    """Parameters of the request and its tensors for the model, as JSON text."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """The forwarded headers, which the runtime receives once per batch."""
    solo: int = 0
    """A serial number for requests that must run alone, else 0."""

    def alone(self) -> "BatchKey":
        """Return a unique copy of the key, for a request that shares no batch."""
        return self._replace(solo=next(_serial))


_serial = count(1)
PLAIN_KEY = BatchKey()
"""The key of every ordinary request to a model with fixed shapes."""


class LaneKey(NamedTuple):
    """The client class and priority level of a request.

    Level 0 is the highest priority.
    """

    share: bytes = b""
    level: int = 0


PLAIN_LANE = LaneKey()
"""The lane of every ordinary request."""
NEVER_S = float("inf")


class RequestResult:
    """The outputs of a request's rows, in order, and the lengths of padded rows."""

    __slots__ = ("lengths", "outputs")

    def __init__(self, outputs: Mapping[str, Array], lengths: Mapping[str, Sequence[int]]) -> None:
        self.outputs = outputs
        self.lengths = lengths


Outcome = RequestResult | ProxyError
Delivery = tuple["PendingRequest", Outcome]
"""A request, and the outcome that its client gets."""


class PendingRequest:
    """One request, from admission until its only outcome is delivered.

    ``inputs`` are arrays of ``rows`` rows, batch dimension first; ``lengths`` holds each row's own length per padded
    input.
    """

    __slots__ = (
        "arrived_s", "burst", "client", "deadline_s", "deliver", "dequeued_rows", "errors", "finished", "forwarded",
        "inputs", "key", "lane", "lengths", "may_have_run", "on_trial", "parts", "queued_s", "resolved", "return_s",
        "returned_by_peer", "revision", "rows", "sender", "shadow", "size_bytes", "soft_deadline_s", "span", "sticky",
        "suspect", "timing", "trace", "turn_s",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 (a dataclass would do, but mypyc does not compile what that generates)
        self,
        *,
        inputs: Mapping[str, Array],
        rows: int,
        size_bytes: int,
        arrived_s: float,
        deadline_s: float,
        deliver: Callable[[Outcome], None],
        key: BatchKey = PLAIN_KEY,
        lane: LaneKey = PLAIN_LANE,
        soft_deadline_s: float = NEVER_S,
        lengths: Mapping[str, Sequence[int]] | None = None,
        trace: Mapping[str, str] | None = None,
    ) -> None:
        self.inputs = inputs
        self.rows = rows
        self.size_bytes = size_bytes
        self.arrived_s = arrived_s
        self.turn_s = arrived_s
        """When it took its place in the queue; later for each further portion of a large request."""
        self.deadline_s = deadline_s
        self.deliver = deliver
        self.key = key
        self.lane = lane
        self.soft_deadline_s = soft_deadline_s
        """When the response is wanted, by the client's timeout or the latency objective. At ``deadline_s`` the client
        gives up."""
        self.lengths: Mapping[str, Sequence[int]] = {} if lengths is None else lengths
        self.trace = trace
        self.queued_s = 0.0
        """Time in the queue (s)."""
        self.timing = b""
        """Cost of its last batch, in the form of Server-Timing."""
        self.dequeued_rows = 0
        """Rows that have left the queue in a batch."""
        self.may_have_run = False
        """Whether the runtime may have run rows of the request."""
        self.finished = 0
        self.forwarded = False
        """Whether a peer forwarded it: it is not forwarded again."""
        self.return_s = NEVER_S
        """When it is rejected unless it has begun, so that the replica that forwarded it can serve it."""
        self.returned_by_peer = False
        """Whether a peer sent it back: it is not forwarded again."""
        self.suspect = False
        """Whether its payload was in a batch that was lost with a runtime, or its client has ended one: it runs alone,
        and is not forwarded."""
        self.on_trial = False
        """Whether its client was in such a batch, and has not ended a runtime: it runs alone here, or is forwarded."""
        self.revision = b""
        """Revision of the pods that serve it, while the service has a candidate."""
        self.shadow = False
        """Whether it is a batch of the stable revision that runs here for comparison: no client waits for it."""
        self.sticky = b""
        """The value that assigns its client to a revision."""
        self.resolved = False
        self.client: AuthenticatedClient | None = None
        """The client's account, where access is limited."""
        self.sender = ""
        """Name of the client of the request that this one copies; empty for a client's own request."""
        self.burst: Burst | None = None
        """The requests answered with it; its connection reports there when its next request arrives."""
        self.span: Span | None = None
        """The request's span; None if it is not traced."""
        self.parts: list[tuple[int, Mapping[str, Array]]] = []
        self.errors: list[RowError] = []
        """Errors of single rows."""

    def copy_without_client(self) -> "PendingRequest":
        """Return an unstarted copy of the request that belongs to no client."""
        copy = PendingRequest(
            inputs=self.inputs,
            rows=self.rows,
            size_bytes=self.size_bytes,
            arrived_s=self.arrived_s,
            deadline_s=self.deadline_s,
            deliver=discard,
            key=self.key,
            lane=self.lane,
            soft_deadline_s=self.soft_deadline_s,
            lengths=self.lengths,
            trace=self.trace,
        )
        copy.sender = self.client_name
        return copy

    @property
    def client_name(self) -> str:
        """Return the name of the authenticated client, or else the fair-share header; empty for neither."""
        if self.shadow:  # rows of several clients, with the credentials of one
            return ""
        if self.client is not None:
            return self.client.name
        return self.sender or self.lane.share.decode("latin-1")

    @property
    def must_not_forward(self) -> bool:
        """Return whether the request must not be forwarded: it has begun, was forwarded before, or is a suspect."""
        return self.dequeued_rows > 0 or self.forwarded or self.returned_by_peer or self.suspect

    @property
    def expires_s(self) -> float:
        """Return when the scheduler decides about it, if it has no outcome until then."""
        return min(self.deadline_s, self.return_s)

    @property
    def remaining_rows(self) -> int:
        """Return the number of rows that still wait."""
        return self.rows - self.dequeued_rows

    def resolve(self, outcome: Outcome) -> Delivery:
        """Mark the request as resolved, drop its data, and pair it with ``outcome``."""
        self._drop_data()
        return self, outcome

    def deliver_outcome(self, outcome: Outcome) -> None:
        """Deliver ``outcome`` unless the client has disconnected, and drop the callback."""
        deliver = self.deliver
        self.deliver = discard
        deliver(outcome)

    def abandon(self) -> None:
        """Resolve the request without an outcome: its client has disconnected."""
        self._drop_data()
        self.deliver = discard

    def _drop_data(self) -> None:
        self.resolved = True
        # `Deadlines` may hold this object longer; the request's body and result must not stay with it.
        self.inputs = {}
        self.parts = []

    def finish(self, rows: int) -> Outcome | None:
        """Count executed ``rows``; return the outcome once all rows have run."""
        self.finished += rows
        if self.resolved or self.finished < self.rows:
            return None
        if self.errors:
            return RowsFailed(sorted(self.errors, key=lambda error: error.row))
        try:
            outputs = self.parts[0][1] if len(self.parts) == 1 else join_parts(self.parts)
        except ProxyError as error:
            return error
        return RequestResult(outputs, self.lengths)


def discard(_: Outcome) -> None:
    """Ignore an outcome: the callback of requests without a client."""


def join_parts(parts: list[tuple[int, Mapping[str, Array]]]) -> Mapping[str, Array]:
    """Join the results of a request that was split over batches.

    Raises:
        ModelFailed: the parts differ in trailing shape, because the model's output depends on its batch.
    """
    ordered = [outputs for _, outputs in sorted(parts, key=lambda part: part[0])]
    try:
        return {name: np.concatenate([outputs[name] for outputs in ordered]) for name in ordered[0]}
    except (ValueError, KeyError) as error:
        raise ModelFailed(
            f"the rows of this request ran in {len(parts)} batches whose outputs cannot be joined: {error}."
            " Send at most maxBatchSize rows a request, or declare unpad_axis for the output."
        ) from error


class RequestSlice:
    """Consecutive rows of a request that one batch contains.

    The slice has ``rows`` rows, from row ``start`` of the request. ``inputs`` are all rows of the request. A cancelled
    request drops its own reference to ``inputs``, but the batch still needs them.
    """

    __slots__ = ("inputs", "pending", "rows", "start")

    def __init__(self, pending: PendingRequest, start: int, rows: int, inputs: Mapping[str, Array]) -> None:
        self.pending = pending
        self.start = start
        self.rows = rows
        self.inputs = inputs

    @property
    def stop(self) -> int:
        """Return the index after the last row."""
        return self.start + self.rows


class Deadlines:
    """The deadlines of all unresolved requests, waiting or running, soonest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, PendingRequest]] = []
        self._serial = 0
        self._compact_at = 256

    def add(self, pending: PendingRequest) -> None:
        """Track ``pending`` until it is resolved."""
        self._serial += 1
        heapq.heappush(self._heap, (pending.expires_s, self._serial, pending))
        # Most requests are answered long before their deadline. Drop those, or the heap would hold minutes of traffic.
        if len(self._heap) > self._compact_at:
            self._heap = [entry for entry in self._heap if not entry[2].resolved]
            heapq.heapify(self._heap)
            self._compact_at = 256 + 2 * len(self._heap)

    @property
    def next_s(self) -> float:
        """Return the earliest `expires_s` of an unresolved request; `NEVER_S` where there is none."""
        heap = self._heap
        # Resolved requests are dropped when they reach the top.
        while heap and heap[0][2].resolved:
            heapq.heappop(heap)
        return heap[0][0] if heap else NEVER_S

    def forwarded(self) -> list[PendingRequest]:
        """Return the unresolved requests that another replica forwarded."""
        return [pending for _, _, pending in self._heap if pending.forwarded and not pending.resolved]

    def expired(self, now_s: float) -> list[PendingRequest]:
        """Return the unresolved requests past their time, and stop tracking them."""
        due: list[PendingRequest] = []
        while self.next_s <= now_s:
            due.append(heapq.heappop(self._heap)[2])
        return due
