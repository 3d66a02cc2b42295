"""Rows as they are read: windows of a shard, as Arrow tables of one schema, and which rows of them are not readable.

A cell that does not fit the schema, or a line that is no JSON, is a fault of its row; a file that cannot be read at all
is a fault of its shard.
"""

import itertools
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from shoal_runtime.codecs.json_data import exact_json
from shoal_runtime.offline.errors import JobError, PlaceAway, ShardError
from shoal_runtime.offline.places import Place
from shoal_runtime.offline.shards import File, Shard, begins_in, readable
from shoal_runtime.offline.windows import CONTENT, PATH, TARGET_BYTES, Window, window_rows
from shoal_schema.resource.offline import RowFormat

FILES: Final = pa.schema([(PATH, pa.string()), (CONTENT, pa.binary())])
SNIFFED_BYTES: Final = 2**20
SNIFFED_LINES: Final = 1000
BLOCK_BYTES: Final = 4 * 2**20
BUFFER_BYTES: Final = 2**20
READERS: Final = 8
READ_ROWS: Final = 256
_FAULTS: Final = (pa.ArrowException, OSError, ValueError, UnicodeError)


class Source:
    """The rows of an input.

    Args:
        place: where its files are.
        kind: how they are stored.
        schema: of every window.
        where: which rows are meant; None: all.
    """

    def __init__(self, place: Place, kind: RowFormat, schema: pa.Schema, where: pc.Expression | None = None) -> None:
        self.schema = schema
        self._place = place
        self._read = {
            RowFormat.PARQUET: self._parquet,
            RowFormat.CSV: self._csv,
            RowFormat.JSON_LINES: self._json_lines,
            RowFormat.FILES: self._files,
        }[kind]
        self._where = where

    def windows(self, shard: Shard, batch_size: int) -> Iterator[Window]:
        """Yield a shard's rows in order.

        Raises:
            ShardError: its file cannot be read.
        """
        with _told(shard):
            for window in self._read(shard, batch_size):
                kept = window if self._where is None else filtered(window, self._where)
                if kept.table.num_rows:
                    yield kept

    def _parquet(self, shard: Shard, batch_size: int) -> Iterator[Window]:
        with self._place.open(shard.files[0]) as opened, parquet.ParquetFile(opened, buffer_size=BUFFER_BYTES) as file:
            known = file.metadata
            groups = [
                group for group in range(file.num_row_groups) if begins_in(shard, *_extent(known.row_group(group)))
            ]
            if not groups:
                return
            size_bytes = sum(known.row_group(group).total_byte_size for group in groups)
            count = sum(known.row_group(group).num_rows for group in groups)
            rows = window_rows(size_bytes / max(count, 1), batch_size)
            check_names(file.schema_arrow.names, shard.files[0])
            names = [name for name in self.schema.names if name in file.schema_arrow.names]
            # A file does not say how large its cells are once they are unpacked: a few at a time, until it shows.
            batches = file.iter_batches(min(rows, READ_ROWS), row_groups=groups, columns=names, use_threads=False)
            for table in regrouped((pa.Table.from_batches([each]) for each in batches), rows):
                share_bytes = shard.size_bytes * table.num_rows / count
                yield replace(fitted(table, self.schema), share_bytes=share_bytes)

    def _csv(self, shard: Shard, batch_size: int) -> Iterator[Window]:
        with self._place.open(shard.files[0]) as opened:
            texts = csv.ConvertOptions(
                column_types=dict.fromkeys(self.schema.names, pa.string()),
                include_columns=self.schema.names,
                include_missing_columns=True,
                # Texts such as NA are what somebody wrote; where numbers are read, `_marked` knows them.
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            )
            options = csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False)
            bad: dict[int, str] = {}
            with csv.open_csv(_plain(opened, shard.files[0]), options, _parsing(bad), texts) as reader:
                read = (pa.Table.from_batches([each]) for each in reader)
                # The last lines may be bad ones, and of no batch.
                last = (reader.schema.empty_table() for _ in range(1))
                tables = with_bad_lines(itertools.chain(read, last), bad)
                windows = (self._marked(each) for each in regrouped(tables, window_rows(1, batch_size)))
                yield from _measured(windows, opened, shard)

    def _marked(self, table: pa.Table) -> Window:
        window = fitted(_without_words(table, self.schema), self.schema)
        said = {row: why for row, why in enumerate(table.column(_FAULT).to_pylist()) if why}
        return replace(window, faults={**window.faults, **said})

    def _json_lines(self, shard: Shard, batch_size: int) -> Iterator[Window]:
        with self._place.open(shard.files[0]) as opened:
            lines = _windows_of_lines(lines_of(opened, shard), batch_size)
            yield from _measured((from_lines(each, self.schema) for each in lines), opened, shard)

    def _files(self, shard: Shard, batch_size: int) -> Iterator[Window]:
        rows = window_rows(shard.size_bytes / len(shard.files), batch_size)
        with ThreadPoolExecutor(READERS, "read") as pool:
            for at in range(0, len(shard.files), rows):
                files = shard.files[at : at + rows]
                contents = list(pool.map(self._content, files))
                faults = {row: said for row, said in enumerate(contents) if isinstance(said, str)}
                columns = [
                    [readable(each.path) for each in files],
                    [None if isinstance(each, str) else each for each in contents],
                ]
                yield Window(pa.table(columns, schema=FILES), faults, sum(each.size_bytes for each in files))

    def _content(self, file: File) -> bytes | str:
        try:
            with self._place.open(file) as opened:
                return opened.read()
        except PlaceAway:
            # No fault of its row, which would be written down as failed for good.
            raise
        except JobError as error:
            return str(error)


def _without_words(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the texts of CSV with nulls where words stand for them, but for columns of texts."""
    words = pa.array(csv.ConvertOptions().null_values)
    for number, name in enumerate(table.column_names):
        if name in schema.names and not pa.types.is_string(schema.field(name).type):
            column = table.column(number)
            table = table.set_column(number, name, pc.if_else(pc.is_in(column, words), None, column))
    return table


_ROW, _FAULT = "\0row", "\0fault"
"""Columns that no file has."""


def _parsing(bad: dict[int, str]) -> csv.ParseOptions:
    """Return how CSV is read: a line with too few or too many fields is noted by its row, and left out."""

    def noted(line: csv.InvalidRow) -> str:
        # Rows are counted from the header, which is the first.
        bad[(line.number or 0) - 2] = f"the line has {line.actual_columns} fields, and not {line.expected_columns}"
        return "skip"

    return csv.ParseOptions(newlines_in_values=True, invalid_row_handler=noted)


def with_bad_lines(tables: Iterable[pa.Table], bad: dict[int, str]) -> Iterator[pa.Table]:
    """Yield tables with rows of nulls, and why, where lines were left out.

    Args:
        tables: the rows of a file.
        bad: lines that were left out, by their row, known before the next row is.
    """
    at = 0
    for table in tables:
        if not bad:
            at += table.num_rows
            yield table.append_column(_FAULT, pa.nulls(table.num_rows, pa.string()))
            continue
        rows: list[int | None] = []
        said: list[str | None] = []
        left = iter(range(table.num_rows))
        while (why := bad.pop(at, None)) or (row := next(left, None)) is not None:
            rows.append(None if why else row)
            said.append(why)
            at += 1
        whole = table.take(pa.array(rows, pa.int64()))
        yield whole.append_column(_FAULT, pa.array(said, pa.string()))


def find_schema(place: Place, file: File, kind: RowFormat) -> pa.Schema:
    """Return the columns of an input, as its first file has them.

    Raises:
        ShardError: it cannot be read, or two columns have one name.
    """
    if kind is RowFormat.FILES:
        return FILES
    with _told(Shard("", (file,), 0, file.size_bytes)):
        schema = _columns_of(place, file, kind)
        check_names(schema.names, file)
    return schema


def check_names(names: Sequence[str], file: File) -> None:
    """Refuse a file two of whose columns have one name.

    Raises:
        ShardError: it is one.
    """
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ShardError(f"{readable(file.path)} has two columns called {twice[0]}: give them names of their own")


def _columns_of(place: Place, file: File, kind: RowFormat) -> pa.Schema:
    with place.open(file) as opened:
        if kind is RowFormat.PARQUET:
            with parquet.ParquetFile(opened) as known:
                schema: pa.Schema = known.schema_arrow.remove_metadata()
                return schema
        if kind is RowFormat.CSV:
            with csv.open_csv(_plain(opened, file), csv.ReadOptions(block_size=SNIFFED_BYTES), _parsing({})) as reader:
                return pa.schema(
                    [each if each.type != pa.null() else each.with_type(pa.string()) for each in reader.schema]
                )
        shard = Shard("", (file,), 0, file.size_bytes)
        lines = list(itertools.islice(lines_of(opened, shard), SNIFFED_LINES))
        found = _schema_of([row for row in map(_row, lines) if isinstance(row, dict)])
        if lines and not found.names:
            raise ShardError(f"{readable(file.path)} has no lines of JSON that are objects: jq -c '.[]' makes them")
        return found


def _schema_of(rows: Sequence[dict[str, Any]]) -> pa.Schema:
    names = dict.fromkeys(name for row in rows for name in row)
    kinds = {name: _kind_of([row.get(name) for row in rows]) for name in names}
    if strange := [name for name, kind in kinds.items() if kind is None]:
        raise ShardError(f"the column {strange[0]} holds nothing but what is of no type, or beyond 64 bits")
    return pa.schema([(name, pa.string() if kind == pa.null() else kind) for name, kind in kinds.items()])


def _kind_of(cells: Sequence[Any]) -> pa.DataType | None:
    """Return the type that all have, or most: others are their rows' faults."""
    if (kind := _inferred(cells)) is not None:
        return kind
    kinds = Counter(kind for cell in cells if cell is not None and (kind := _inferred([cell])) is not None)
    return kinds.most_common(1)[0][0] if kinds else None


def _inferred(cells: Sequence[Any]) -> pa.DataType | None:
    try:
        return pa.array(cells).type
    except (pa.ArrowException, OverflowError):
        return None


def regrouped(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yield the same rows in tables of so many; fewer where they are heavy, and the last has what is left."""
    held: list[pa.Table] = []
    count = 0
    for table in tables:
        held.append(table)
        count += table.num_rows
        if count < rows:
            if sum(each.nbytes for each in held) >= TARGET_BYTES:
                yield pa.concat_tables(held)
                held, count = [], 0
            continue
        joined = pa.concat_tables(held)
        for at in range(0, count - count % rows, rows):
            yield joined.slice(at, rows)
        held, count = [joined.slice(count - count % rows)], count % rows
    if count:
        yield pa.concat_tables(held)


def fitted(table: pa.Table, schema: pa.Schema) -> Window:
    """Return the table in the schema; what is missing is null, and a cell that does not fit is its row's fault."""
    faults: dict[int, str] = {}
    columns = []
    for each in schema:
        if each.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, each.type))
            continue
        column = table.column(each.name)
        try:
            columns.append(column if column.type == each.type else _cast(column, each.type))
        except pa.ArrowException:
            columns.append(_cell_by_cell(column, each, faults))
    return Window(pa.table(columns, schema=schema), faults)


def _cast(column: Any, kind: pa.DataType) -> Any:
    """Return a column in another type.

    Raises:
        ArrowException: a cell would be another. A text may be written in several ways, and a fraction is rounded.
    """
    cast = column.cast(kind)
    if not _loosely(column.type, kind) and cast.cast(column.type) != column:
        raise pa.ArrowInvalid("it would be another")
    return cast


def _loosely(given: pa.DataType, wanted: pa.DataType) -> bool:
    while all(any(of(each) for of in _LISTS) for each in (given, wanted)):
        given, wanted = given.value_type, wanted.value_type
    fractions = pa.types.is_floating(given) and pa.types.is_floating(wanted)
    return bool(fractions or pa.types.is_string(given) or pa.types.is_large_string(given))


_LISTS: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def _cell_by_cell(column: pa.ChunkedArray, wanted: pa.Field, faults: dict[int, str]) -> pa.Array:
    cells = []
    for row, cell in enumerate(column):
        try:
            cells.append(_cast(pa.array([cell], column.type), wanted.type)[0])
        except pa.ArrowException:
            faults.setdefault(row, f"{wanted.name} is {str(cell.as_py())[:60]!r}, which is no {wanted.type}")
            cells.append(pa.scalar(None, wanted.type))
    return pa.array([cell.as_py() for cell in cells], wanted.type)


def lines_of(opened: BinaryIO, shard: Shard) -> Iterator[bytes]:
    """Yield the lines that begin within a shard's bytes; empty ones are none."""
    file = _plain(opened, shard.files[0])
    at = 0
    if not shard.whole:
        # The line that began before it is another shard's; one that begins right at the start is ours.
        file.seek(max(0, shard.start - 1))
        at = shard.start - 1 + len(file.readline()) if shard.start else 0
    for line in file:
        if not shard.whole and at >= shard.stop:
            return
        text = line if at else line.removeprefix(BOM_UTF8)
        at += len(line)
        if text.strip():
            yield text


def _plain(opened: BinaryIO, file: File) -> Any:
    """Return what a file holds, unpacked where its name says that it is packed."""
    if not file.path.lower().endswith(".gz"):
        return opened
    import gzip  # noqa: PLC0415 (seldom)

    return gzip.GzipFile(fileobj=opened)


def _windows_of_lines(lines: Iterable[bytes], batch_size: int) -> Iterator[list[bytes]]:
    held: list[bytes] = []
    size_bytes = 0
    for line in lines:
        held.append(line)
        size_bytes += len(line)
        if len(held) >= window_rows(size_bytes / len(held), batch_size):
            yield held
            held, size_bytes = [], 0
    if held:
        yield held


def from_lines(lines: Sequence[bytes], schema: pa.Schema) -> Window:
    """Return lines of JSON as a table of the schema."""
    rows = [_row(line) for line in lines]
    faults = {row: said for row, said in enumerate(rows) if isinstance(said, str)}
    good = [{} if isinstance(row, str) else row for row in rows]
    columns = [_column(good, each, faults) for each in schema]
    return Window(pa.table(columns, schema=schema), faults)


def _row(line: bytes) -> dict[str, Any] | str:
    try:
        row = exact_json(line)
    except (ValueError, RecursionError) as error:
        return f"the line is no JSON: {error}"
    return row if isinstance(row, dict) else "the line is JSON, but no object"


def _column(rows: Sequence[Mapping[str, Any]], wanted: pa.Field, faults: dict[int, str]) -> pa.Array:
    cells = [row.get(wanted.name) for row in rows]
    try:
        column = pa.array(cells, wanted.type)
        # Arrow cuts the fractions of what is to be whole, and makes numbers of true and false, and says nothing.
        strange = pa.types.is_floating(wanted.type) and any(isinstance(cell, bool) for cell in cells)
        if column.to_pylist() == cells and not strange:
            return column
    except (pa.ArrowException, OverflowError):
        pass
    for row, cell in enumerate(cells):
        if not _holds(wanted.type, cell):
            faults.setdefault(row, f"{wanted.name} is {str(cell)[:60]!r}, which is no {wanted.type}")
            cells[row] = None
    return pa.array(cells, wanted.type)


def _holds(kind: pa.DataType, cell: Any) -> bool:
    try:
        return _same(pa.array([cell], kind)[0].as_py(), cell)
    except (pa.ArrowException, OverflowError):
        return False


def _same(found: Any, given: Any) -> bool:
    """Return whether a cell came out as it was given; keys that it lacks are null."""
    if isinstance(found, dict):
        return all(_same(value, given.get(name)) for name, value in found.items())
    if isinstance(found, list):
        return len(found) == len(given) and all(map(_same, found, given))
    return bool(found == given) and isinstance(found, bool) == isinstance(given, bool)


def filtered(window: Window, where: pc.Expression) -> Window:
    """Return the rows that are meant."""
    numbers = range(window.table.num_rows)
    marked = window.table.append_column(_ROW, pa.array(numbers, pa.int64()))
    marked = marked.append_column(_FAULT, pa.array([row in window.faults for row in numbers], pa.bool_()))
    # Of a row that cannot be read nobody knows whether it was meant: it comes out, and says why.
    kept = marked.filter(where | (where.is_null() & pc.field(_FAULT)))
    rows = {row: place for place, row in enumerate(kept.column(_ROW).to_pylist())}
    faults = {rows[row]: said for row, said in window.faults.items() if row in rows}
    return Window(kept.drop_columns([_ROW, _FAULT]), faults, window.share_bytes)


def _measured(windows: Iterable[Window], opened: BinaryIO, shard: Shard) -> Iterator[Window]:
    """Say of each window how much was read for it."""
    at = shard.start
    for each in windows:
        now = min(opened.tell(), shard.stop)
        yield replace(each, share_bytes=float(now - at))
        at = now


def _extent(group: Any) -> tuple[int, int]:
    """Return the first byte of a row group, and the one after its last."""
    columns = [group.column(number) for number in range(group.num_columns)]
    starts = [
        min(offset for offset in (each.dictionary_page_offset, each.data_page_offset) if offset) for each in columns
    ]
    return min(starts), max(start + each.total_compressed_size for start, each in zip(starts, columns, strict=True))


@contextmanager
def _told(shard: Shard) -> Iterator[None]:
    try:
        yield
    except _FAULTS as error:
        raise ShardError(
            f"{readable(shard.files[0].path)} cannot be read: {str(error).splitlines()[0]:.300}"
        ) from error
    except JobError as error:
        raise ShardError(str(error)) from error
