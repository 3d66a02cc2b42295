"""Columns of an input: from Parquet footers, CSV headers, JSON lines.

Types of JSON columns are inferred: from all lines in the first GiB of the input, then from the first 1,000 lines of
each further file.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import pyarrow as pa
from pyarrow import parquet

from shoal_runtime.offline.csv_rows import csv_names
from shoal_runtime.offline.directories import Directory, decompressed
from shoal_runtime.offline.errors import DirectoryUnavailable, JobError, ShardError
from shoal_runtime.offline.json_lines import chosen, kinds_of, parsed_line
from shoal_runtime.offline.partitions import partitions_above, with_partitions
from shoal_runtime.offline.schemas import SPELLED, InputSchema, check_names, unified
from shoal_runtime.offline.shards import InputFile, Shard, readable
from shoal_runtime.offline.tables import FILES, HEAD_BYTES, lines_of, shard_errors
from shoal_schema.resource.offline import RowFormat

_T = TypeVar("_T")
READERS: Final = 16
SCANNED_BYTES: Final = 2**30
SCANNED_LINES: Final = 1000


def find_columns(place: Directory, files: Sequence[InputFile], kind: RowFormat) -> InputSchema:
    """Return the columns of all readable files of an input.

    Raises:
        JobError: no file can be read, or a store is unavailable.
    """
    if kind is RowFormat.FILES:
        found = InputSchema(FILES)
    elif kind is RowFormat.JSON_LINES:
        found = chosen(_json_types(place, files))
    else:
        metadata = SPELLED if kind is RowFormat.CSV else None

        def schema_of(file: InputFile) -> tuple[str, pa.Schema]:
            path = readable(file.path)
            with place.open(file, HEAD_BYTES) as opened:
                if kind is RowFormat.CSV:
                    fields = [(name, pa.string()) for name in csv_names(decompressed(opened, file.path))]
                else:
                    # Field ids, metadata and nullability differ between files of one input.
                    fields = [(each.name, each.type) for each in parquet.read_schema(opened)]
            check_names([name for name, _ in fields], path)
            return path, pa.schema([pa.field(*each, metadata=metadata) for each in fields])

        found = unified(_each(files, schema_of))
    # Partitions stand in the paths, not in the files.
    paths = [each.path for each in files]
    return with_partitions(found, paths, partitions_above(place.shown, paths))


def _each(files: Sequence[InputFile], read: Callable[[InputFile], _T]) -> Iterable[_T]:
    """Apply ``read`` to files in parallel; yield results of readable files.

    Raises:
        JobError: no file can be read.
    """

    def tried(file: InputFile) -> _T | ShardError:
        try:
            with shard_errors(Shard("", (file,), 0, file.size_bytes)):
                return read(file)
        except ShardError as error:
            # An unavailable store would hide all files, so it is not the fault of one.
            if isinstance(error.__cause__, DirectoryUnavailable):
                raise error.__cause__ from None
            return error

    failed: ShardError | None = None
    found = False
    with ThreadPoolExecutor(READERS, "columns") as pool:
        for each in pool.map(tried, files):
            if isinstance(each, ShardError):
                failed = failed or each
            else:
                found = True
                yield each
    if failed is not None and not found:
        raise JobError(str(failed))


def _json_types(place: Directory, files: Sequence[InputFile]) -> dict[str, Counter[pa.DataType]]:
    """Count the types of the values of each JSON key, over all files."""
    ends = itertools.accumulate(each.size_bytes for each in files)
    # Infinite within the first GiB of the input: a compressed file holds more than its size.
    limits_bytes = {
        file.path: math.inf if end <= SCANNED_BYTES else max(0, SCANNED_BYTES + file.size_bytes - end)
        for file, end in zip(files, ends, strict=True)
    }

    def of_file(file: InputFile) -> dict[str, Counter[pa.DataType]]:
        counted: dict[str, Counter[pa.DataType]] = {}
        read_bytes = 0
        with place.open(file) as opened:
            lines = lines_of(decompressed(opened, file.path), Shard("", (file,), 0, file.size_bytes))
            while some := list(itertools.islice(lines, SCANNED_LINES)):
                read_bytes += sum(map(len, some))
                _add(counted, kinds_of([row for row in map(parsed_line, some) if isinstance(row, dict)]))
                if read_bytes >= limits_bytes[file.path]:
                    break
        if read_bytes and not counted:
            raise ShardError(
                f"{readable(file.path)} has no lines that are JSON objects. Split an array into lines with jq -c '.[]'"
            )
        return counted

    total: dict[str, Counter[pa.DataType]] = {}
    for counted in _each(files, of_file):
        _add(total, counted)
    return total


def _add(total: dict[str, Counter[pa.DataType]], counted: dict[str, Counter[pa.DataType]]) -> None:
    for name, counter in counted.items():
        total.setdefault(name, Counter()).update(counter)
