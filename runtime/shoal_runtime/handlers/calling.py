"""Calls of a handler's preprocess and postprocess.

If a call raises an error for one row, the other rows of the batch continue.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal_runtime.errors import FailedRow, ItemError
from shoal_runtime.faults import HANDLER_FAULTS, describe, exception_message
from shoal_runtime.handlers.items import row_item
from shoal_runtime.signature.tensors import Signature
from shoal_schema.wire.datatypes import Array

BAD_ITEM = (ValueError, TypeError, KeyError, OSError)
"""Errors of `preprocess` that mean a bad item (`UnidentifiedImageError` of PIL is an OSError)."""


def preprocess_rows(
    rows: Sequence[int], inputs: Mapping[str, Array], signature: Signature, preprocess: Callable[[Any], Any] | None
) -> list[Any]:
    """Preprocess rows in order; a row whose preprocess raises becomes a FailedRow."""

    def made_of(row: int) -> Any:
        try:
            item = row_item(inputs, row, signature)
            return item if preprocess is None else preprocess(item)
        except HANDLER_FAULTS as error:
            # An ItemError has a status of its own, also when it is a ValueError too.
            bad_item = isinstance(error, BAD_ITEM) and not isinstance(error, ItemError)
            return FailedRow(row, 400, describe(error)) if bad_item else failed_row(row, error)

    return [made_of(row) for row in rows]


def postprocess_row(row: int, value: Any, postprocess: Callable[[Any], Any] | None) -> Any:
    """Postprocess one row of a result; an exception becomes a FailedRow.

    `value` may itself be an exception that `forward` returned for the row.
    """
    if isinstance(value, BaseException):
        return failed_row(row, value)
    try:
        return value if postprocess is None else postprocess(value)
    except HANDLER_FAULTS as error:
        return failed_row(row, error)


def failed_row(row: int, error: BaseException) -> FailedRow:
    """Convert a handler's exception to a FailedRow.

    The HTTP status is that of an ItemError, and 500 for other exceptions.
    """
    if not isinstance(error, ItemError):
        return FailedRow(row, 500, describe(error), error)
    try:
        status = error.status
    except HANDLER_FAULTS:  # a subclass without the call of super().__init__
        status = 500
    if not isinstance(status, int) or not 400 <= status <= 599:
        status = 500
    return FailedRow(row, int(status), exception_message(error), error if status >= 500 else None)
