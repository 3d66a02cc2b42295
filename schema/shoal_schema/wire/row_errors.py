"""What is wrong with single rows, as it travels: `[{"row": 3, "status": 400, "message": "..."}]`.

The runtime tells the proxy in a parameter of its answer, as a JSON text, since parameters are scalars; the proxy tells
callers beside the error of the whole request.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple


class RowError(NamedTuple):
    """What is wrong with one row of a request or batch: its number (from 0), HTTP status, and a sentence."""

    row: int
    status: int
    message: str


def encode_row_errors(errors: Sequence[RowError]) -> list[dict[str, Any]]:
    """Return the errors as values for JSON."""
    return [{"row": error.row, "status": error.status, "message": error.message} for error in errors]


def decode_row_errors(entries: Any) -> tuple[RowError, ...]:
    """Return the errors that values from JSON tell.

    Raises:
        ValueError: an entry is no row's error.
    """
    if not isinstance(entries, list):
        raise ValueError("the rows' errors are not a list")
    return tuple([_decoded(entry) for entry in entries])


def _decoded(entry: Any) -> RowError:
    if not isinstance(entry, dict):
        raise ValueError("a row's error is not an object")
    row, status, message = entry.get("row"), entry.get("status"), entry.get("message")
    # True is an int, and no number of a row.
    if type(row) is not int or row < 0 or type(status) is not int or not 400 <= status <= 599:
        raise ValueError(f"row {str(row)[:40]} failed with status {str(status)[:40]}")
    return RowError(row, status, str(message))
