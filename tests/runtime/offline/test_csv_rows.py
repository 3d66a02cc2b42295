"""Unclosed quotes are found, in whatever blocks a file is read."""

import csv
import io
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal_runtime.offline.csv_rows import QuoteError, Quotes


def checked(text: bytes, *cuts: int, most_bytes: int = 2**20) -> str:
    """Return the error of a text that is read in blocks."""
    quotes = Quotes(most_bytes)
    try:
        for start, stop in pairwise([0, *sorted(cuts), len(text)]):
            quotes.feed(text[start:stop])
        quotes.end()
    except QuoteError as error:
        return str(error)
    return ""


@given(
    st.lists(st.sampled_from(['"', '""', ",", "\n", "\r\n", "a", " "]), max_size=14),
    st.lists(st.integers(0, 14), max_size=3),
)
@example(["a", ",", '"', '""', "\n"], [3])
def test_text_rejected_by_pythons_strict_reader_is_rejected_in_any_blocks(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    try:
        list(csv.reader(io.StringIO(text, newline=""), strict=True))
        good = True
    except csv.Error:
        good = False

    assert (checked(text.encode(), *(min(cut, len(text)) for cut in cuts)) == "") == good


@given(
    st.lists(st.lists(st.text(st.sampled_from('",\r\nä '), max_size=5), min_size=1, max_size=3), max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.lists(st.integers(0, 40), max_size=3),
)
def test_well_formed_quotes_are_accepted(rows: list[list[str]], end: str, quoting: int, cuts: list[int]) -> None:
    text = io.StringIO()
    csv.writer(text, quoting=quoting, lineterminator=end).writerows(rows)  # type: ignore[arg-type]
    written = text.getvalue().encode()

    assert checked(written, *(min(cut, len(written)) for cut in cuts)) == ""


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        (b'a,b\n1,"x\n2,y\n', 2, "never closes"),
        (b'a,b\n1,"x\n2,"y"\n', 2, "begins in line 2"),
        (b'a,"b\n1,x\n', 1, "never closes"),
        (b'a,b\r\n1,"x\r\ny"\r\n2,"z', 4, "never closes"),
        (b'a,b\r"x"\r"y\r', 3, "never closes"),
        (b'a,b\n"x" ,y\n', 2, "followed by"),
        (b'"x""', 1, "never closes"),
    ],
)
def test_the_line_in_which_a_quote_opens_is_named(text: bytes, line: int, word: str) -> None:
    for cut in range(len(text)):
        message = checked(text, cut)

        assert f"line {line} " in message
        assert word in message


def test_a_cell_that_is_too_large_is_rejected_before_its_end() -> None:
    message = checked(b'a\n"' + b"x\n" * 2**20, 2**20, most_bytes=2**20)

    assert "line 2" in message
    assert "1 MiB" in message


def test_a_quote_within_a_cell_that_does_not_begin_with_one_is_text() -> None:
    assert checked(b'a,b\n5" pipe,3\'\n "x,y"z\n') == ""
