r"""JSON that is also valid YAML 1.1, which server-side apply parses.

YAML rejects escaped surrogate pairs (``\ud83d\ude00``) and literal control characters, and treats some other characters
as line breaks.
"""

import json
import re

from shoal_schema.fields.declaring import Json

_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def encoded(body: Json) -> bytes:
    """Return an object as UTF-8 that JSON and YAML parsers read alike.

    Unpaired surrogates become U+FFFD, as in the API server.
    """
    return _ESCAPED.sub(_escaped, json.dumps(body, ensure_ascii=False)).encode()


def _escaped(found: re.Match[str]) -> str:
    number = ord(found[0])
    return _REPLACEMENT if 0xD800 <= number <= 0xDFFF else f"\\u{number:04x}"
