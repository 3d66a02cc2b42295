r"""JSON that is also YAML.

Server-side apply reads YAML 1.1. JSON means the same there but for a few characters: a pair of escaped surrogates
(``\ud83d\ude00``) is refused, and so are control characters that stand as they are; some others end a line.
"""

import json
import re

from shoal_schema.declaring import Json

_NOT_AS_IT_IS = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def encoded(body: Json) -> bytes:
    """Return an object as UTF-8 that a reader of JSON and a reader of YAML understand alike.

    Half of a surrogate pair, which no encoding can carry, becomes U+FFFD, as the API server itself does it.
    """
    return _NOT_AS_IT_IS.sub(_escaped, json.dumps(body, ensure_ascii=False)).encode()


def _escaped(found: re.Match[str]) -> str:
    number = ord(found[0])
    return _REPLACEMENT if 0xD800 <= number <= 0xDFFF else f"\\u{number:04x}"
