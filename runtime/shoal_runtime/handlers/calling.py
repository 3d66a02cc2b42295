"""Calling a handler's per-row methods so that one bad row fails alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal_runtime.errors import FailedRow, ItemError
from shoal_runtime.faults import HANDLER_FAULTS, describe, said
from shoal_runtime.handlers.items import row_item
from shoal_runtime.handlers.signature import Signature
from shoal_schema.wire.datatypes import Array

BAD_ITEM = (ValueError, TypeError, KeyError, OSError)
"""What `preprocess` raises for a bad item (PIL's UnidentifiedImageError is an OSError)."""


def preprocess_rows(
    rows: Sequence[int], inputs: Mapping[str, Array], signature: Signature, preprocess: Callable[[Any], Any] | None
) -> list[Any]:
    """Return what `preprocess` makes of each row, in order; a FailedRow where it raised."""

    def made_of(row: int) -> Any:
        try:
            item = row_item(inputs, row, signature)
            return item if preprocess is None else preprocess(item)
        except HANDLER_FAULTS as error:
            bad_item = isinstance(error, BAD_ITEM) and not isinstance(error, ItemError)
            return FailedRow(row, 400, describe(error)) if bad_item else failed_row(row, error)

    return [made_of(row) for row in rows]


def postprocess_row(row: int, value: Any, postprocess: Callable[[Any], Any] | None) -> Any:
    """Return the row's outputs, or a FailedRow.

    ``value`` is the row's part of what `forward` returned; an exception there is the row's error.
    """
    if isinstance(value, BaseException):
        return failed_row(row, value)
    try:
        return value if postprocess is None else postprocess(value)
    except HANDLER_FAULTS as error:
        return failed_row(row, error)


def failed_row(row: int, error: BaseException) -> FailedRow:
    """Return what becomes of a row for which the handler raised; an ItemError has a status of its own."""
    if not isinstance(error, ItemError):
        return FailedRow(row, 500, describe(error), error)
    try:
        status = error.status
    except HANDLER_FAULTS:  # a subclass that never called __init__
        status = 500
    if not isinstance(status, int) or not 400 <= status <= 599:
        status = 500
    return FailedRow(row, int(status), said(error), error if status >= 500 else None)
