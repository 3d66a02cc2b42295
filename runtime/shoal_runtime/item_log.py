"""Logging of rows that failed through the model's fault: a line each, and never a flood."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping, Sequence

    from shoal_runtime.handlers.calling import RowError

LINES_PER_WINDOW: Final = 10
WINDOW_S: Final = 60.0


class ItemLog:
    """Log failed rows of status 500 and above, at most 10 lines a minute.

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
        self._turn_window(now_s)
        for error in serious:
            if self._lines >= LINES_PER_WINDOW:
                self._suppressed += 1
                continue
            self._lines += 1
            where, who = _location(error.cause), request_id(parameters.get("requests"), error.row)
            self._logger.error(
                "row failed row=%d status=%d x-request-id=%s at=%s message=%s",
                error.row,
                error.status,
                who,
                where,
                error.message,
            )

    def _turn_window(self, now_s: float) -> None:
        if now_s - self._window_start_s < WINDOW_S:
            return
        if self._suppressed:
            self._logger.error("more rows failed suppressed_lines=%d", self._suppressed)
        self._window_start_s, self._lines, self._suppressed = now_s, 0, 0


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
                return str(entry.get("x-request-id", "-"))
    except (orjson.JSONDecodeError, TypeError, KeyError, AttributeError):
        # It is for the log alone, so a malformed one must not fail the batch.
        return "-"
    return "-"


def _location(cause: BaseException | None) -> str:
    frames = traceback.extract_tb(cause.__traceback__) if cause is not None else []
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "-"
