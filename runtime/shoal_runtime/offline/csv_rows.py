"""CSV files as tables of text, with errors of malformed lines. Pure.

Arrow accepts a quote that never closes, which joins all later rows into one cell, so quotes are checked first. A cell
that begins with a quote must end with a quote, followed by a comma or the end of the line; quotes within the cell are
doubled. In other cells a quote is an ordinary character.
"""

import io
import itertools
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from csv import Error, reader
from typing import Any, Final

import pyarrow as pa
from pyarrow import csv

BLOCK_BYTES: Final = 4 * 2**20
FAULT: Final = "\0fault"
"""Name of a column that no file has: the error of a row's line."""
_SHOWN: Final = 60
_CELL: Final = rb'"(?:[^"]++|"")*+"'
_ANY_CELL: Final = rb"(?:%s|[^\",\r\n][^,\r\n]*+)?+" % _CELL
_CELLS: Final = re.compile(rb"(?:%s(?:,|\n|\r\n|\r(?!\Z)))*+" % _ANY_CELL)
_QUOTED: Final = re.compile(_CELL)
_SHOWN_AFTER: Final = 20


class QuoteError(ValueError):
    """A quoted cell of a CSV file does not end; the message names its line."""


class Quotes:
    """Incremental check of the quotes in one CSV file.

    Args:
        most_bytes: maximum size of one cell.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        # Text from the first cell that has not ended yet.
        self._held = b""
        self._line = 1

    def feed(self, block: bytes) -> None:
        """Check the cells that end in the next block of the file.

        Raises:
            QuoteError: a cell continues after its closing quote, or is too large.
        """
        text = self._held + block
        # Most blocks have no quotes, and need no regular expression.
        if b'"' in text:
            found = _CELLS.match(text)
            end = found.end() if found else 0
        else:
            # Without quotes every separator ends a cell; a final \r may be half of a line's end.
            last = len(text) - text.endswith(b"\r")
            end = max(text.rfind(each, 0, last) for each in (b",", b"\n", b"\r")) + 1
        ended = text[:end]
        self._line += ended.count(b"\n") + ended.count(b"\r") - ended.count(b"\r\n")
        self._held = text[end:]
        if not self._held.startswith(b'"'):
            return
        # The regular expression stopped inside a quoted cell, or behind one that does not end well.
        closed = _QUOTED.match(self._held)
        after = self._held[closed.end() :] if closed else b""
        if after not in (b"", b"\r", b"\n", b","):
            shown = after[:_SHOWN_AFTER].decode(errors="backslashreplace")
            raise QuoteError(
                f"the quoted cell that begins in line {self._line} is followed by {shown!r}: an earlier quote never"
                " closes, or a quote in the cell is not doubled"
            )
        if len(self._held) > self._most_bytes:
            self.check_closed()

    def end(self) -> None:
        """Check the last cell of the file.

        Raises:
            QuoteError: the cell's quote never closes.
        """
        if self._held.startswith(b'"') and not _QUOTED.fullmatch(self._held.rstrip(b"\r\n")):
            raise QuoteError(f"a quote in line {self._line} never closes")

    def check_closed(self) -> None:
        """Reject a quoted cell that has not ended yet.

        Raises:
            QuoteError: there is such a cell.
        """
        if self._held.startswith(b'"'):
            raise QuoteError(
                f"a quote in line {self._line} does not close within {self._most_bytes // 2**20} MiB of text"
            )


class _Checked(io.RawIOBase):
    """CSV file from its header on, with quotes checked during reading."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file
        self.quotes = Quotes(BLOCK_BYTES)
        self._begun = False
        self._carried = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block = self._next_block(size)
        while block and not self._begun:
            # A byte order mark and empty lines stand before the header; their lines still count.
            text = block.removeprefix(BOM_UTF8)
            header = text.lstrip(b"\r\n")
            self.quotes.feed(text[: len(text) - len(header)])
            self._begun = bool(header)
            # Only empty lines so far: read on.
            block = header or self._next_block(size)
        if block:
            self.quotes.feed(block)
        else:
            self.quotes.end()
        return block

    def _next_block(self, size: int) -> bytes:
        block: bytes = self._carried + self._file.read(size - len(self._carried) if size > 0 else size)
        self._carried = b""
        if block.endswith(b"\r"):
            # Arrow drops a \n at the start of a block after a final \r, even within a quoted cell: keep them together.
            following = self._file.read(1)
            self._carried = following
            if following == b"\n":
                # An empty block would be the end of the file.
                block, self._carried = (block[:-1], b"\r\n") if len(block) > 1 else (b"\r\n", b"")
        return block


def csv_names(source: Any) -> list[str]:
    """Return the column names in the header of a CSV file; close the file.

    Raises:
        ValueError: the header is missing, is not UTF-8, or has a quote that does not close.
    """
    # Later rows in the same block may have another encoding, which is an error only if their columns are read.
    with io.TextIOWrapper(source, "utf-8-sig", "surrogateescape", newline="") as text:
        rows = reader(text, strict=True)
        try:
            names = next((row for row in rows if row), None)
        except Error as error:
            raise ValueError(f"its header is not CSV: {error}. Close each quote in the header") from error
    if names is None:
        raise ValueError("it is empty; a header was expected")
    return [name.encode(errors="surrogateescape").decode() for name in names]


def csv_tables(source: Any, names: Sequence[str], wanted: Sequence[str]) -> Iterator[pa.Table]:
    """Yield a CSV file's rows as tables of text.

    A malformed row is null, with its error in the column `FAULT`.

    Args:
        source: content of the file, not compressed.
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
    checked = _Checked(source)
    try:
        with csv.open_csv(checked, options, parsing, texts) as rows:
            read = (pa.Table.from_batches([each]) for each in rows)
            # The last lines may be malformed, and in no batch.
            last = (rows.schema.empty_table() for _ in range(1))
            yield from _with_bad_lines(itertools.chain(read, last), bad)
    except pa.ArrowInvalid as error:
        # Arrow's error does not name the line of an unclosed quote.
        checked.quotes.check_closed()
        if "straddl" in str(error):
            raise ValueError(f"a row is larger than {BLOCK_BYTES // 2**20} MiB") from error
        raise


def _with_bad_lines(tables: Iterable[pa.Table], bad: dict[int, str]) -> Iterator[pa.Table]:
    """Insert a null row with an error for each line that the parser skipped.

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
