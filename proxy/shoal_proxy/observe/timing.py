"""Server-Timing header: queue time of a request, and times of its batch."""

from typing import Final

from shoal_proxy.batching.batch import Batch, MergedInputs

_ROWS: Final = b'rows;desc="'


def batch_timing(batch: Batch, merged: MergedInputs, *, runtime_s: float, batch_s: float) -> bytes:
    """Return the Server-Timing values that all requests of a batch share.

    These are the times of proxy and runtime, the batch's rows, and its padding in percent.
    """
    padding = round(100 * merged.padded_elements / merged.elements) if merged.elements else 0
    return b'batch;dur=%.2f, runtime;dur=%.2f, rows;desc="%d", padding;desc="%d%%"' % (
        1000 * batch_s,
        1000 * runtime_s,
        batch.rows,
        padding,
    )


def batch_rows(timing: bytes) -> int | None:
    """Return the rows in the output of `batch_timing`; None if missing."""
    _, found, rest = timing.partition(_ROWS)
    return int(rest.partition(b'"')[0]) if found else None


def server_timing(queued_s: float, timing: bytes) -> bytes:
    """Return the Server-Timing line: a request's queue time, then ``timing``."""
    return b"server-timing: queue;dur=%.2f, %b\r\n" % (1000 * queued_s, timing)
