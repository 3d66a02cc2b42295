"""Readers of Parquet, CSV, JSON lines and single files as windows of rows.

A cell that does not fit the schema, or a line that is not JSON, is an error of its row. A file that cannot be read is
an error of its shard.
"""

from codecs import BOM_UTF8
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from shoal_runtime.offline.csv_rows import FAULT, csv_names, csv_tables
from shoal_runtime.offline.directories import Directory, decompressed
from shoal_runtime.offline.errors import DirectoryUnavailable, JobError, ShardError
from shoal_runtime.offline.json_lines import from_lines
from shoal_runtime.offline.partitions import partition_cell
from shoal_runtime.offline.row_filter import RowFilter
from shoal_runtime.offline.schemas import check_names, is_partition
from shoal_runtime.offline.shards import InputFile, Shard, begins_in, readable
from shoal_runtime.offline.windows import CONTENT, PATH, Window, cast_table, regrouped, window_rows
from shoal_schema.resource.offline import RowFormat

FILES: Final = pa.schema([(PATH, pa.string()), (CONTENT, pa.binary())])
HEAD_BYTES: Final = 2**16
"""Bytes fetched at a time of a footer or header."""
BUFFER_BYTES: Final = 2**20
READERS: Final = 8
READ_ROWS: Final = 256
"""Rows read at first: a file does not state the size of its cells once they are decompressed."""
_READ_ERRORS: Final = (pa.ArrowException, OSError, ValueError, UnicodeError)


class TableSource:
    """Reader of an input's rows.

    Args:
        place: directory of the input's files.
        kind: format of the files.
        schema: schema of every window.
        where: row filter; None selects all rows.
        required: columns that every file must have.
        prefix: partitions in the path of the input's directory, such as ``day=2024-01-01``.
    """

    def __init__(
        self,
        place: Directory,
        kind: RowFormat,
        schema: pa.Schema,
        where: RowFilter | None = None,
        *,
        required: Collection[str] = (),
        prefix: str = "",
    ) -> None:
        self.schema = schema
        self._place = place
        self._required = frozenset(required)
        self._prefix = prefix
        self._read = {
            RowFormat.PARQUET: self._parquet,
            RowFormat.CSV: self._csv,
            RowFormat.JSON_LINES: self._json_lines,
            RowFormat.FILES: self._files,
        }[kind]
        self._where = where

    def windows(self, shard: Shard, batch_size: int) -> Iterator[Window]:
        """Yield the windows of a shard's rows that the filter selects, in order.

        Raises:
            ShardError: a file of the shard cannot be read.
        """
        with shard_errors(shard):
            for window in self._read(shard, batch_size):
                kept = window if self._where is None else filtered(window, self._where)
                if kept.table.num_rows:
                    yield kept

    def _parquet(self, shard: Shard, batch_size: int) -> Iterator[Window]:
        with self._place.open(shard.files[0]) as opened, parquet.ParquetFile(opened, buffer_size=BUFFER_BYTES) as file:
            footer = file.metadata
            groups = []
            for group in range(file.num_row_groups):
                columns = [footer.row_group(group).column(at) for at in range(footer.num_columns)]
                # The dictionary, if there is one, precedes the data.
                starts = [min(filter(None, (each.dictionary_page_offset, each.data_page_offset))) for each in columns]
                ends = [start + each.total_compressed_size for start, each in zip(starts, columns, strict=True)]
                # A row group belongs to the shard in which the middle of its bytes lies.
                if begins_in(shard, min(starts), max(ends)):
                    groups.append(group)
            if not groups:
                return
            size_bytes = sum(footer.row_group(group).total_byte_size for group in groups)
            count = sum(footer.row_group(group).num_rows for group in groups)
            rows = window_rows(size_bytes / max(count, 1), batch_size)
            here = self._checked(file.schema_arrow.names, shard.files[0])
            names = [name for name in self.schema.names if name in here]
            batches = file.iter_batches(min(rows, READ_ROWS), row_groups=groups, columns=names, use_threads=False)
            for table in regrouped((pa.Table.from_batches([each]) for each in batches), rows):
                share_bytes = shard.size_bytes * table.num_rows / count
                yield replace(cast_table(table, self.schema, self._path(shard)), share_bytes=share_bytes)

    def _checked(self, names: Sequence[str], file: InputFile) -> set[str]:
        """Return a file's column names as a set.

        Raises:
            ShardError: two columns have the same name, or a column that the model reads is missing.
        """
        check_names(names, readable(file.path))
        if missing := sorted(self._required.difference(names)):
            raise ShardError(f"{readable(file.path)} has no column {missing[0]}, which the model reads")
        return set(names)

    def _path(self, shard: Shard) -> str:
        return f"{self._prefix}/{shard.files[0].path}"

    def _csv(self, shard: Shard, batch_size: int) -> Iterator[Window]:
        file = shard.files[0]
        with self._place.open(file, HEAD_BYTES) as opened:
            names = csv_names(decompressed(opened, file.path))
        self._checked(names, file)
        with self._place.open(file) as opened:
            # Kept until the last window: dropping the stream would close the file.
            source = decompressed(opened, file.path)
            tables = csv_tables(source, names, self.schema.names)
            path = self._path(shard)

            def windows() -> Iterator[Window]:
                for table in regrouped(tables, window_rows(1, batch_size)):
                    window = cast_table(table, self.schema, path)
                    malformed = {row: why for row, why in enumerate(table.column(FAULT).to_pylist()) if why}
                    yield replace(window, faults={**window.faults, **malformed})

            yield from _measured(windows(), opened, shard)

    def _json_lines(self, shard: Shard, batch_size: int) -> Iterator[Window]:
        with self._place.open(shard.files[0]) as opened:
            path = self._path(shard)
            # Kept until the last window: dropping the stream would close the file.
            source = decompressed(opened, shard.files[0].path)

            def windows() -> Iterator[Window]:
                held: list[bytes] = []
                size_bytes = 0
                for line in lines_of(source, shard):
                    held.append(line)
                    size_bytes += len(line)
                    # The mean size of lines so far decides how many fit.
                    if len(held) >= window_rows(size_bytes / len(held), batch_size):
                        yield from_lines(held, self.schema, path)
                        held, size_bytes = [], 0
                if held:
                    yield from_lines(held, self.schema, path)

            yield from _measured(windows(), opened, shard)

    def _files(self, shard: Shard, batch_size: int) -> Iterator[Window]:
        rows = window_rows(shard.size_bytes / len(shard.files), batch_size)

        def content(file: InputFile) -> bytes | str:
            try:
                with self._place.open(file) as opened:
                    return opened.read()
            except DirectoryUnavailable:
                # Not an error of the row, which would be recorded as failed for good.
                raise
            except JobError as error:
                return str(error)

        with ThreadPoolExecutor(READERS, "read") as pool:
            for at in range(0, len(shard.files), rows):
                files = shard.files[at : at + rows]
                contents = list(pool.map(content, files))
                # A file that cannot be read is an error of its row.
                faults = {row: error for row, error in enumerate(contents) if isinstance(error, str)}
                columns: dict[str, Sequence[Any]] = {
                    PATH: [readable(each.path) for each in files],
                    CONTENT: [None if isinstance(each, str) else each for each in contents],
                }
                for each in self.schema:
                    if is_partition(each):
                        columns[each.name] = [partition_cell(f"{self._prefix}/{file.path}", each) for file in files]
                arrays = [pa.array(columns[each.name], each.type) for each in self.schema]
                table = pa.table(arrays, schema=self.schema)
                yield Window(table, faults, sum(each.size_bytes for each in files))


def lines_of(source: BinaryIO, shard: Shard) -> Iterator[bytes]:
    """Yield the non-empty lines whose first byte lies in a shard.

    Args:
        source: content of the shard's file, not compressed; seekable unless the shard covers the whole file.
        shard: byte range of the file.
    """
    at = 0
    if not shard.whole:
        # A line that began before the shard belongs to another; the byte before its start shows whether one did.
        source.seek(max(0, shard.start - 1))
        at = shard.start - 1 + len(source.readline()) if shard.start else 0
    for line in source:
        if not shard.whole and at >= shard.stop:
            return
        text = line if at else line.removeprefix(BOM_UTF8)
        at += len(line)
        if text.strip():
            yield text


def filtered(window: Window, where: RowFilter) -> Window:
    """Return the rows of a window that a filter selects.

    A row stays, with its error, if the filter depends on an unreadable cell or on text that is not a number.
    """
    found, unread = where.select(window.table)
    mask = found.so.copy()
    unknown = [row for row in np.flatnonzero(~found.known).tolist() if row in window.faults or row in unread]
    # Rows with errors stay, so that the error is reported.
    mask[unknown] = True
    faults = {**{row: unread[row] for row in unknown if row in unread}, **window.faults}
    places = {row: place for place, row in enumerate(np.flatnonzero(mask).tolist())}
    kept = {places[row]: why for row, why in faults.items() if row in places}
    return Window(window.table if mask.all() else window.table.filter(pa.array(mask)), kept, window.share_bytes)


def _measured(windows: Iterable[Window], opened: BinaryIO, shard: Shard) -> Iterator[Window]:
    """Set each window's ``share_bytes`` to the bytes read for it."""
    at = shard.start
    for each in windows:
        now = min(opened.tell(), shard.stop)
        yield replace(each, share_bytes=float(now - at))
        at = now


@contextmanager
def shard_errors(shard: Shard) -> Iterator[None]:
    """Raise errors of a shard's file as `ShardError`."""
    try:
        yield
    except _READ_ERRORS as error:
        raise ShardError(
            f"{readable(shard.files[0].path)} cannot be read: {str(error).splitlines()[0]:.300}"
        ) from error
    except JobError as error:
        raise ShardError(str(error)) from error
