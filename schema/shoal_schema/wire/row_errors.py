"""Errors of single rows on the wire: `[{"row": 3, "status": 400, "message": "..."}]`.

The runtime sends them to the proxy in a parameter of its response, as JSON text because parameters are scalars. The
proxy sends them to clients beside the error of the whole request.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple


class RowError(NamedTuple):
    """Error of one row of a request or batch: its index from 0, HTTP status and message."""

    row: int
    status: int
    message: str


def encode_row_errors(errors: Sequence[RowError]) -> list[dict[str, Any]]:
    """Return errors of rows as JSON values."""
    return [{"row": error.row, "status": error.status, "message": error.message} for error in errors]


def decode_row_errors(entries: Any) -> tuple[RowError, ...]:
    """Return errors of rows from JSON values.

    Raises:
        ValueError: an entry is not an error of a row.
    """
    if not isinstance(entries, list):
        raise ValueError("the rows' errors are not a list")
    errors = []
    for entry in entries:
        if not isinstance(entry, dict):
            raise ValueError("a row's error is not an object")
        row, status, message = entry.get("row"), entry.get("status"), entry.get("message")
        # Not isinstance: True is an int.
        if type(row) is not int or row < 0 or type(status) is not int or not 400 <= status <= 599:
            raise ValueError(f"row {str(row)[:40]} has an invalid index or status {str(status)[:40]}")
        errors.append(RowError(row, status, str(message)))
    return tuple(errors)
