"""Check of quotes in a CSV file before it is parsed. Pure.

An unclosed quote would join all later rows into one cell. A cell that begins with a quote must end with a quote,
followed by a comma or the end of the line; quotes within the cell are doubled. In other cells a quote is an ordinary
character.
"""

import re
from typing import Final

_CELL: Final = rb'"(?:[^"]++|"")*+"'
_ANY_CELL: Final = rb"(?:%s|[^\",\r\n][^,\r\n]*+)?+" % _CELL
_CELLS: Final = re.compile(rb"(?:%s(?:,|\n|\r\n|\r(?!\Z)))*+" % _ANY_CELL)
_FIRST: Final = re.compile(rb"((?:%s,)*+%s)[\r\n]" % (_ANY_CELL, _ANY_CELL))
_QUOTED: Final = re.compile(_CELL)
_SHOWN: Final = 20


class QuoteError(ValueError):
    """A quoted cell of a CSV file does not end properly; the message names its line."""


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
            shown = after[:_SHOWN].decode(errors="backslashreplace")
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


def first_line(text: bytes) -> bytes | None:
    """Return the first line of CSV text; None if the line has no end.

    Cells of the line may contain newlines.
    """
    found = _FIRST.match(text)
    return found[1] if found else None
