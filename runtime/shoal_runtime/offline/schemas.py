"""Schemas of an input: column types, common types and conflicts. Pure.

Dictionaries, views, run-end encodings and extensions are storage forms of other types. CSV files and the paths of Hive
partitions hold text only. Such a column is marked as spelled: its cells are parsed where numbers are expected.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal_runtime.offline.errors import ShardError

SPELLED: Final[Mapping[bytes, bytes]] = {b"shoal": b"spelled"}
"""Metadata of a field with text that may represent numbers."""
PARTITION: Final[Mapping[bytes, bytes]] = {b"shoal": b"partition"}
"""Metadata of a field with values in the paths of the files."""
_TEXTS: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES: Final = (
    *(pa.types.is_binary, pa.types.is_large_binary),
    *(pa.types.is_binary_view, pa.types.is_fixed_size_binary),
)
_LISTS: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_VIEWS: Final = (pa.types.is_list_view, pa.types.is_large_list_view)
_TIMES: Final = (pa.types.is_timestamp, pa.types.is_date)
_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class InputSchema:
    """Common schema of an input's files, with conflicting and missing columns."""

    schema: pa.Schema
    """Of all files."""
    conflicts: Mapping[str, str] = field(default_factory=dict)
    """Error of each column without a common type; it may still be left out."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """First file without a column, by column."""


def is_spelled(column: pa.Field) -> bool:
    """Return whether a column's text may spell numbers, as in CSV files."""
    found = (column.metadata or {}).get(b"shoal")
    return found == b"spelled" or (found == b"partition" and is_text(column.type))


def is_partition(column: pa.Field) -> bool:
    """Return whether a column's values come from file paths (Hive partition)."""
    return (column.metadata or {}).get(b"shoal") == b"partition"


def is_text(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is text."""
    return any(each(kind) for each in _TEXTS)


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is bytes."""
    return any(each(kind) for each in _BYTES)


def is_list(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a list."""
    return any(each(kind) for each in _LISTS)


def is_time(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a date or a timestamp."""
    return any(each(kind) for each in _TIMES)


def is_file(kind: pa.DataType) -> bool:
    """Return whether a type is Hugging Face's struct of ``bytes``, ``path``."""
    names = {each.name for each in kind} if pa.types.is_struct(kind) else set()
    return names == {"bytes", "path"} and is_bytes(kind.field("bytes").type)


def holds_bytes(kind: pa.DataType) -> bool:
    """Return whether a column holds bytes, with or without a path."""
    return is_bytes(kind) or is_file(kind)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without its storage form, such as a dictionary or a view."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return reduce(pa.list_, reversed(kind.shape), kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if is_list(kind) or any(each(kind) for each in _VIEWS):
        value = plain_type(kind.value_type)
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(value, kind.list_size)
        return pa.list_(value) if pa.types.is_list(kind) else pa.large_list(value)
    # Large types, because a view may hold more than 2 GiB.
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return views.get(kind, kind)


def permuted(kind: pa.DataType) -> bool:
    """Return whether a tensor type stores its dimensions in a permuted order."""
    return isinstance(kind, pa.FixedShapeTensorType) and list(kind.permutation or []) not in (
        [],
        list(range(len(kind.shape))),
    )


def plain(column: Any) -> Any:
    """Return a column as one array without its storage form.

    Text and bytes get 64-bit offsets.
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    made = []
    for each in chunks:
        # Before the chunks are joined: more than 2 GiB of text do not fit 32-bit offsets.
        array = _plain_array(each)
        kind = _large_type(array.type)
        made.append(array if kind == array.type else array.cast(kind))
    if len(made) == 1:
        return made[0]
    return pa.concat_arrays(made) if made else pa.array([], _large_type(plain_type(column.type)))


def _plain_array(array: Any) -> Any:
    kind = array.type
    if isinstance(kind, pa.FixedShapeTensorType):
        # Nested lists of fixed sizes, from the inside out.
        size = int(np.prod(kind.shape, dtype=np.int64))
        column = array.storage.values.slice(array.storage.offset * size, len(array) * size)
        for length in reversed(kind.shape[1:]):
            column = pa.FixedSizeListArray.from_arrays(column, length)
        return pa.FixedSizeListArray.from_arrays(column, kind.shape[0], mask=array.is_null())
    if isinstance(kind, pa.BaseExtensionType):
        return _plain_array(array.storage)
    if pa.types.is_dictionary(kind):
        return _plain_array(array.dictionary.take(array.indices))
    if pa.types.is_run_end_encoded(kind):
        return _plain_array(pc.run_end_decode(array))
    if any(each(kind) for each in _VIEWS) or (is_list(kind) and plain_type(kind) != kind):
        if pa.types.is_fixed_size_list(kind):
            values = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
            return pa.FixedSizeListArray.from_arrays(_plain_array(values), kind.list_size, mask=array.is_null())
        # Built from lengths: the lists of a view may overlap, and a cast of views loses rows (pyarrow 26).
        lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), pa.int64())
        lists = pa.LargeListArray.from_arrays(offsets, _plain_array(array.flatten()), mask=array.is_null())
        return lists.cast(plain_type(kind))
    return array.cast(plain_type(kind)) if plain_type(kind) != kind else array


def _large_type(kind: pa.DataType) -> pa.DataType:
    return pa.large_string() if is_text(kind) else pa.large_binary() if is_bytes(kind) else kind


def storable(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a column is stored in a file.

    Views and run-end encodings, which few readers support, are replaced by plain types.
    """
    odd = (pa.types.is_string_view, pa.types.is_binary_view, pa.types.is_run_end_encoded, *_VIEWS)
    return plain_type(kind) if any(each(kind) for each in odd) else kind


def promoted(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that can hold the values of both types, or None.

    Text and bytes have no common type.
    """
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    # Dictionaries may differ in their index types only.
    if pa.types.is_dictionary(one) and pa.types.is_dictionary(other):
        return promoted(one.value_type, other.value_type)
    one, other = plain_type(one), plain_type(other)
    if is_list(one) and is_list(other):
        return _promoted_lists(one, other)
    # float64 holds all 32-bit integers; Arrow would choose a smaller float.
    wide = any(pa.types.is_integer(each) and each.bit_width >= 32 for each in (one, other))
    if {pa.types.is_floating(one), pa.types.is_floating(other)} == {True, False} and wide:
        return pa.float64()
    if is_text(one) != is_text(other) and is_bytes(one) != is_bytes(other):
        return None
    if any(map(pa.types.is_decimal, (one, other))):
        if any(map(pa.types.is_floating, (one, other))):
            return pa.float64()
        # Arrow's decimal for an integer has a digit less than the largest integers.
        one, other = (
            pa.decimal128(len(str(2**each.bit_width)), 0) if pa.types.is_integer(each) else each
            for each in (one, other)
        )
    try:
        fields = [pa.schema([pa.field("x", each)]) for each in (one, other)]
        return pa.unify_schemas(fields, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return None


def _promoted_lists(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    value = promoted(one.value_type, other.value_type)
    decimals = [pa.types.is_decimal(each.value_type) for each in (one, other)]
    # Fractions of a decimal would be rounded inside a list, where no cell can be an error of its own.
    if value is None or (any(decimals) and pa.types.is_floating(value)):
        return None
    if pa.types.is_fixed_size_list(one) and pa.types.is_fixed_size_list(other) and one.list_size == other.list_size:
        return pa.list_(value, one.list_size)
    large = pa.types.is_large_list(one) or pa.types.is_large_list(other)
    return pa.large_list(value) if large else pa.list_(value)


def unified(files: Iterable[tuple[str, pa.Schema]]) -> InputSchema:
    """Return the common schema of files.

    Columns are in order of their first appearance.

    Args:
        files: name and schema of each file.
    """
    # Most files have the same schema, which is compared once.
    distinct: dict[bytes, tuple[str, pa.Schema]] = {}
    for path, schema in files:
        distinct.setdefault(schema.serialize().to_pybytes(), (path, schema))
    kinds: dict[str, tuple[pa.DataType, str]] = {}
    metadata: dict[str, Any] = {}
    conflicts: dict[str, str] = {}
    for path, schema in distinct.values():
        for each in schema:
            metadata.setdefault(each.name, each.metadata)
            known, where = kinds.setdefault(each.name, (each.type, path))
            if (kind := promoted(known, each.type)) is None:
                conflicts.setdefault(
                    each.name,
                    f"the column {each.name} is {known} in {where} and {each.type} in {path}, and no type holds both."
                    " Convert one of them, or leave the column out with --keep",
                )
            elif kind != known:
                kinds[each.name] = (kind, path)
    missing: dict[str, str] = {}
    for path, schema in distinct.values():
        for name in kinds.keys() - set(schema.names):
            missing.setdefault(name, path)
    fields = [pa.field(name, storable(kind), metadata=metadata[name]) for name, (kind, _) in kinds.items()]
    return InputSchema(pa.schema(fields), conflicts, missing)


def check_names(names: Sequence[str], path: str) -> None:
    """Reject a file that has two columns of the same name.

    Raises:
        ShardError: two columns have the same name.
    """
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise ShardError(f"{path} has two columns called {few(twice)}. Rename one")


def few(names: Iterable[str]) -> str:
    """Return the first eight names as text, and the number of further names."""
    listed = list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more
