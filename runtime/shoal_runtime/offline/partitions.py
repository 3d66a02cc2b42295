"""Hive partitions: columns whose values stand in the paths of files, ``day=2024-01-01/rows.parquet``. Pure."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

import pyarrow as pa

from shoal_runtime.offline.errors import WrongSettings

NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_MOST: Final = 2**63


@lru_cache(65536)
def partition_values(path: str) -> Mapping[str, str | None]:
    """Return the values that a file's path names, by column; percent-encoding is decoded.

    Raises:
        WrongSettings: one is not text, or the path names two values of one column.
    """
    found: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, _, value = part.partition("=")
        if not name or "=" not in part:
            continue
        try:
            column, cell = (unquote(_text(each), errors="strict") for each in (name, value))
        except UnicodeError:
            raise WrongSettings(
                f"the folder {part!a} of {path!a:.200} is no UTF-8 once it is decoded: rename it"
            ) from None
        known = None if value == NULL else cell
        if found.setdefault(column, known) != known:
            raise WrongSettings(f"{path!a:.200} names two values of the column {column}: rename one of the folders")
    return found


def _text(part: str) -> str:
    """Return a part of a path, if it is text.

    Raises:
        UnicodeError: the file system holds other bytes there.
    """
    return part.encode().decode()


def partition_types(paths: Iterable[str]) -> dict[str, pa.DataType]:
    """Return the type of each column that paths name: whole numbers where all values are such, else text."""
    texts: dict[str, bool] = {}
    for path in paths:
        for name, value in partition_values(path).items():
            texts[name] = texts.get(name, False) or not (value is None or _is_whole(value))
    seen = {name for path in paths for name, value in partition_values(path).items() if value is not None}
    return {name: pa.string() if text or name not in seen else pa.int64() for name, text in texts.items()}


def _is_whole(value: str) -> bool:
    return bool(_WHOLE.fullmatch(value)) and -_MOST <= int(value) < _MOST


def partition_cell(path: str, column: pa.Field) -> str | int | None:
    """Return a partition column's value in all rows of a file."""
    value = partition_values(path).get(column.name)
    return int(value) if value is not None and pa.types.is_integer(column.type) else value


def partitions_above(folder: str, paths: Iterable[str]) -> str:
    """Return the partitions that an input's own folder is, as ``day=2024-01-01``; of a single file, its folder's.

    Args:
        folder: that the input names, or the one file.
        paths: of the files below it.
    """
    listed = list(paths)
    if len(listed) == 1 and (folder == listed[0] or folder.endswith(f"/{listed[0]}")):
        folder = folder.removesuffix(listed[0])
    found: list[str] = []
    for part in reversed(folder.rstrip("/").split("/")):
        if "=" not in part.strip("="):
            break
        found.insert(0, part)
    return "/".join(found)
