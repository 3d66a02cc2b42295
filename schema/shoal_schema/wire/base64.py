"""Decode base64 in all forms: standard or URL-safe, with or without padding, line breaks, or as a ``data:`` URI."""

import re
from base64 import b64decode
from typing import Final

_OTHER: Final = re.compile("[^A-Za-z0-9+/]")
_URL_SAFE: Final = str.maketrans("-_", "+/")


def decode_base64(text: str) -> bytes:
    """Decode base64 (RFC 4648).

    Args:
        text: standard or URL-safe; white space, missing padding and a ``data:`` URI are accepted.

    Raises:
        ValueError: the text is not base64; the message names the fault.
    """
    # The standard form is decoded without a copy of the text.
    if len(text) % 4 == 0:
        try:
            return b64decode(text, validate=True)
        except ValueError:
            pass  # another form, or not base64
    return _decode_other(text)


def _decode_other(text: str) -> bytes:
    """Decode the less common forms, at the cost of several copies of the text."""
    if text[:5].lower() == "data:":
        head, comma, text = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise ValueError("the data: URI is not of the form data:TYPE;base64,...")
    # MIME wraps lines at 76 characters.
    text = "".join(text.split())
    if any(each in text for each in "-_"):
        if any(each in text for each in "+/"):
            raise ValueError("it mixes the standard alphabet (+ /) with the URL-safe one (- _)")
        text = text.translate(_URL_SAFE)
    bare = text.rstrip("=")
    if odd := _OTHER.search(bare):
        raise ValueError(f"it holds {odd[0]!r}")
    # 3 missing characters would mean 6 bits, less than a byte.
    missing = -len(bare) % 4
    if missing == 3:
        raise ValueError(f"it is truncated: {len(bare)} characters are not a whole number of bytes")
    if len(text) - len(bare) not in (0, missing):
        raise ValueError("its padding (=) does not fit its length")
    return b64decode(bare + "=" * missing, validate=True)
