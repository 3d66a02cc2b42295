"""Base64 as clients write it: standard or URL-safe, padded or not, in lines, as a ``data:`` URI."""

import re
from base64 import b64decode
from typing import Final

_OTHER: Final = re.compile("[^A-Za-z0-9+/]")
_URL_SAFE: Final = str.maketrans("-_", "+/")


def decode_base64(text: str) -> bytes:
    """Return the bytes that a text encodes.

    Args:
        text: base64 of RFC 4648, of either alphabet; white space between its characters and missing padding are
            accepted, and so is a ``data:`` URI that is base64.

    Raises:
        ValueError: the text is something else; a sentence that names what.
    """
    if len(text) % 4 == 0:
        try:
            return b64decode(text, validate=True)
        except ValueError:
            pass  # another form, or none
    return _decode_other(text)


def _decode_other(text: str) -> bytes:
    """Return the bytes of any other form than the standard one; it takes some copies of the text."""
    if text[:5].lower() == "data:":
        head, comma, text = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise ValueError("the data: URI is not base64, as data:TYPE;base64,... is")
    text = "".join(text.split())
    if any(each in text for each in "-_"):
        if any(each in text for each in "+/"):
            raise ValueError("it mixes the standard alphabet (+ /) with the URL-safe one (- _)")
        text = text.translate(_URL_SAFE)
    bare = text.rstrip("=")
    if odd := _OTHER.search(bare):
        raise ValueError(f"it holds {odd[0]!r}")
    missing = -len(bare) % 4
    if missing == 3:
        raise ValueError(f"its {len(bare)} characters are cut short")
    if len(text) - len(bare) not in (0, missing):
        raise ValueError("its padding (=) does not fit its length")
    return b64decode(bare + "=" * missing, validate=True)
