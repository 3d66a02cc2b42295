"""HTTP heads that travel beside a row: what a model from a server of plain HTTP reads and sets.

Tensors that hold one are `BYTES`, an element a row, and say so in their metadata (`carries`): an input holds the
caller's headers, an output the status and the headers of the answer. Either element is a JSON object.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from shoal_schema.headers import EXECUTED, OWN_HEADERS

REQUEST_HEADERS: Final = "request_headers"
RESPONSE_HEAD: Final = "response_head"
CARRIED: Final = (REQUEST_HEADERS, RESPONSE_HEAD)

_UNSENT: Final = (OWN_HEADERS - {"content-type"}) | {EXECUTED, "date", "server"}
"""What the connection says about itself, or the proxy about the answer."""
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")


class ResponseHead(NamedTuple):
    """An answer's status, and its headers by their names in lower case."""

    status: int
    headers: Mapping[str, str]


def encode_headers(headers: Mapping[bytes, bytes]) -> bytes:
    """Return a request's headers, names in lower case, as JSON; HTTP's bytes are latin-1."""
    return orjson.dumps({name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()})


def checked_head(status: Any, headers: Mapping[Any, Any]) -> ResponseHead:
    """Return what a model says of its answer, without what is not its own to say.

    Raises:
        ValueError: a status is none of an answer with a body, or a header cannot be written.
    """
    if type(status) is not int or not 200 <= status <= 599 or status in (204, 205, 304):
        raise ValueError(f"an answer with a body has no status {status!r:.40}: give one from 200 to 599")
    known: dict[str, str] = {}
    for name, value in headers.items():
        good = isinstance(name, str) and isinstance(value, str)
        if not good or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r:.40} cannot be sent with the value {value!r:.80}")
        if name.lower() not in _UNSENT:
            known[name.lower()] = value
    return ResponseHead(status, known)


def decode_head(element: bytes) -> ResponseHead:
    """Return the head that an element tells.

    Raises:
        ValueError: it tells none.
    """
    document = orjson.loads(element)
    if not isinstance(document, dict) or not isinstance(document.get("headers"), dict):
        raise ValueError("the answer's head is no object with a status and headers")
    return checked_head(document.get("status"), document["headers"])
