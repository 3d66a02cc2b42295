"""Rows with column names as dicts: named tuples, dataclasses, numpy records, and rows of pandas and Spark.

Lists, tuples and arrays are positional. None of the libraries is imported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

import numpy as np

from shoal.errors import InvalidInput
from shoal.wire.columns import (
    are_places,
    check_order,
    check_twice,
    default_names,
    listed,
    matched_spelling,
    nameless,
    only_input,
    own_names,
)
from shoal.wire.signature import Signature, Tensor

_NAMELESS: Final = frozenset({list, tuple, dict, str, bytes, bool, int, float, type(None)})
"""The types of most rows and values, which have no names or are dicts already."""
_FIELDS: Final = ("_fields", "__fields__")
"""Attributes with the names of a tuple: Python's and Spark's."""
_INDEX: Final = "Index"
"""The field that DataFrame.itertuples() inserts before the columns."""


def by_name(row: Any, signature: Signature, tensor: Tensor | None = None) -> Any:
    """Convert a row with column names to a dict; return other rows unchanged.

    A pandas row whose names are positions becomes a list.

    Args:
        row: a row of any type.
        signature: the model's signature.
        tensor: the input whose value the row is; None for a row of the only input, or of all inputs.

    Raises:
        InvalidInput: the names are not columns, are duplicated, or the model has no names to match.
    """
    found = _names_and_values(row)
    if found is None:
        return row
    names, values = matched_spelling(found[0], signature), found[1]
    # Named tuples replace names that are no Python identifiers by _0, _1, ...
    if isinstance(row, tuple) and hasattr(row, "_fields") and any(name.startswith("_") for name in names):
        renamed = next(name for name in names if name.startswith("_"))
        raise InvalidInput(
            f"the field {renamed} of a {type(row).__name__} replaces a column name that is not a Python "
            "identifier. Pass"
            " the data frame itself, or dicts (`frame.to_dict('records')`)"
        )
    if type(row).__name__ == "Pandas" and names[:1] == [_INDEX]:
        if _INDEX in own_names(signature):
            raise InvalidInput(
                f"the field {_INDEX} of DataFrame.itertuples() may be the frame's index or its column {_INDEX!r}. Pass"
                " the data frame itself, or dicts (`frame.to_dict('records')`)"
            )
        names, values = names[1:], values[1:]
    check_twice(names)
    if _is_positional(row, names, signature, tensor or only_input(signature)):
        return values
    return dict(zip(names, values, strict=True))


def _names_and_values(row: Any) -> tuple[list[Any], list[Any]] | None:
    """Return the names and values of a row; None if it has no names."""
    if type(row) in _NAMELESS:
        return None
    if _is_row_of_pandas(row):
        return list(row.index), list(row)
    if is_dataclass(row) and not isinstance(row, type):
        # Not asdict, which would copy nested values.
        own = [field.name for field in fields(row)]
        return own, [getattr(row, name) for name in own]
    # Not for classes with an attribute of that name: rows are sequences.
    for attribute in _FIELDS:
        if isinstance(row, Sequence) and isinstance(names := getattr(row, attribute, None), list | tuple):
            return list(names), list(row)
    keys: list[Any] = []
    if isinstance(row, np.ndarray | np.generic):
        keys = list(row.dtype.names) if row.ndim == 0 and row.dtype.names else []
    elif not isinstance(row, Mapping) and not hasattr(type(row), "columns") and callable(getattr(row, "keys", None)):
        keys = list(row.keys())  # a database row
        if not keys:
            return [], []
    return (keys, [row[key] for key in keys]) if keys else None


def _is_row_of_pandas(value: Any) -> bool:
    """Return whether a value is a pandas Series; the index of a row holds its column names."""
    return hasattr(type(value), "iloc") and not hasattr(type(value), "columns")


def _is_positional(row: Any, names: Sequence[Any], signature: Signature, only: Tensor | None) -> bool:
    """Return whether the names of a row are mere positions.

    Raises:
        InvalidInput: the model has no names to match.
    """
    own = own_names(signature)
    if not own.isdisjoint(names):
        return False
    if only is None or only.is_json:
        return False
    check_order(names, signature)
    if default_names(names):
        return True
    if only.columns or not signature.row_shape(only):
        return False
    # An index of times or of arbitrary numbers belongs to a vector, not to a row of a table.
    if _is_row_of_pandas(row) and are_places(names):
        return True
    raise InvalidInput(nameless(signature, listed(names), "the values as a list"))
