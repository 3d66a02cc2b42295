"""Hive partitions: columns whose values are in file paths, as in ``day=2024-01-01/rows.parquet``. Pure."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

import pyarrow as pa

from shoal_runtime.offline.errors import InvalidSettings

NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_MOST: Final = 2**63


@lru_cache(65536)
def partition_values(path: str) -> Mapping[str, str | None]:
    """Return the partition values in a file's path by column name, percent-decoded.

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
    """Return the type of each partition column: int64 if all values are integers, else text."""
    texts: dict[str, bool] = {}
    for path in paths:
        for name, value in partition_values(path).items():
            whole = value is None or (bool(_WHOLE.fullmatch(value)) and -_MOST <= int(value) < _MOST)
            texts[name] = texts.get(name, False) or not whole
    # A column of nulls only is text.
    seen = {name for path in paths for name, value in partition_values(path).items() if value is not None}
    return {name: pa.string() if text or name not in seen else pa.int64() for name, text in texts.items()}


def partition_cell(path: str, column: pa.Field) -> str | int | None:
    """Return a partition column's value for all rows of a file."""
    value = partition_values(path).get(column.name)
    return int(value) if value is not None and pa.types.is_integer(column.type) else value


def partitions_above(folder: str, paths: Iterable[str]) -> str:
    """Return the partitions in the path of the input itself, such as ``day=2024-01-01``.

    Args:
        folder: path of the directory or file that the input names.
        paths: paths of the files below this directory.
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
