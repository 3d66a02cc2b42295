"""How exactly a command has to print what its page shows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.docs.outputs import before_figures, contains, difference


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("a\nb\n", "a\nb"),
        ("name   size\na      1", "name  size\na     1"),
        ("ready after 2.3 s", "ready after 11 s"),
        ("mean 4 ms, p99 6.5 ms", "mean 9 ms, p99 31 ms"),
        ("tabby 0.3804", "tabby 0.3811"),
        ("6,000 requests", "6,000 requests"),
        ("a\n...\nz", "a\nb\nc\nz"),
        ("a\n...\nz", "a\nz"),
        ("...", "anything\nat all"),
        ("a\n...", "a"),
        ("...\nz", "z\na\nz"),
        ("", "\n"),
    ],
)
def test_alike(shown: str, printed: str) -> None:
    assert difference(shown, printed) is None


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ("a\nb", "a\nc", "shown:   b\nprinted: c"),
        ("a\nb", "a", "shown but not printed: b"),
        ("a", "a\nb", "printed more: b"),
        ("", "b", "printed more: b"),
        ("6,000 requests", "6,001 requests", "shown:   6,000 requests\nprinted: 6,001 requests"),
        ("[1,2]", "[1,3]", "shown:   [1,2]\nprinted: [1,3]"),
        ("tabby 0.38", "tabby 0.39", "shown:   tabby 0.38\nprinted: tabby 0.39"),
        ("version v1", "version v2", "shown:   version v1\nprinted: version v2"),
        ("127.0.0.1:8080", "127.0.0.1:8081", "shown:   127.0.0.1:8080\nprinted: 127.0.0.1:8081"),
        ("1 2", "1", "shown:   1 2\nprinted: 1"),
        ("a\n...\nz", "a\nb", "shown:   z\nprinted: b"),
        ("...\nz", "z\na", "shown:   z\nprinted: a"),
        ("a\n...\nb\n...", "a\nc", "shown:   b\nprinted: c"),
    ],
)
def test_not_alike(shown: str, printed: str, expected: str) -> None:
    assert difference(shown, printed) == expected


def test_any_number_does_where_the_page_says_so_and_still_no_other_word() -> None:
    assert difference("470 requests/s, 3 lost", "9,000.5 requests/s, 0 lost", figures=True) is None
    assert difference("470 requests/s", "470 rows/s", figures=True) is not None


def test_of_a_sample_only_what_stands_above_its_figures_counts() -> None:
    assert before_figures("alone: 3 ms\n\nrate  lost\n23    0\nthe knee is 23\n") == "alone: 3 ms\n\nrate  lost\n..."


def test_lines_may_stand_anywhere() -> None:
    assert contains('{"a":1}', 'starting\n{"a":1}\nstopped')
    assert not contains('{"a":1}', 'starting\n{"a":2}\nstopped')


@given(st.lists(st.text("ab1. ,\t", max_size=6), max_size=6))
def test_what_is_printed_as_shown_is_alike(lines: list[str]) -> None:
    text = "\n".join(line for line in lines if line.strip() != "...")

    assert difference(text, text) is None


@given(st.lists(st.sampled_from("ab"), max_size=5), st.lists(st.sampled_from("ab"), max_size=5))
def test_lines_left_out_are_found_again(before: list[str], after: list[str]) -> None:
    assert difference("\n".join([*before, "...", *after]), "\n".join([*before, "b", "a", *after])) is None
