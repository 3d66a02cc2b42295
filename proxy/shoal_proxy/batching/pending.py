"""A caller's request on its way through the queue, and the key that says whom it may share a batch with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from shoal_proxy.errors import ProxyError, RowError, RowsFailed
from shoal_proxy.model.datatypes import Array


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

    def alone(self) -> BatchKey:
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


class Answer(NamedTuple):
    """A request's own rows, in its own order, and what its batches cost (the last one's, where it had several)."""

    outputs: Mapping[str, Array]
    lengths: Mapping[str, Sequence[int]]


Outcome = Answer | ProxyError


@dataclass(eq=False)
class Pending:
    """One request, from admission until its outcome is delivered, exactly once.

    ``inputs`` are canonical arrays of ``rows`` rows; ``lengths`` holds each row's own length per padded input.
    """

    inputs: Mapping[str, Array]
    rows: int
    size_bytes: int
    arrived_s: float
    deadline_s: float
    deliver: Callable[[Outcome], None]
    key: BatchKey = PLAIN_KEY
    lane: LaneKey = PLAIN_LANE
    due_s: float = NEVER_S
    """When the answer should be there, by the caller's word or the latency objective; at ``deadline_s`` nobody waits
    for it any more."""
    lengths: Mapping[str, Sequence[int]] = field(default_factory=dict)
    trace: Mapping[str, str] | None = None
    queued_s: float = 0.0
    """How long it waited."""
    timing: bytes = b""
    """What its last batch cost, as Server-Timing says it."""
    taken: int = 0
    """Rows that have left the queue in some batch."""
    finished: int = 0
    resolved: bool = False
    parts: list[tuple[int, Mapping[str, Array]]] = field(default_factory=list)
    errors: list[RowError] = field(default_factory=list)

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
            self.resolve(Answer(join(self.parts), self.lengths))
        except ProxyError as error:
            self.resolve(error)


def _nobody(_: Outcome) -> None:
    """Stand in for a caller that has its outcome."""


class Slice(NamedTuple):
    """So many ``rows`` of one request, from ``start`` on, as one batch takes them.

    ``inputs`` are the request's own, all rows of them: a caller who leaves between the closing of its batch and the
    merge must not take the rows of the others' batch away.
    """

    pending: Pending
    start: int
    rows: int
    inputs: Mapping[str, Array]

    @property
    def stop(self) -> int:
        """Return the row after the last of these."""
        return self.start + self.rows
