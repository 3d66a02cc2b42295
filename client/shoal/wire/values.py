"""Values of columns: nulls, dates as text, and numbers. pandas and Arrow are not imported."""

from typing import Any, Final

import numpy as np

from shoal.errors import InvalidInput
from shoal.wire.datatypes import object_array
from shoal.wire.signature import Tensor
from shoal_schema.wire.columns import NULL
from shoal_schema.wire.datatypes import FIRST_ROUNDED, Array, first_rounded

_NULLS: Final = ("NAType", "NaTType")
"""Type names of pandas.NA and pandas.NaT."""


def column_values(column: Any) -> Array:
    """Return a column's values (Arrow, pandas, polars, numpy or list), with None for marked nulls."""
    if hasattr(type(column), "to_pylist"):  # Arrow
        column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
        zoned = getattr(column.type, "tz", None) is not None  # numpy's times have no zone
        if column.null_count or zoned:
            return object_array(column.to_pylist(), (len(column),))
        arrow: Array = column.to_numpy(zero_copy_only=False)
        return arrow
    if isinstance(column, np.ndarray):
        return column
    if hasattr(column, "isna"):  # pandas
        boxed = not isinstance(column.dtype, np.dtype) or column.dtype == object
        missing = np.asarray(column.isna()) if boxed else None
        if missing is None or not missing.any():
            return np.asarray(column.to_numpy())
        values = column.to_numpy(dtype=object)
        return object_array(
            (None if null else each for null, each in zip(missing, values, strict=True)), (len(values),)
        )
    if hasattr(column, "to_numpy"):  # polars
        counted = getattr(column, "null_count", None)
        nulls = counted() if callable(counted) else 0
        return object_array(column.to_list(), (len(column),)) if nulls else np.asarray(column.to_numpy())
    return object_array(column, (len(column),)) if isinstance(column, list | tuple) else np.asarray(column)


def is_null(value: Any) -> bool:
    """Return whether a value is None, pandas.NA or NaT."""
    if value is None or type(value).__name__ in _NULLS:
        return True
    return isinstance(value, np.datetime64 | np.timedelta64) and bool(np.isnat(value))


def is_gap(value: Any) -> bool:
    """Return whether a value in a column of text is null.

    NaN counts as null, since pandas uses it in columns of text.
    """
    return is_null(value) or (isinstance(value, float | np.floating) and bool(value != value))  # noqa: PLR0124 (NaN)


def null_of(tensor: Tensor) -> Any:
    """Return the representation of null for an input.

    Raises:
        InvalidInput: the input does not accept null.
    """
    if not tensor.nullable:
        raise InvalidInput(f"input {tensor.name!r} does not accept null")
    return NULL if tensor.datatype == "BYTES" else np.nan


def date_text(value: Any, tensor: Tensor) -> bytes:
    """Return a date as text in ISO 8601.

    If the model declares the unit of numbers, a number since 1970 becomes its digits.

    Raises:
        InvalidInput: the value is not a date.
    """
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value)).encode()
    if hasattr(value, "isoformat") and hasattr(value, "year"):  # date, datetime, pandas' Timestamp
        return str(value.isoformat()).encode()
    # A column of dates as numbers with nulls is a column of floats.
    if isinstance(value, float | np.floating) and tensor.unit:
        number = float(value)
        value = int(number) if number.is_integer() and abs(number) < FIRST_ROUNDED else value
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and tensor.unit:
        return b"%d" % int(value)
    numbers = f", or whole numbers of {tensor.unit} since 1970" if tensor.unit else ""
    raise InvalidInput(f"input {tensor.name} takes dates, ISO 8601 texts{numbers}, not {value!r:.100}")


def without_flags(value: Any, tensor: Tensor) -> Any:
    """Convert booleans to 1 and 0 for an input that takes numbers.

    pandas converts booleans likewise. Other values are returned unchanged.
    """
    if tensor.datatype in ("BOOL", "BYTES"):
        return value
    if isinstance(value, bool | np.bool_):
        return int(value)
    if not isinstance(value, np.ndarray) or value.ndim > 1 or value.dtype.kind not in "bO":
        return value
    if value.dtype == object:
        return object_array(
            [int(each) if isinstance(each, bool | np.bool_) else each for each in value.flat], value.shape
        )
    return value.astype(np.int8)


def numbers_of(value: Any, tensor: Tensor, wanted: np.dtype[Any]) -> Array:
    """Return a value or nested values as an array, with NaN for null.

    Raises:
        InvalidInput: a null that the input does not accept, or a boolean where it takes numbers.
        ValueError: lists have different lengths.
    """
    if isinstance(value, list | tuple) and wanted.kind != "b" and bool in set(map(type, value)):
        raise InvalidInput(f"input {tensor.name}: takes {tensor.datatype}, not bool")
    array = np.asarray(value)
    if array.dtype == object:
        # The common type of the elements.
        found = [null_of(tensor) if is_null(each) else each for each in array.flat]
        # numpy's booleans count as Python's.
        kinds = {bool if isinstance(each, np.bool_) else type(each) for each in found}
        if bool in kinds and (wanted.kind != "b" or len(kinds) > 1):
            raise InvalidInput(f"input {tensor.name}: takes {tensor.datatype}, not bool among other values")
        if any(issubclass(kind, str | bytes) for kind in kinds):
            raise InvalidInput(f"input {tensor.name}: takes {tensor.datatype}, not text")
        made = np.asarray(found)
        array = made.reshape(array.shape) if made.ndim == 1 else made.reshape(array.shape + made.shape[1:])
    if array.dtype.kind != "f" or wanted.kind not in "iu":
        return array
    # Floats with integral values become integers; others stay, and the cast to the datatype rejects them.
    if np.isnan(array).any():
        null_of(tensor)  # raises: integers are never nullable
    limits, rounded = np.iinfo(wanted), first_rounded(array.dtype)
    with np.errstate(invalid="ignore"):
        exact = (np.trunc(array) == array) & (np.abs(array) < rounded) & (array >= limits.min) & (array <= limits.max)
    return array.astype(wanted) if exact.all() else array
