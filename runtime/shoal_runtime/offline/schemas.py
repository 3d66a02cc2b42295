"""The common schema of an input's files, and conflicts between files. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from shoal_runtime.offline.column_types import PARTITION, is_list, promoted, storable
from shoal_runtime.offline.errors import ShardError
from shoal_runtime.offline.partitions import partition_types

NO_TYPE: Final = "holds only values without a type, or beyond 64 bits"
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


def unified(files: Iterable[tuple[str, pa.Schema]]) -> InputSchema:
    """Return the common schema of files; columns are in order of their first appearance.

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


def with_partitions(found: InputSchema, paths: Sequence[str], prefix: str) -> InputSchema:
    """Add partition columns to an input's schema.

    Args:
        found: schema of the files.
        paths: paths of the files below the input's directory.
        prefix: partitions in the path of that directory; a column of the files has precedence over these.
    """
    below = partition_types(paths)
    above = {name: kind for name, kind in partition_types([f"{prefix}/"]).items() if name not in found.schema.names}
    kinds = {**above, **below}
    fields = [each for each in found.schema if each.name not in kinds]
    fields += [pa.field(name, kind, metadata=PARTITION) for name, kind in kinds.items()]
    conflicts = {name: error for name, error in found.conflicts.items() if name not in kinds}
    missing = {name: path for name, path in found.missing.items() if name not in kinds}
    return InputSchema(pa.schema(fields), conflicts, missing)


def kinds_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Counter[pa.DataType]]:
    """Count the types of the values of each key, over JSON objects."""
    counted = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        cells = [row[name] for row in rows if row.get(name) is not None]
        if (kind := _inferred(cells)) is not None:
            counted[name] = Counter({kind: len(cells)})
        else:
            # Values of several types: each is inferred alone.
            counted[name] = Counter(kind for cell in cells if (kind := _inferred([cell])) is not None)
    return counted


def _inferred(cells: Sequence[Any]) -> pa.DataType | None:
    # Arrow infers int64 for integers, and fails for one beyond it.
    for kind in (None, pa.uint64()):
        with suppress(pa.ArrowException, OverflowError):
            return pa.array(cells, kind).type
    return None


def chosen(counted: Mapping[str, Counter[pa.DataType]]) -> InputSchema:
    """Return the schema of JSON objects from the counted types of each key.

    A column has its most frequent type, widened to hold the values of the others where possible.
    """
    fields, conflicts = [], {}
    for name, counter in counted.items():
        kind = pa.null()
        for other, _ in counter.most_common():
            kind = kind if (both := promoted(kind, other)) is None else both
        if not counter:
            conflicts[name] = f"the column {name} {NO_TYPE}"
        elif _is_empty(kind):
            conflicts[name] = f"the column {name} holds objects without keys. Leave it out with --keep"
        fields.append(pa.field(name, pa.string() if pa.types.is_null(kind) else kind))
    return InputSchema(pa.schema(fields), conflicts)


def _is_empty(kind: pa.DataType) -> bool:
    """Return whether a type has a struct without fields, which Parquet does not support."""
    if pa.types.is_struct(kind):
        return kind.num_fields == 0 or any(_is_empty(each.type) for each in kind)
    return is_list(kind) and _is_empty(kind.value_type)


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
