"""Log of failures caused by the model, at a limited rate."""

import logging
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import orjson

from shoal_runtime.codecs.request import InferRequest
from shoal_runtime.errors import BatchError, FailedRow
from shoal_runtime.faults import own_traceback
from shoal_schema.interfaces.headers import REQUEST_ID
from shoal_schema.process.log_lines import word

LINES_PER_WINDOW: Final = 10
WINDOW_S: Final = 60.0
IDS_SHOWN: Final = 8

logger = logging.getLogger(__name__)


class ItemLog:
    """Log of failures caused by the model, with at most 10 lines a minute, and each traceback once a minute."""

    def __init__(self) -> None:
        self._window_start_s = 0.0
        self._lines = 0
        self._suppressed = 0
        self._logged_traces: set[str] = set()

    def add(self, errors: Sequence[FailedRow], parameters: Mapping[str, Any], now_s: float) -> None:
        """Log row errors caused by the model, with the x-request-id of each row's request."""
        for error in errors:
            if error.status < 500 or not self._may_write(now_s):
                continue
            # The innermost frame is the line that raised.
            frames = traceback.extract_tb(error.cause.__traceback__) if error.cause is not None else []
            where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "-"
            origin = request_id(parameters.get("requests"), error.row)
            logger.error(
                "event=row_failed row=%d status=%d x-request-id=%s at=%s message=%s%s",
                error.row,
                error.status,
                origin,
                where,
                one_line(error.message),
                self._trace(error.cause),
            )

    def add_batch(self, error: BatchError, request: InferRequest, now_s: float) -> None:
        """Log a batch failure caused by the model: its requests, shapes, error and traceback."""
        at_fault = error.status == 500 or (error.status > 500 and error.__cause__ is not None)
        if not at_fault or not self._may_write(now_s):
            return
        inputs = [f"{name}:{each.dtype}[{'x'.join(map(str, each.shape))}]" for name, each in request.inputs.items()]
        logger.error(
            "event=batch_failed code=%s rows=%d x-request-ids=%s inputs=%s message=%s%s",
            error.code,
            request.rows,
            request_ids(request.parameters.get("requests")),
            ",".join(inputs),
            one_line(str(error)),
            self._trace(error.__cause__),
        )

    def _trace(self, cause: BaseException | None) -> str:
        """Return the traceback of an error; empty if the same traceback was logged in the last minute."""
        if cause is None:
            return ""
        trace = own_traceback(cause)
        if trace in self._logged_traces:
            return ""
        self._logged_traces.add(trace)
        return f"\n{trace}"

    def _may_write(self, now_s: float) -> bool:
        if now_s - self._window_start_s >= WINDOW_S:
            if self._suppressed:
                logger.error("event=failures_unlogged lines=%d", self._suppressed)
            self._window_start_s, self._lines, self._suppressed = now_s, 0, 0
            self._logged_traces.clear()
        written = self._lines < LINES_PER_WINDOW
        self._lines += written
        self._suppressed += not written
        return written


def one_line(text: str) -> str:
    """Escape line ends and control characters in a text, so that it cannot forge log lines."""
    escaped = "\\n".join(text.splitlines())
    # Most messages need no escapes.
    if escaped.isprintable():
        return escaped
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in escaped)


def request_id(requests: Any, row: int) -> str:
    """Return the x-request-id of the request that a row of a batch belongs to, or "-".

    Args:
        requests: parameter of the batch: JSON `[{"rows": 2, "x-request-id": "..."}]`, in row order.
        row: index of the row in the batch.
    """
    # Requests were joined into the batch in this order.
    for origin, rows in _traced(requests):
        row -= rows
        if row < 0:
            return origin
    return "-"


def request_ids(requests: Any) -> str:
    """Return the first eight x-request-ids of a batch's requests, or "-" if there are none."""
    ids = [origin for origin, _ in _traced(requests)]
    more = f",...({len(ids) - IDS_SHOWN} more)" if len(ids) > IDS_SHOWN else ""
    return ",".join(ids[:IDS_SHOWN]) + more or "-"


def _traced(requests: Any) -> Iterator[tuple[str, int]]:
    """Yield id and number of rows of each request; a malformed parameter is ignored."""
    with suppress(orjson.JSONDecodeError, TypeError, AttributeError):
        for entry in orjson.loads(requests):
            rows = entry.get("rows")
            yield word(str(entry.get(REQUEST_ID, "-"))), rows if isinstance(rows, int) else 0
