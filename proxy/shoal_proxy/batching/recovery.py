"""Retries after a batch failed as a whole.

    failure                        retried
    the device ran out of memory   both halves, by rows; the size is remembered as too large
    the model failed, or rejected  both halves, by requests: valid requests succeed, and the faulty one is isolated;
                                   without cancelled requests, since one of them may be the faulty one
    the runtime never ran it       the same batch, once
    the runtime died meanwhile     the same batch, once, but only if the model is idempotent: it may have run
    anything else                  nothing; a request that is alone in its batch is retried at most once

Retries cost device time, and a model that fails every batch must not double the load of its device. So retries have a
budget, to which each successful request adds. Isolating a faulty request takes several tries, and continues as long as
other requests succeed.

A rejected batch (`InvalidRequest`) costs no device time and states that one request is wrong. Isolating that request
ignores the budget, so that no other request is rejected for its fault.
"""

from collections.abc import Sequence

from shoal_proxy.batching.batch import Batch, make_batch
from shoal_proxy.batching.pending import RequestSlice
from shoal_proxy.errors import BatchTooLarge, InvalidRequest, ModelFailed, NotExecuted, ProxyError, RuntimeLost

MAX_TRIES = 256
EARNED_TRIES = 4
"""Added to the budget by each successful request.

One fault in two requests costs 62 tries for 16 valid requests of a batch of 32.
"""


class BatchRetries:
    """The decision on retries of failed batches, and the budget of tries."""

    def __init__(self, *, idempotent: bool = False) -> None:
        self._idempotent = idempotent
        self._tries = MAX_TRIES

    def record_success(self, batch: Batch) -> None:
        """Add tries to the budget for each request of a successful batch."""
        self._tries = min(MAX_TRIES, self._tries + EARNED_TRIES * len(batch.slices))

    def batches_to_retry(self, batch: Batch, error: ProxyError, fitting_rows: int = 0) -> Sequence[Batch]:
        """Return the batches to retry; none if ``error`` must be delivered.

        Args:
            batch: the failed batch.
            error: the error of the batch.
            fitting_rows: row limit before the batch ran out of memory; its parts keep the value of the first failure.
        """
        batches = self._pieces(batch, error, batch.fitting_rows or fitting_rows)
        # A rejection costs no device time, so it is outside the budget.
        if isinstance(error, InvalidRequest):
            return batches
        if len(batches) > self._tries:
            return ()
        self._tries -= len(batches)
        return batches

    def _pieces(self, batch: Batch, error: ProxyError, fitting_rows: int) -> Sequence[Batch]:
        live = [part for part in batch.slices if not part.pending.resolved]
        tries = batch.attempts + 1
        if isinstance(error, BatchTooLarge):
            return [make_batch(half, tries, fitting_rows) for half in halve_rows(live)]
        if isinstance(error, ModelFailed | InvalidRequest):
            if len(live) < len(batch.slices):
                # Some requests were cancelled: the others may succeed without them.
                return [make_batch(live, tries, fitting_rows)] if live else []
            middle = len(live) // 2
            return [make_batch(half, tries, fitting_rows) for half in (live[:middle], live[middle:])] if middle else []
        if isinstance(error, NotExecuted) or (isinstance(error, RuntimeLost) and self._idempotent):
            return [make_batch(live, tries, fitting_rows)] if live and not batch.attempts else []
        return []


def halve_rows(slices: Sequence[RequestSlice]) -> list[list[RequestSlice]]:
    """Return the rows of ``slices`` in two halves, splitting a request where needed; nothing for a single row."""
    rows = sum(part.rows for part in slices)
    if rows < 2:
        return []
    first: list[RequestSlice] = []
    second: list[RequestSlice] = []
    room = (rows + 1) // 2
    for part in slices:
        cut = min(part.stop, part.start + room)
        room -= cut - part.start
        if cut > part.start:
            first.append(RequestSlice(part.pending, part.start, cut - part.start, part.inputs))
        if cut < part.stop:
            second.append(RequestSlice(part.pending, cut, part.stop - cut, part.inputs))
    return [first, second]
