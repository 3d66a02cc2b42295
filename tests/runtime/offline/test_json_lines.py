"""A line of JSON is an object or an error."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime.offline.json_lines import parsed_line

NAMES = st.sampled_from(["a", "b", '":', "", "ä"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(NAMES, each, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(NAMES, VALUES, max_size=3), st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :")]))
def test_an_object_is_what_was_written(row: dict[str, Any], separators: tuple[str, str]) -> None:
    assert parsed_line(json.dumps(row, separators=separators).encode()) == row


@pytest.mark.parametrize(
    "line",
    [
        b'{"x":1,"x":2}',
        b'{"x":1,"x" :2}',
        b'{"x":1,"x":1}',
        b'{"y":{"x":1,"z":[{"x":1,"x":null}]}}',
        b'{"x":1,"\\u0078":2}',
        b'{"t":"\\":","x":1,"x":2}',
    ],
)
def test_two_values_of_one_key_are_an_error(line: bytes) -> None:
    assert parsed_line(line) == "the line has two values of the key 'x'"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[1]", "not an object"),
        (b'{"x":1e400}', "not JSON"),
        (b'{"x":NaN}', "not JSON"),
        (b'{"x":"\\ud800"}', "not JSON"),
        (b'{"x":01}', "not JSON"),
        (b'{"x":1', "not JSON"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_line_that_is_not_an_object_is_an_error(line: bytes, message: str) -> None:
    found = parsed_line(line)

    assert isinstance(found, str)
    assert message in found


def test_numbers_of_json_are_exact() -> None:
    found = parsed_line(b'{"a":-0,"b":-0.0,"c":123456789012345678901234567890,"d":5e-324,"e":9007199254740993}')

    assert isinstance(found, dict)
    assert [repr(each) for each in found.values()] == [
        "0",
        "-0.0",
        str(123456789012345678901234567890),
        "5e-324",
        str(2**53 + 1),
    ]
