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
    return [_preprocess_row(row, inputs, signature, preprocess) for row in rows]


def _preprocess_row(
    row: int, inputs: Mapping[str, Array], signature: Signature, preprocess: Callable[[Any], Any] | None
) -> Any:
    try:
        item = row_item(inputs, row, signature)
        return item if preprocess is None else preprocess(item)
    except ItemError as error:
        return item_error(row, error)
    except BAD_ITEM as error:
        return FailedRow(row, 400, describe(error))
    except HANDLER_FAULTS as error:
        return FailedRow(row, 500, describe(error), error)


def postprocess_row(row: int, value: Any, postprocess: Callable[[Any], Any] | None) -> Any:
    """Return the row's outputs, or a FailedRow.

    Args:
        row: counted in the batch as it arrived.
        value: the row's part of what `forward` returned; an exception there is the row's error.
        postprocess: the handler's, if it has one.
    """
    if isinstance(value, BaseException):
        return forward_error(row, value)
    if postprocess is None:
        return value
    try:
        return postprocess(value)
    except ItemError as error:
        return item_error(row, error)
    except HANDLER_FAULTS as error:
        return FailedRow(row, 500, describe(error), error)


def forward_error(row: int, error: BaseException) -> FailedRow:
    """Return the error of a row for which `forward` gave an exception."""
    if isinstance(error, ItemError):
        return item_error(row, error)
    return FailedRow(row, 500, describe(error), error)


def item_error(row: int, error: ItemError) -> FailedRow:
    """Return the error of a row that the handler refused."""
    status = _status(error)
    return FailedRow(row, status, said(error), error if status >= 500 else None)


def _status(error: ItemError) -> int:
    try:
        status = error.status
    except HANDLER_FAULTS:  # a subclass that never called __init__
        return 500
    return int(status) if isinstance(status, int) and 400 <= status <= 599 else 500
