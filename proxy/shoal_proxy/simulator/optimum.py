"""Optimum of batching: the most requests in time, knowing the whole trace.

One device runs one batch at a time. Each request is one row, and deadlines are in the order of arrival. Then some
optimal solution serves requests in order of arrival, and a batch that ends with request i holds consecutive requests up
to i, since these have the latest deadlines. So each batch is a stretch of the trace, and rejected requests lie between
batches. The optimum follows from a table of the earliest times at which the device can be free:

    free[i][m]   with the first i requests decided and at most m of them rejected
               = min( free[i-1][m-1],  min over b of  max(free[i-b][m], arrived[i]) + latency[b]
                                       where that is at most due[i-b+1] )

The result is N - min{m : free[N][m] < inf}.
Source: Baptiste, Batching identical jobs, Mathematical Methods of Operations Research 52 (2000).

For each i only a narrow band of m matters: below the band too many requests were kept to be in time, above it the
device would be idle when the next request arrives. Within the band a step is one numpy operation.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_BLOCK = 512
_Times = npt.NDArray[np.float64]


def most_in_time(
    arrived_s: Sequence[float] | _Times,
    soft_deadline_s: Sequence[float] | _Times,
    latency_s: Sequence[float],
    *,
    give_up_at: int | None = None,
) -> int:
    """Return the maximum number of requests that can be in time.

    Args:
        arrived_s: arrival times, in order.
        soft_deadline_s: time by which each request must have its result, in order.
        latency_s: duration of a batch of 1, 2, ... rows, up to the largest batch; not falling.
        give_up_at: stop when at least this number must be rejected, and return the remaining upper bound.

    Raises:
        ValueError: a sequence is not in order.
    """
    arrivals, deadlines, latencies = (
        np.asarray(values, dtype=float) for values in (arrived_s, soft_deadline_s, latency_s)
    )
    for name, values in (("arrived_s", arrivals), ("due_s", deadlines), ("latency_s", latencies)):
        if np.any(np.diff(values) < 0):
            raise ValueError(f"{name} must not fall from one entry to the next")
    band = _Band(arrivals, deadlines, latencies)
    for end in range(1, len(arrivals) + 1):
        band.step(end)
        if give_up_at is not None and band.fewest >= give_up_at:
            break
    return len(arrivals) - band.fewest


class _Band:
    """The last rows of the table, limited to the columns that matter.

    Rows are stored in a block: row ``end`` at index ``end - _first_row``. The block's first column is the one for
    ``_base`` rejections. When the block is full, the rows still needed move to a new one. Columns after the band are
    -inf: the device is free.
    """

    def __init__(self, arrived_s: _Times, soft_deadline_s: _Times, latency_s: _Times) -> None:
        self.fewest = 0
        """Rejections that cannot be avoided among the requests decided so far."""
        self._arrived_s, self._due_s, self._latency_s = arrived_s, soft_deadline_s, latency_s
        self._largest = len(latency_s)
        self._column_latency_s = latency_s[::-1].reshape(-1, 1)
        self._idle = 0
        """The column, in rejections, from which on the device is free when the next request arrives."""
        self._base = 0
        self._first_row = 0
        self._table: _Times = np.full((self._largest + _BLOCK, self._largest + _BLOCK + 2), -np.inf)

    def step(self, end: int) -> None:
        """Decide whether to keep or reject request ``end`` (counted from 1)."""
        if end - self._first_row >= len(self._table):
            self._move(end)
        # Columns of this row, relative to the block.
        low, high = self.fewest - self._base, self._idle + 1 - self._base
        row = end - self._first_row
        free_s = np.full(high - low + 1, np.inf)
        # Rejecting the request costs one more rejection than the row before.
        free_s[1:] = self._table[row - 1, low:high]
        # The largest batch ending with `end` that is in time on a free device; smaller ones are too.
        most = min(self._largest, end)
        finish_s = self._arrived_s[end - 1] + self._latency_s[:most]
        most = int(np.count_nonzero(finish_s <= self._due_s[end - most : end][::-1]))
        if most > 0:
            # By number of rejections, the earliest end of a last batch of up to `most` requests.
            ends_s = np.maximum(self._table[row - most : row, low : high + 1], self._arrived_s[end - 1])
            ends_s += self._column_latency_s[-most:]
            ends_s[ends_s > self._due_s[end - most : end, None]] = np.inf
            np.minimum(free_s, ends_s.min(axis=0), out=free_s)
        self._table[row, :low] = np.inf
        self._table[row, low : high + 1] = free_s
        # Narrow the band to where the device is neither late nor idle.
        next_s = self._arrived_s[end] if end < len(self._arrived_s) else np.inf
        fewest = self.fewest
        self.fewest = fewest + int(np.count_nonzero(np.isinf(free_s) & (free_s > 0)))
        self._idle = fewest + int(np.count_nonzero(free_s > next_s))

    def _move(self, end: int) -> None:
        """Begin a new block with the rows that later steps need."""
        kept = self._table[-self._largest :]
        # Columns below are infinite in all kept rows, and no longer needed.
        lowest = int(np.count_nonzero(np.isposinf(kept[0])))
        width = self._idle - self._base - lowest + _BLOCK + 2
        table = np.full((self._largest + _BLOCK, width), -np.inf)
        columns = min(width, kept.shape[1] - lowest)
        table[: self._largest, :columns] = kept[:, lowest : lowest + columns]
        self._table = table
        self._base += lowest
        self._first_row = end - self._largest
