"""Send a large batch in portions: their size, concurrency, and handling of rejections.

As in TCP congestion control, portions start small and one at a time, grow to the model's batch size, and then run
concurrently while each takes less than a quarter of its timeout. The driver reports events with their time (monotonic
seconds) and sends the portions that `take` returns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from shoal.errors import DeadlineExceeded, InvalidInput, Overloaded, ShoalError, TooLarge
from shoal.wire.frames import Rows
from shoal.wire.items import encode_items
from shoal.wire.retrying import may_retry, pause_s
from shoal.wire.signature import Signature
from shoal_schema.wire.datatypes import Array

FIRST_ROWS: Final = 8
USUAL_ROWS: Final = 64
"""Rows of a portion if the server does not report its batch size."""
MAX_BYTES: Final = 8 * 2**20
"""Bytes of one portion."""
MAX_IN_FLIGHT: Final = 4
"""Concurrent portions: enough to hide the network, few enough to leave the queue to other clients."""


@dataclass(slots=True)
class Portion:
    """Consecutive rows that are sent in one request."""

    start: int
    """Index of the first row."""
    rows: int
    tensors: Mapping[str, Array]
    first_sent_s: float | None = None
    sent_s: float = 0.0
    """Time of the last attempt."""
    refusals: int = 0
    """Rejections so far."""


@dataclass(frozen=True, slots=True)
class Times:
    """The time limits of one call."""

    ends_s: float
    """Deadline of the whole call (monotonic s); infinite if not given."""
    portion_s: float
    """Time for one portion (s)."""
    repeatable: bool = False
    """Whether a portion may run twice."""


@dataclass(slots=True)
class Portions:
    """State of a large batch that is sent in portions."""

    rows: Rows
    signature: Signature
    times: Times
    jitter: float = 0.0
    """0 to 1; spreads the pauses after rejections."""
    allowed: int = 1
    """Portions that may be in flight now."""
    error: ShoalError | None = None
    """The error that ends the batch."""
    _most_rows: int = field(init=False)
    _next_rows: int = field(init=False)
    _one_call: bool = field(init=False)
    _cut: int = 0
    _again: list[Portion] = field(default_factory=list)
    _answers: dict[int, Any] = field(default_factory=dict)
    _answered_rows: int = 0
    _in_flight: int = 0
    _paused_until_s: float = 0.0

    def __post_init__(self) -> None:
        self._most_rows = max(1, self.signature.max_batch_size or USUAL_ROWS)
        # A batch that fits one request is sent like a single prediction.
        self._one_call = len(self.rows) <= self._most_rows
        self._next_rows = self._most_rows if self._one_call else min(FIRST_ROWS, self._most_rows)

    @property
    def answered_rows(self) -> int:
        """Number of rows with a result."""
        return self._answered_rows

    @property
    def alone(self) -> bool:
        """Whether the portion just taken is the only one allowed in flight."""
        return self.allowed == 1 and self._in_flight == 1

    @property
    def done(self) -> bool:
        """Whether the batch has ended: all rows have results, or an error occurred."""
        return self.error is not None or self._answered_rows == len(self.rows)

    def take(self, now_s: float) -> Portion | None:
        """Return the next portion to send, or None.

        None means that no portion is left, that the maximum number is in flight, that sending is paused, or that the
        call's time is over.
        """
        if self.done or self._in_flight >= self.allowed or now_s < self._paused_until_s:
            return None
        if now_s >= self.times.ends_s:
            self.error = DeadlineExceeded(
                f"the call timed out after results for {self._answered_rows} of {len(self.rows)} rows",
                may_have_run=self._answered_rows > 0,
            )
            return None
        portion = self._again.pop(0) if self._again else self._cut_next()
        if portion is None:
            return None
        # Halve a portion that is too large for one request; the rest is sent next.
        while portion.rows > 1 and bytes_of(portion.tensors) > MAX_BYTES:
            portion, rest = self._halves(portion)
            self._again.insert(0, rest)
            self._most_rows = self._next_rows = portion.rows
        if portion.first_sent_s is None:
            portion.first_sent_s = now_s
        portion.sent_s = now_s
        self._in_flight += 1
        return portion

    def pause_s(self, now_s: float) -> float:
        """Return the remaining pause after a rejection (s); 0 if a portion may be sent."""
        return max(0.0, min(self._paused_until_s, self.times.ends_s) - now_s)

    def time_of(self, portion: Portion) -> float:
        """Return the timeout (s) of a portion that was just taken."""
        began_s = portion.sent_s if portion.first_sent_s is None else portion.first_sent_s
        return max(0.001, min(self.times.ends_s, began_s + self.times.portion_s) - portion.sent_s)

    def ended(self, portion: Portion, outcome: Any, now_s: float) -> None:
        """Record the result of a portion, or its error; a rejected portion may be sent again."""
        self._in_flight -= 1
        if not isinstance(outcome, ShoalError):
            self._answers[portion.start] = outcome
            self._answered_rows += portion.rows
            self._adapt(now_s - portion.sent_s)
        elif self.error is not None:
            pass  # the first error has ended the batch
        elif isinstance(outcome, TooLarge) and portion.rows > 1:
            self._most_rows = self._next_rows = max(1, portion.rows // 2)
            self._again = [*self._halves(portion), *self._again]
        elif self._may_wait(portion, outcome, now_s):
            self._again.insert(0, portion)
        else:
            self.error = self._located(portion, outcome)

    def result(self) -> Any:
        """Return the results of all rows, in order.

        Raises:
            ShoalError: a portion failed, or the results have different shapes.
        """
        if self.error is not None:
            raise self.error
        parts = [self._answers[start] for start in sorted(self._answers)]
        return parts[0] if len(parts) == 1 else _joined(parts)

    def _cut_next(self) -> Portion | None:
        """Return the next portion of new rows; None at the end, or if a row is invalid."""
        # Converted as late as possible, so that one portion at a time is in memory.
        start, stop = self._cut, min(self._cut + self._next_rows, len(self.rows))
        if start == stop:
            return None
        try:
            tensors = encode_items(self.rows[start:stop], self.signature, start)
        except InvalidInput as error:
            error.may_have_run = self._others_went()
            self.error = error
            return None
        self._cut = stop
        return Portion(start, stop - start, tensors)

    def _halves(self, portion: Portion) -> tuple[Portion, Portion]:
        middle = portion.rows // 2
        axes = {tensor.name: tensor.batch_dim for tensor in self.signature.inputs}
        first, second = {}, {}
        for name, array in portion.tensors.items():
            first[name], second[name] = np.split(array, [middle], axis=min(axes[name], array.ndim - 1))
        return (Portion(portion.start, middle, first), Portion(portion.start + middle, portion.rows - middle, second))

    def _adapt(self, took_s: float) -> None:
        """Adapt size and number of portions: grow after less than 1/8 of the timeout, shrink after more than 1/4."""
        if took_s > self.times.portion_s / 4:
            if self.allowed > 1:
                self.allowed -= 1
            else:
                self._next_rows = max(1, self._next_rows // 2)
        elif took_s <= self.times.portion_s / 8:
            if self._next_rows < self._most_rows:
                self._next_rows = min(self._most_rows, 2 * self._next_rows)
            else:
                self.allowed = min(MAX_IN_FLIGHT, self.allowed + 1)

    def _may_wait(self, portion: Portion, error: ShoalError, now_s: float) -> bool:
        """Return whether a rejected portion is sent again.

        If so, pause all portions until then, and halve the number that may be in flight.
        """
        # A call of one portion fails as `predict` does; with several, the call itself may fill it.
        if (self._one_call and not self._answers) or not isinstance(error, Overloaded):
            return False
        if not may_retry(error, repeatable=self.times.repeatable):
            return False
        wait_s = pause_s(error, portion.refusals, self.jitter)
        began_s = now_s if portion.first_sent_s is None else portion.first_sent_s
        if now_s + wait_s >= min(began_s + self.times.portion_s, self.times.ends_s):
            return False
        portion.refusals += 1
        # Multiplicative decrease, as in TCP.
        self.allowed = max(1, self.allowed // 2)
        self._paused_until_s = max(self._paused_until_s, now_s + wait_s)
        return True

    def _located(self, portion: Portion, error: ShoalError) -> ShoalError:
        """Return an error of a portion with row numbers of the whole batch."""
        if portion.rows == len(self.rows):
            return error
        where = f"rows {portion.start} to {portion.start + portion.rows - 1}"
        if len(error.errors) == 1:
            # The server's message starts with the row number within the portion.
            error.message = error.message.removeprefix(f"row {error.errors[0].row}: ")
            where = f"row {error.errors[0].row + portion.start}"
        # The server counts rows within the portion.
        error.errors = tuple(type(row)(row.row + portion.start, row.status, row.message) for row in error.errors)
        error.message = f"{where}: {error.message}"
        error.args = (error.message,)
        error.may_have_run = error.may_have_run or self._others_went()
        return error

    def _others_went(self) -> bool:
        return self._answered_rows > 0 or self._in_flight > 0


def bytes_of(tensors: Mapping[str, Array]) -> int:
    """Return the size of tensors on the wire (bytes)."""
    return sum(
        sum(map(len, array.flat)) + 4 * array.size if array.dtype == object else array.nbytes
        for array in tensors.values()
    )


def _joined(parts: list[Any]) -> Any:
    # A model with several outputs.
    if isinstance(parts[0], Mapping):
        return {name: _joined([part[name] for part in parts]) for name in parts[0]}
    shapes = sorted({part.shape[1:] for part in parts})
    if len(shapes) > 1:
        raise InvalidInput(
            f"the results have different shapes ({' and '.join(str(list(each)) for each in shapes[:3])}) and do not"
            " form one array. Call predict_batch for the rows of each shape",
            may_have_run=True,
        )
    return np.concatenate(parts)
