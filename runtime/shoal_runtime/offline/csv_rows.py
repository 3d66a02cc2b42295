"""Reader of CSV files as tables of text, with errors of malformed lines."""

import io
import itertools
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from csv import Error, reader
from typing import Any, BinaryIO, Final

import pyarrow as pa
from pyarrow import csv

from shoal_runtime.offline.directories import Directory, decompressed_file
from shoal_runtime.offline.quotes import Quotes, first_line
from shoal_runtime.offline.shards import InputFile

BLOCK_BYTES: Final = 4 * 2**20
HEADER_BYTES: Final = 2**16
"""Bytes read at a time until the header is complete."""
FAULT: Final = "\0fault"
"""Name of a column that no file has: the error of a row's line."""
_SHOWN: Final = 60


class _Checked(io.RawIOBase):
    """CSV file without the bytes before its header, whose quotes are checked during reading."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file
        self.quotes = Quotes(BLOCK_BYTES)
        self._begun = False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block: bytes = self._file.read(size)
        while block and not self._begun:
            # A byte order mark and empty lines stand before the header; their lines still count.
            text = block.removeprefix(BOM_UTF8)
            header = text.lstrip(b"\r\n")
            self.quotes.feed(text[: len(text) - len(header)])
            self._begun = bool(header)
            # Only empty lines so far: read on.
            block = header or self._file.read(size)
        if block:
            self.quotes.feed(block)
        else:
            self.quotes.end()
        return block


def csv_names(place: Directory, file: InputFile) -> list[str]:
    """Return the column names in the header of a CSV file.

    Raises:
        QuoteError: a quote in the header does not close.
        ValueError: the header is missing.
    """
    text = b""
    quotes = Quotes(BLOCK_BYTES)
    with place.open(file, HEADER_BYTES) as opened:
        source = decompressed_file(opened, file)
        while block := source.read(HEADER_BYTES):
            text += block
            if (header := first_line(_without_mark(text))) is not None:
                return _names(header)
            quotes.feed(block)
    quotes.end()
    if not (header := _without_mark(text)):
        raise ValueError("it is empty; a header was expected")
    return _names(header)


def _without_mark(text: bytes) -> bytes:
    return text.removeprefix(BOM_UTF8).lstrip(b"\r\n")


def _names(header: bytes) -> list[str]:
    try:
        return next(reader(io.StringIO(header.decode(), newline=""), strict=True))
    except Error as error:  # a name of more than 128 KiB
        raise ValueError(f"its header is not CSV: {error}") from error


def csv_tables(opened: BinaryIO, file: InputFile, names: Sequence[str], wanted: Sequence[str]) -> Iterator[pa.Table]:
    """Yield a CSV file's rows as tables of text, with errors in the column `FAULT`; malformed rows are null.

    Args:
        opened: content of the file.
        file: its name decides whether the content is compressed.
        names: column names in the header.
        wanted: columns to return; missing ones are null.
    """
    texts = csv.ConvertOptions(
        column_types=dict.fromkeys(wanted, pa.string()),
        include_columns=wanted,
        include_missing_columns=True,
        # Words such as NA stay text, and so does a quoted empty cell.
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    bad: dict[int, str] = {}

    def note_row(line: csv.InvalidRow) -> str:
        # Line numbers count from 1, with the header.
        bad[(line.number or 0) - 2] = (
            f"the line has {line.actual_columns} fields, expected {line.expected_columns}: {line.text[:_SHOWN]!r}"
        )
        return "skip"

    parsing = csv.ParseOptions(
        newlines_in_values=True,
        # In a file of one column, an empty line is a row.
        ignore_empty_lines=len(names) > 1,
        invalid_row_handler=note_row,
    )
    options = csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False)
    checked = _Checked(decompressed_file(opened, file))
    try:
        with csv.open_csv(checked, options, parsing, texts) as rows:
            read = (pa.Table.from_batches([each]) for each in rows)
            # The last lines may be malformed, and in no batch.
            last = (rows.schema.empty_table() for _ in range(1))
            yield from with_bad_lines(itertools.chain(read, last), bad)
    except pa.ArrowInvalid as error:
        # Arrow's error does not name the line of an unclosed quote.
        checked.quotes.check_closed()
        if "straddl" in str(error):
            raise ValueError(f"a row is larger than {BLOCK_BYTES // 2**20} MiB") from error
        raise


def with_bad_lines(tables: Iterable[pa.Table], bad: dict[int, str]) -> Iterator[pa.Table]:
    """Insert a row of nulls with an error for each CSV line that the parser skipped.

    Args:
        tables: rows of a file.
        bad: error of each skipped line, by row number; filled while ``tables`` is read.
    """
    at = 0
    for table in tables:
        if not bad:
            at += table.num_rows
            yield table.append_column(FAULT, pa.nulls(table.num_rows, pa.string()))
            continue
        # A skipped line becomes a row of nulls at its own place.
        rows: list[int | None] = []
        messages: list[str | None] = []
        left = iter(range(table.num_rows))
        while (why := bad.pop(at, None)) or (row := next(left, None)) is not None:
            rows.append(None if why else row)
            messages.append(why)
            at += 1
        whole = table.take(pa.array(rows, pa.int64()))
        yield whole.append_column(FAULT, pa.array(messages, pa.string()))
