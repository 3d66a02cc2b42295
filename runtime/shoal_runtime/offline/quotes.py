"""Quotes of CSV, checked before cells are read: one that never closes would make one cell of all rows after it. Pure.

A cell that begins with a quote ends with one, and after that comes a comma or the end of its line; a quote within it is
doubled. Elsewhere in a cell a quote is a character as any other.
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
    """A quoted cell does not end; the message says where it begins."""


class Quotes:
    """The quotes of one file, block after block.

    Args:
        most_bytes: of one cell.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held = b""
        self._line = 1

    def feed(self, block: bytes) -> None:
        """Check the cells that end in a block.

        Raises:
            QuoteError: one is followed by something else than the next, or is too large.
        """
        text = self._held + block
        if b'"' in text:
            found = _CELLS.match(text)
            end = found.end() if found else 0
        else:
            last = len(text) - text.endswith(b"\r")
            end = max(text.rfind(each, 0, last) for each in (b",", b"\n", b"\r")) + 1
        self._line += _lines(text[:end])
        self._held = text[end:]
        if self._held.startswith(b'"'):
            self._check_held()

    def end(self) -> None:
        """Check the last cell.

        Raises:
            QuoteError: its quote never closes.
        """
        if self._held.startswith(b'"') and not _QUOTED.fullmatch(self._held.rstrip(b"\r\n")):
            raise QuoteError(f"a quote in line {self._line} never closes")

    def check_closed(self) -> None:
        """Check that no cell is under way that is larger than what is read at a time.

        Raises:
            QuoteError: its quote does not close in time.
        """
        if self._held.startswith(b'"'):
            raise QuoteError(
                f"a quote in line {self._line} does not close within {self._most_bytes // 2**20} MiB of text"
            )

    def _check_held(self) -> None:
        closed = _QUOTED.match(self._held)
        after = self._held[closed.end() :] if closed else b""
        if after not in (b"", b"\r", b"\n", b","):
            shown = after[:_SHOWN].decode(errors="backslashreplace")
            raise QuoteError(
                f"the quoted cell that begins in line {self._line} is followed by {shown!r}: a quote before it never"
                " closes, or one within it is not doubled"
            )
        if len(self._held) > self._most_bytes:
            self.check_closed()


def first_line(text: bytes) -> bytes | None:
    """Return the first line, which may have newlines within its cells, or None where it does not end."""
    found = _FIRST.match(text)
    return found[1] if found else None


def _lines(text: bytes) -> int:
    return text.count(b"\n") + text.count(b"\r") - text.count(b"\r\n")
