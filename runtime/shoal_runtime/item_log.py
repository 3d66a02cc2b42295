"""Logging of what failed through the model's fault: a line a row, a traceback a batch, and never a flood."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, Final

import orjson

from shoal_runtime.faults import own_traceback

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping, Sequence

    from shoal_runtime.errors import BatchError
    from shoal_runtime.handlers.calling import RowError

LINES_PER_WINDOW: Final = 10
WINDOW_S: Final = 60.0


class ItemLog:
    """Log failures of status 500 and above, at most 10 a minute.

    Args:
        logger: where to.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._window_start_s = 0.0
        self._lines = 0
        self._suppressed = 0

    def add(self, errors: Sequence[RowError], parameters: Mapping[str, Any], now_s: float) -> None:
        """Log those of `errors` that are the model's fault, each with its caller's x-request-id.

        Args:
            errors: of one batch.
            parameters: the batch's; `requests` says which rows are whose.
            now_s: monotonic time.
        """
        serious = [error for error in errors if error.status >= 500]
        if not serious:
            return
        for error in serious:
            if not self._may_write(now_s):
                continue
            where, who = _location(error.cause), request_id(parameters.get("requests"), error.row)
            self._logger.error(
                "row failed row=%d status=%d x-request-id=%s at=%s message=%s",
                error.row,
                error.status,
                who,
                where,
                one_line(error.message),
            )

    def add_batch(self, error: BatchError, now_s: float) -> None:
        """Log a batch that failed because the model's code raised, with the traceback of what it raised."""
        if error.status < 500 or error.__cause__ is None or not self._may_write(now_s):
            return
        trace = own_traceback(error.__cause__)
        self._logger.error("batch failed code=%s message=%s\n%s", error.code, one_line(str(error)), trace)

    def _may_write(self, now_s: float) -> bool:
        self._turn_window(now_s)
        if self._lines >= LINES_PER_WINDOW:
            self._suppressed += 1
            return False
        self._lines += 1
        return True

    def _turn_window(self, now_s: float) -> None:
        if now_s - self._window_start_s < WINDOW_S:
            return
        if self._suppressed:
            self._logger.error("more failed suppressed_lines=%d", self._suppressed)
        self._window_start_s, self._lines, self._suppressed = now_s, 0, 0


def one_line(text: str) -> str:
    """Return text with its line ends escaped: nobody writes a line of his own into the log."""
    return "\\n".join(text.splitlines())


def request_id(requests: Any, row: int) -> str:
    """Return the x-request-id of the request that a row came in, or "-".

    Args:
        requests: the batch's `requests` parameter: JSON `[{"rows": 2, "x-request-id": "..."}]`, in
            row order.
        row: counted in the batch.
    """
    try:
        entries = orjson.loads(requests)
        for entry in entries:
            row -= entry["rows"]
            if row < 0:
                return one_line(str(entry.get("x-request-id", "-")))
    except (orjson.JSONDecodeError, TypeError, KeyError, AttributeError):
        # It is for the log alone, so a malformed one must not fail the batch.
        return "-"
    return "-"


def _location(cause: BaseException | None) -> str:
    frames = traceback.extract_tb(cause.__traceback__) if cause is not None else []
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "-"
