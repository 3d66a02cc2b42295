"""HTTP headers carried in tensors, for models of plain HTTP servers that read request headers and set response headers.

Such tensors are `BYTES` with one element per row, and have `carries` in their metadata. An input holds the request's
headers; an output holds the response's status and headers. Each element is a JSON object.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from shoal_schema.interfaces.headers import EXECUTED, OWN_HEADERS

REQUEST_HEADERS: Final = "request_headers"
RESPONSE_HEAD: Final = "response_head"
CARRIED: Final = (REQUEST_HEADERS, RESPONSE_HEAD)

_UNSENT: Final = (OWN_HEADERS - {"content-type"}) | {EXECUTED, "date", "server"}
"""Headers of the connection, and those that the proxy sets."""
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")


class ResponseHead(NamedTuple):
    """Status and headers of a response, with names in lower case."""

    status: int
    headers: Mapping[str, str]


def encode_headers(headers: Mapping[bytes, bytes]) -> bytes:
    """Return a request's headers as JSON, decoded as latin-1."""
    return orjson.dumps({name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()})


def checked_head(status: Any, headers: Mapping[Any, Any]) -> ResponseHead:
    """Return a model's response head, without headers that the proxy sets.

    Raises:
        ValueError: the status does not allow a body, or a header is malformed.
    """
    # 204, 205 and 304 have no body (RFC 9110, section 15).
    if type(status) is not int or not 200 <= status <= 599 or status in (204, 205, 304):
        raise ValueError(f"status {status!r:.40} does not allow a body: use one from 200 to 599")
    known: dict[str, str] = {}
    for name, value in headers.items():
        good = isinstance(name, str) and isinstance(value, str)
        if not good or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"header {name!r:.40} with value {value!r:.80} is malformed")
        if name.lower() not in _UNSENT:
            known[name.lower()] = value
    return ResponseHead(status, known)


def decode_head(element: bytes) -> ResponseHead:
    """Decode the response head in an element of an output.

    Raises:
        ValueError: the element is not a response head.
    """
    document = orjson.loads(element)
    if not isinstance(document, dict) or not isinstance(document.get("headers"), dict):
        raise ValueError("the response head is not an object with a status and headers")
    return checked_head(document.get("status"), document["headers"])
