"""A caller's request on its way through the queue, and the key that says whom it may share a batch with."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from shoal_proxy.access.gate import Caller
from shoal_proxy.batching.returns import Burst
from shoal_proxy.errors import ModelFailed, ProxyError, RowsFailed
from shoal_proxy.tracing.span import Span
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.row_errors import RowError


class BatchKey(NamedTuple):
    """Requests with equal keys may share a batch.

    ``shapes``: per input its name and trailing shape, padded axes replaced by their bucket (or -1 without buckets).
    ``parameters``, ``tensors``: what the caller asked the model to do differently, as JSON text.
    ``headers``: the forwarded headers, which the runtime gets once per batch.
    ``solo``: a serial number for requests that must travel alone, else 0.
    """

    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    parameters: bytes = b""
    tensors: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    solo: int = 0

    def alone(self) -> "BatchKey":
        """Return this key for a request that must travel alone."""
        return self._replace(solo=next(_serial))


_serial = count(1)
PLAIN_KEY = BatchKey()
"""The key of every ordinary request to a model whose shapes are fixed."""


class LaneKey(NamedTuple):
    """The class and the priority level of a request; level 0 is served first."""

    share: bytes = b""
    level: int = 0


PLAIN_LANE = LaneKey()
"""The lane of every ordinary request."""
NEVER_S = float("inf")


class Answer:
    """A request's own rows, in its own order, and their lengths where they were padded."""

    __slots__ = ("lengths", "outputs")

    def __init__(self, outputs: Mapping[str, Array], lengths: Mapping[str, Sequence[int]]) -> None:
        self.outputs = outputs
        self.lengths = lengths


Outcome = Answer | ProxyError
Delivery = tuple["Pending", Outcome]
"""What is to be handed over to a caller."""


class Pending:
    """One request, from admission until its outcome is delivered, exactly once.

    ``inputs`` are canonical arrays of ``rows`` rows; ``lengths`` holds each row's own length per padded input.
    """

    __slots__ = (
        "arrived_s", "burst", "caller", "deadline_s", "deliver", "due_s", "errors", "finished", "handed_over", "inputs",
        "key", "lane", "lengths", "may_have_run", "parts", "queued_s", "resolved", "rows", "size_bytes", "span",
        "taken", "timing", "trace", "tried_elsewhere", "turn_s",
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
        due_s: float = NEVER_S,
        lengths: Mapping[str, Sequence[int]] | None = None,
        trace: Mapping[str, str] | None = None,
    ) -> None:
        self.inputs = inputs
        self.rows = rows
        self.size_bytes = size_bytes
        self.arrived_s = arrived_s
        self.turn_s = arrived_s
        """When it took its place in the queue: later again for each portion of a large request."""
        self.deadline_s = deadline_s
        self.deliver = deliver
        self.key = key
        self.lane = lane
        self.due_s = due_s
        """When the answer should be there, by the caller's word or the latency objective; at ``deadline_s`` nobody
        waits for it any more."""
        self.lengths: Mapping[str, Sequence[int]] = {} if lengths is None else lengths
        self.trace = trace
        self.queued_s = 0.0
        """How long it waited."""
        self.timing = b""
        """What its last batch cost, as Server-Timing says it."""
        self.taken = 0
        """Rows that have left the queue in some batch."""
        self.may_have_run = False
        """Some of its rows were at the runtime, which did not say that it left them alone."""
        self.finished = 0
        self.handed_over = False
        """Another replica has given it away: it is not handed on."""
        self.tried_elsewhere = False
        """A sibling has sent it back: it is not given away again."""
        self.resolved = False
        self.caller: Caller | None = None
        """Who calls, where that is asked."""
        self.burst: Burst | None = None
        """Those it was answered with, for its connection to say when it comes back."""
        self.span: Span | None = None
        """What a trace is to tell of it; None: it is not traced."""
        self.parts: list[tuple[int, Mapping[str, Array]]] = []
        self.errors: list[RowError] = []
        """Rows that failed on their own."""

    def stand_in(self) -> "Pending":
        """Return a request for the same, not begun yet, that belongs to no caller."""
        return Pending(
            inputs=self.inputs,
            rows=self.rows,
            size_bytes=self.size_bytes,
            arrived_s=self.arrived_s,
            deadline_s=self.deadline_s,
            deliver=_nobody,
            key=self.key,
            lane=self.lane,
            due_s=self.due_s,
            lengths=self.lengths,
            trace=self.trace,
        )

    @property
    def stays(self) -> bool:
        """Return whether it is not to be given away: it has begun, or was given away before."""
        return self.taken > 0 or self.handed_over or self.tried_elsewhere

    @property
    def left(self) -> int:
        """Return how many rows still wait."""
        return self.rows - self.taken

    def resolve(self, outcome: Outcome) -> Delivery:
        """Let go of everything but the caller, who is to get ``outcome``; at most once."""
        self._let_go()
        return self, outcome

    def hand_over(self, outcome: Outcome) -> None:
        """Give the caller ``outcome``, unless it has gone meanwhile, and let go of the caller too."""
        deliver = self.deliver
        self.deliver = _nobody
        deliver(outcome)

    def abandon(self) -> None:
        """Give up without an answer: the caller has gone."""
        self._let_go()
        self.deliver = _nobody

    def _let_go(self) -> None:
        self.resolved = True
        # `Deadlines` may hold this for a while yet; the caller's body and answer must not stay with it.
        self.inputs = {}
        self.parts = []

    def finish(self, rows: int) -> Outcome | None:
        """Count ``rows`` more as executed; after the last one, return the joined answer or the rows' errors."""
        self.finished += rows
        if self.resolved or self.finished < self.rows:
            return None
        if self.errors:
            return RowsFailed(sorted(self.errors, key=lambda error: error.row))
        try:
            outputs = self.parts[0][1] if len(self.parts) == 1 else join_parts(self.parts)
        except ProxyError as error:
            return error
        return Answer(outputs, self.lengths)


def _nobody(_: Outcome) -> None:
    """Stand in for a caller that has its outcome, has gone, or never was."""


def join_parts(parts: list[tuple[int, Mapping[str, Array]]]) -> Mapping[str, Array]:
    """Put the pieces of a split request together again.

    Raises:
        ModelFailed: the pieces differ in trailing shape, because the model's output depends on its batch.
    """
    ordered = [outputs for _, outputs in sorted(parts, key=lambda part: part[0])]
    try:
        return {name: np.concatenate([outputs[name] for outputs in ordered]) for name in ordered[0]}
    except (ValueError, KeyError) as error:
        raise ModelFailed(
            f"the rows of this request ran in {len(parts)} batches whose outputs do not fit together: {error};"
            " send at most maxBatchSize rows a request, or declare unpad_axis for the output"
        ) from error


class Slice:
    """So many ``rows`` of one request, from ``start`` on, as one batch takes them.

    ``inputs`` are the request's own, all rows of them: a caller who leaves between the closing of its batch and the
    merge must not take the rows of the others' batch away.
    """

    __slots__ = ("inputs", "pending", "rows", "start")

    def __init__(self, pending: Pending, start: int, rows: int, inputs: Mapping[str, Array]) -> None:
        self.pending = pending
        self.start = start
        self.rows = rows
        self.inputs = inputs

    @property
    def stop(self) -> int:
        """Return the row after the last of these."""
        return self.start + self.rows
