"""Base64 in every form that clients write, and in none that is ambiguous."""

import base64
import textwrap
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_schema.wire.base64 import decode_base64

FORMS: dict[str, Callable[[str], str]] = {
    "standard": lambda text: text,
    "url-safe": lambda text: text.replace("+", "-").replace("/", "_"),
    "unpadded": lambda text: text.rstrip("="),
    "url-safe, unpadded": lambda text: text.replace("+", "-").replace("/", "_").rstrip("="),
    "in lines": lambda text: "\r\n".join(textwrap.wrap(text, 76)) + "\n",
    "a data: URI": lambda text: f"data:image/png;base64,{text}",
    "a data: URI with parameters": lambda text: f"DATA:text/plain;charset=utf-8;BASE64,{text}",
}


@pytest.mark.parametrize("form", FORMS)
@given(data=st.binary(max_size=200))
def test_every_form_is_the_same_bytes(form: str, data: bytes) -> None:
    assert decode_base64(FORMS[form](base64.b64encode(data).decode())) == data


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("ab+-", "mixes"),
        ("abcde", "truncated"),
        ("abc==", "padding"),
        ("abcd=", "padding"),
        ("ab=c", "holds '='"),
        ("ab!d", "holds '!'"),
        ("data:text/plain,hello", "data: URI"),
        ("data:image/png;base64", "data: URI"),
        ("http://example.com/cat.png", "holds ':'"),
        ("aé==", "holds 'é'"),
    ],
)
def test_other_text_is_rejected(text: str, fragment: str) -> None:
    with pytest.raises(ValueError, match=fragment):
        decode_base64(text)
