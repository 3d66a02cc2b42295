"""The columns of all files of an input: names, types that hold what each file has, and where there is none. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from shoal_runtime.offline.errors import ShardError
from shoal_runtime.offline.kinds import PARTITION, is_list, promoted, storable
from shoal_runtime.offline.partitions import partition_types

NO_TYPE: Final = "holds nothing but what is of no type, or beyond 64 bits"
_TOLD: Final = 8


@dataclass(frozen=True, slots=True)
class Found:
    """The columns of an input.

    Args:
        schema: of all files.
        conflicts: why a column has no type that holds what all files have; it may still be left out.
        missing: the first file that does not have a column.
    """

    schema: pa.Schema
    conflicts: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


def unified(files: Iterable[tuple[str, pa.Schema]]) -> Found:
    """Return the columns of tables, in the order in which they first appear.

    Args:
        files: the name and the columns of each.
    """
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
                conflicts.setdefault(each.name, _conflict(each.name, known, where, each.type, path))
            elif kind != known:
                kinds[each.name] = (kind, path)
    missing: dict[str, str] = {}
    for path, schema in distinct.values():
        for name in kinds.keys() - set(schema.names):
            missing.setdefault(name, path)
    fields = [pa.field(name, storable(kind), metadata=metadata[name]) for name, (kind, _) in kinds.items()]
    return Found(pa.schema(fields), conflicts, missing)


def _conflict(name: str, one: pa.DataType, first: str, other: pa.DataType, second: str) -> str:
    return (
        f"the column {name} is {one} in {first} and {other} in {second}, and no type holds both: convert one of them,"
        f" or leave the column out with --keep"
    )


def with_partitions(found: Found, paths: Sequence[str], prefix: str) -> Found:
    """Return the columns with those that paths name.

    Args:
        found: the columns of the files.
        paths: of the files, below the folder that the input names.
        prefix: partitions of that folder itself; a column of the same name in the files is not theirs.
    """
    below = partition_types(paths)
    above = {name: kind for name, kind in partition_types([f"{prefix}/"]).items() if name not in found.schema.names}
    kinds = {**above, **below}
    fields = [each for each in found.schema if each.name not in kinds]
    fields += [pa.field(name, kind, metadata=PARTITION) for name, kind in kinds.items()]
    conflicts = {name: said for name, said in found.conflicts.items() if name not in kinds}
    missing = {name: path for name, path in found.missing.items() if name not in kinds}
    return Found(pa.schema(fields), conflicts, missing)


def kinds_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Counter[pa.DataType]]:
    """Return of each key of JSON objects how many values are of which type."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _kinds([row.get(name) for row in rows]) for name in names}


def _kinds(cells: Sequence[Any]) -> Counter[pa.DataType]:
    if (kind := _inferred(cells)) is not None:
        return Counter({kind: sum(cell is not None for cell in cells)})
    each = [(cell, _inferred([cell])) for cell in cells if cell is not None]
    return Counter(kind for _, kind in each if kind is not None)


def _inferred(cells: Sequence[Any]) -> pa.DataType | None:
    try:
        return pa.array(cells).type
    except (pa.ArrowException, OverflowError):
        return None


def chosen(counted: Mapping[str, Counter[pa.DataType]]) -> Found:
    """Return the columns of JSON objects: each of the type of most values, widened to hold all others that it can."""
    fields, conflicts = [], {}
    for name, counter in counted.items():
        kind = pa.null()
        for other, _ in counter.most_common():
            kind = kind if (both := promoted(kind, other)) is None else both
        if not counter:
            conflicts[name] = f"the column {name} {NO_TYPE}"
        elif _is_empty(kind):
            conflicts[name] = f"the column {name} holds objects without keys: leave it out with --keep"
        fields.append(pa.field(name, pa.string() if pa.types.is_null(kind) else kind))
    return Found(pa.schema(fields), conflicts)


def _is_empty(kind: pa.DataType) -> bool:
    """Return whether a type has no field where Parquet needs one."""
    if pa.types.is_struct(kind):
        return kind.num_fields == 0 or any(_is_empty(each.type) for each in kind)
    return is_list(kind) and _is_empty(kind.value_type)


def check_names(names: Sequence[str], path: str) -> None:
    """Refuse a file two of whose columns have one name.

    Raises:
        ShardError: it is one.
    """
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise ShardError(f"{path} has two columns called {few(twice)}: give them names of their own")


def few(names: Iterable[str]) -> str:
    """Return the first of some names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - _TOLD} more" if len(listed) > _TOLD else ""
    return ", ".join(listed[:_TOLD]) + more
