"""Hive partitions: columns whose values are in file paths. Pure.

The path ``day=2024-01-01/rows.parquet`` has the column ``day``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa

from shoal_runtime.offline.errors import InvalidSettings
from shoal_runtime.offline.schemas import PARTITION, InputSchema, plain

NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_MOST: Final = 2**63
_SHOWN: Final = 60


@lru_cache(65536)
def partition_values(path: str) -> Mapping[str, str | None]:
    """Return the percent-decoded partition values in a path, by column name.

    Raises:
        InvalidSettings: a value is not UTF-8, or the path has two values of one column.
    """
    found: dict[str, str | None] = {}
    # The file's own name is not a partition, even with an equals sign.
    for part in path.split("/")[:-1]:
        name, _, value = part.partition("=")
        if not name or "=" not in part:
            continue
        try:
            # Bytes of the file system that are not UTF-8 are surrogates here, which encode() rejects.
            column, cell = (unquote(each.encode().decode(), errors="strict") for each in (name, value))
        except UnicodeError:
            raise InvalidSettings(
                f"the directory {part!a} of {path!a:.200} is not UTF-8 after percent-decoding. Rename it"
            ) from None
        known = None if value == NULL else cell
        if found.setdefault(column, known) != known:
            raise InvalidSettings(f"{path!a:.200} has two values of the column {column}. Rename one of the directories")
    return found


def partition_types(paths: Iterable[str]) -> dict[str, pa.DataType]:
    """Return the type of each partition column: int64 or text.

    A column whose values are all integers is int64; null is allowed beside integers.
    """
    values: dict[str, set[str | None]] = {}
    for path in paths:
        for name, value in partition_values(path).items():
            values.setdefault(name, set()).add(value)
    types = {}
    for name, found in values.items():
        whole = all(each is None or (_WHOLE.fullmatch(each) and -_MOST <= int(each) < _MOST) for each in found)
        # A column of nulls only is text.
        types[name] = pa.int64() if whole and found != {None} else pa.string()
    return types


def partitions_above(folder: str, paths: Iterable[str]) -> str:
    """Return the Hive partitions at the end of the path of the input.

    Args:
        folder: path of the directory or file that the input names.
        paths: paths of the files below this directory.

    Returns: Parts of the path, such as ``day=2024-01-01``; empty without partitions.
    """
    listed = list(paths)
    if len(listed) == 1 and (folder == listed[0] or folder.endswith(f"/{listed[0]}")):
        folder = folder.removesuffix(listed[0])
    found: list[str] = []
    # Only unbroken partitions at the end of the path count.
    for part in reversed(folder.rstrip("/").split("/")):
        if "=" not in part.strip("="):
            break
        found.insert(0, part)
    return "/".join(found)


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


def partition_cell(path: str, column: pa.Field) -> str | int | None:
    """Return a partition column's value for all rows of a file."""
    value = partition_values(path).get(column.name)
    return int(value) if value is not None and pa.types.is_integer(column.type) else value


def partition_column(own: Any, wanted: pa.Field, path: str, rows: int, faults: dict[int, str]) -> Any:
    """Return a partition column: the value in ``path`` for all rows.

    A row whose cell in the file differs from this value gets an error in ``faults``.
    """
    # The path wins over a column of the same name in the file.
    value = partition_cell(path, wanted)
    if own is not None and own.null_count < rows:
        for row, cell in enumerate(_comparable(own, wanted.type)):
            if cell is not None and cell != value:
                faults.setdefault(
                    row,
                    f"{wanted.name} is {str(cell)[:_SHOWN]!r} in the file and {str(value)!r} in its path",
                )
    return pa.repeat(pa.scalar(value, wanted.type), rows)


def _comparable(own: Any, kind: pa.DataType) -> list[Any]:
    """Convert a column's cells to the type of a partition.

    Cells that do not fit this type become text.
    """
    for wanted in (kind, pa.string()):
        try:
            found: list[Any] = plain(own).cast(wanted).to_pylist()
        except pa.ArrowException:
            continue
        if wanted == kind or len(found) == 1:
            return found
    if len(own) == 1:
        return [str(own[0].as_py()) if own[0].is_valid else None]
    return [cell for row in range(len(own)) for cell in _comparable(own.slice(row, 1), kind)]
