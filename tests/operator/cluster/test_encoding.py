"""What is sent to the API server is the same text to a reader of JSON and to a reader of YAML."""

import json
import re

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from shoal_operator.cluster.encoding import encoded

# Latin, emoji (with joiner and modifier), right to left, CJK, combining marks, four bytes, breaks and controls of YAML.
LETTERS = (
    "\u00e9\u00df \U0001f680\U0001f469\U0001f3fd\u200d\U0001f52c \u05e9\u05dc\u05d5\u05dd \u202e\u0645"
    " \u6f22\u5b57 e\u0301 \U0001d4b3\U00020000"
)
BREAKS = "\x85\u2028\u2029\ufeff\x00\x07\x1b\x7f\x80\ufffe\uffff\t\r\n\\ \"'"
ESCAPED_SURROGATE = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB]")


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example(LETTERS)
@example(BREAKS)
@example(r"\ud83d\ude00 as six letters each")
def test_a_text_arrives_whole_and_no_character_is_half_of_a_pair(text: str) -> None:
    sent = encoded({"text": text, "list": [text]})

    assert json.loads(sent) == {"text": text, "list": [text]}
    assert yaml.safe_load(sent) == {"text": text, "list": [text]}
    assert not ESCAPED_SURROGATE.search(sent)


@pytest.mark.parametrize("text", ["\ud83d", "a\ude00b", "\ude00\ud83d"])
def test_half_of_a_pair_is_replaced(text: str) -> None:
    assert json.loads(encoded({"text": text}))["text"] == re.sub("[\ud800-\udfff]", "\ufffd", text)
