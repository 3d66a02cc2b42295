"""Rows that carry the names of their columns: named tuples, dataclasses, records and rows of pandas, by name as dicts.

Lists, tuples and arrays have no names: they are positional. None of the libraries is imported here.
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
    nameless,
    only_input,
    own_names,
    respelled,
)
from shoal.wire.signature import Signature, Tensor

_NAMELESS: Final = frozenset({list, tuple, dict, str, bytes, bool, int, float, type(None)})
"""The types of most rows and values: none of them has names, or it is a dict already."""
_FIELDS: Final = ("_fields", "__fields__")
"""Where tuples have names: those of Python, and those of Spark."""
_INDEX: Final = "Index"
"""The field that DataFrame.itertuples() puts before the columns."""


def by_name(row: Any, signature: Signature, tensor: Tensor | None = None) -> Any:
    """Return a row that carries names as a dict of its columns, or as a list where its names are places; else as it is.

    Args:
        row: of any kind.
        signature: the model's.
        tensor: the input of which it is the value; None: a row of the only one, or of all.

    Raises:
        InvalidInput: its names are not those of columns, are there twice, or cannot be compared with the model's.
    """
    found = _names_and_values(row)
    if found is None:
        return row
    names, values = respelled(found[0], signature), found[1]
    if isinstance(row, tuple) and hasattr(row, "_fields") and any(name.startswith("_") for name in names):
        renamed = next(name for name in names if name.startswith("_"))
        raise InvalidInput(
            f"the field {renamed} of a {type(row).__name__} is a column whose name was replaced, since it is none of"
            " Python's: give the data frame itself, or dicts (`frame.to_dict('records')`)"
        )
    if type(row).__name__ == "Pandas" and names[:1] == [_INDEX]:
        names, values = _without_index(names, values, signature)
    check_twice(names)
    if _is_positional(row, names, signature, tensor or only_input(signature)):
        return values
    return dict(zip(names, values, strict=True))


def _names_and_values(row: Any) -> tuple[list[Any], list[Any]] | None:
    """Return the names that a row carries, and its values; None if it carries none."""
    if type(row) in _NAMELESS:
        return None
    if _is_row_of_pandas(row):
        return list(row.index), list(row)
    if is_dataclass(row) and not isinstance(row, type):
        own = [field.name for field in fields(row)]
        return own, [getattr(row, name) for name in own]
    for attribute in _FIELDS:
        if isinstance(row, Sequence) and isinstance(names := getattr(row, attribute, None), list | tuple):
            return list(names), list(row)
    keys = _keys(row)
    return None if keys is None else (keys, [row[key] for key in keys])


def _keys(row: Any) -> list[Any] | None:
    """Return the names of the fields of a numpy record, or of a database's row."""
    if isinstance(row, np.ndarray | np.generic):
        return list(row.dtype.names) if row.ndim == 0 and row.dtype.names else None
    if isinstance(row, Mapping) or hasattr(type(row), "columns") or not callable(getattr(row, "keys", None)):
        return None
    return list(row.keys())


def _is_row_of_pandas(value: Any) -> bool:
    """Return whether a value is a series: as a row, its index has the names of the columns."""
    return hasattr(type(value), "iloc") and not hasattr(type(value), "columns")


def _without_index(names: list[Any], values: list[Any], signature: Signature) -> tuple[list[Any], list[Any]]:
    """Return a row of DataFrame.itertuples() without the frame's index."""
    if _INDEX in own_names(signature):
        raise InvalidInput(
            f"the field {_INDEX} of DataFrame.itertuples() may be the index of the frame or its column {_INDEX!r}: give"
            " the data frame itself, or dicts (`frame.to_dict('records')`)"
        )
    return names[1:], values[1:]


def _is_positional(row: Any, names: Sequence[Any], signature: Signature, only: Tensor | None) -> bool:
    """Return whether the names of a row are none.

    Raises:
        InvalidInput: the model has none that they can be compared with.
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
    # The index of a series may be times or numbers of a longer one: that is a vector, not a row of a table.
    if _is_row_of_pandas(row) and are_places(names):
        return True
    raise InvalidInput(nameless(signature, listed(names), "the values as a list"))
