"""A caller's request on its way through the queue, and the key that says whom it may share a batch with."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from shoal_proxy.errors import ProxyError, RowsFailed
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


class Pending:
    """One request, from admission until its outcome is delivered, exactly once.

    ``inputs`` are canonical arrays of ``rows`` rows; ``lengths`` holds each row's own length per padded input.
    """

    __slots__ = (
        "arrived_s", "deadline_s", "deliver", "due_s", "errors", "finished", "inputs", "key", "lane", "lengths",
        "may_have_run", "parts", "queued_s", "resolved", "rows", "size_bytes", "taken", "timing", "trace", "turn_s",
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
        self.resolved = False
        self.parts: list[tuple[int, Mapping[str, Array]]] = []
        self.errors: list[RowError] = []

    def stand_in(self, deliver: Callable[[Outcome], None]) -> "Pending":
        """Return a request for the same, not begun yet, whose outcome goes to ``deliver``."""
        return Pending(
            inputs=self.inputs,
            rows=self.rows,
            size_bytes=self.size_bytes,
            arrived_s=self.arrived_s,
            deadline_s=self.deadline_s,
            deliver=deliver,
            key=self.key,
            lane=self.lane,
            due_s=self.due_s,
            lengths=self.lengths,
            trace=self.trace,
        )

    @property
    def left(self) -> int:
        """Return how many rows still wait."""
        return self.rows - self.taken

    def resolve(self, outcome: Outcome) -> None:
        """Deliver ``outcome`` unless one was delivered already, and let go of everything else."""
        if not self.resolved:
            deliver = self.deliver
            self.abandon()
            deliver(outcome)

    def abandon(self) -> None:
        """Give up without an answer: the caller has gone."""
        self.resolved = True
        # `Deadlines` may hold this for a while yet; the caller's body and answer must not stay with it.
        self.inputs = {}
        self.parts = []
        self.deliver = _nobody

    def fail_rows(self, errors: Sequence[RowError]) -> None:
        """Remember rows that failed on their own."""
        self.errors.extend(errors)

    def finish(
        self,
        rows: int,
        join: Callable[[list[tuple[int, Mapping[str, Array]]]], Mapping[str, Array]],
    ) -> None:
        """Count ``rows`` more as executed; after the last one, deliver the joined answer or the rows' errors."""
        self.finished += rows
        if self.resolved or self.finished < self.rows:
            return
        if self.errors:
            self.resolve(RowsFailed(sorted(self.errors, key=lambda error: error.row)))
            return
        try:
            outputs = self.parts[0][1] if len(self.parts) == 1 else join(self.parts)
        except ProxyError as error:
            self.resolve(error)
        else:
            self.resolve(Answer(outputs, self.lengths))


def _nobody(_: Outcome) -> None:
    """Stand in for a caller that has its outcome."""


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
