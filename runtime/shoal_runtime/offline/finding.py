"""Which columns an input has: the footers of all Parquet files, the headers of all CSV files, the lines of JSON.

Types of JSON are found by reading it: all of the first GiB, and the first 1,000 lines of every file after it.
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
from shoal_runtime.offline.errors import JobError, PlaceAway, ShardError
from shoal_runtime.offline.json_lines import parsed_line
from shoal_runtime.offline.kinds import SPELLED
from shoal_runtime.offline.partitions import partitions_above
from shoal_runtime.offline.places import Place
from shoal_runtime.offline.schemas import Found, check_names, chosen, kinds_of, unified, with_partitions
from shoal_runtime.offline.shards import File, Shard, readable
from shoal_runtime.offline.tables import FILES, lines_of, told
from shoal_schema.resource.offline import RowFormat

_T = TypeVar("_T")
READERS: Final = 16
SCANNED_BYTES: Final = 2**30
SCANNED_LINES: Final = 1000
FOOTER_BYTES: Final = 2**16


def find_columns(place: Place, files: Sequence[File], kind: RowFormat) -> Found:
    """Return the columns of an input. A file that cannot be read is left out: it may be put right later.

    Raises:
        JobError: none can be read, or a store is away.
    """
    if kind is RowFormat.FILES:
        found = Found(FILES)
    elif kind is RowFormat.JSON_LINES:
        found = _json_columns(place, files)
    else:
        read = _footer if kind is RowFormat.PARQUET else _header
        pairs = _each(files, lambda file: (readable(file.path), read(place, file)))
        found = unified(pairs)
    paths = [each.path for each in files]
    return with_partitions(found, paths, partitions_above(place.shown, paths))


def _each(files: Sequence[File], read: Callable[[File], _T]) -> Iterable[_T]:
    """Yield what was read of each file, in order, many at a time."""

    def tried(file: File) -> _T | ShardError:
        try:
            with told(Shard("", (file,), 0, file.size_bytes)):
                return read(file)
        except ShardError as error:
            if isinstance(error.__cause__, PlaceAway):
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


def _footer(place: Place, file: File) -> pa.Schema:
    with place.open(file, FOOTER_BYTES) as opened, parquet.ParquetFile(opened) as known:
        schema: pa.Schema = known.schema_arrow
    check_names(schema.names, readable(file.path))
    # What else a field says (ids, that it holds no nulls) is the file's own.
    return pa.schema([pa.field(each.name, each.type) for each in schema])


def _header(place: Place, file: File) -> pa.Schema:
    names = csv_names(place, file)
    check_names(names, readable(file.path))
    return pa.schema([pa.field(name, pa.string(), metadata=SPELLED) for name in names])


def _json_columns(place: Place, files: Sequence[File]) -> Found:
    ends = itertools.accumulate(each.size_bytes for each in files)
    # A compressed file holds more than its size.
    most = {
        file.path: math.inf if end <= SCANNED_BYTES else max(0, SCANNED_BYTES + file.size_bytes - end)
        for file, end in zip(files, ends, strict=True)
    }
    counted: dict[str, Counter[pa.DataType]] = {}
    for kinds in _each(files, lambda file: _json_kinds(place, file, most[file.path])):
        for name, counter in kinds.items():
            counted.setdefault(name, Counter()).update(counter)
    return chosen(counted)


def _json_kinds(place: Place, file: File, most_bytes: float) -> dict[str, Counter[pa.DataType]]:
    counted: dict[str, Counter[pa.DataType]] = {}
    read_bytes = 0
    with place.open(file) as opened:
        lines = lines_of(opened, Shard("", (file,), 0, file.size_bytes))
        while some := list(itertools.islice(lines, SCANNED_LINES)):
            read_bytes += sum(map(len, some))
            for name, counter in kinds_of([row for row in map(parsed_line, some) if isinstance(row, dict)]).items():
                counted.setdefault(name, Counter()).update(counter)
            if read_bytes >= most_bytes:
                break
    if read_bytes and not counted:
        raise ShardError(f"{readable(file.path)} has no lines of JSON that are objects: jq -c '.[]' makes them")
    return counted
