"""The request for a later result (RFC 7240), and the response that accepts it."""

import re
from typing import Final
from urllib.parse import parse_qsl

from shoal_proxy.codecs.base import HttpResponse, json_response
from shoal_schema.interfaces.headers import PREFERENCE_APPLIED, RESPOND_ASYNC

_RESPOND_ASYNC: Final = RESPOND_ASYNC.encode()
_PREFERENCE: Final = re.compile(rb'(?:[^",]|"(?:[^"\\]|\\.)*"?)+', re.DOTALL)
"""A preference with its parameters: quoted strings may contain commas."""
_NO_VALUE: Final = frozenset({b"", b'""'})


def prefers_later_result(prefer: bytes) -> bool:
    """Return whether the header ``Prefer`` permits a response without the result (RFC 7240, section 2).

    A preference with a value that is not empty is another one. Of several with one name, the first counts.

    Args:
        prefer: the value of the header; of several, joined by commas.
    """
    for each in _PREFERENCE.findall(prefer):
        name, _, value = each.partition(b";")[0].partition(b"=")
        if name.strip(b" \t").lower() == _RESPOND_ASYNC:
            return value.strip(b" \t") in _NO_VALUE
    return False


def queries_later_result(query: bytes) -> bool:
    """Return whether the query of a target requests the same: ``async=true``, in any case."""
    fields = parse_qsl(query.decode("latin-1"), errors="replace")
    return any(name == "async" and value.lower() == "true" for name, value in fields)


def accepted_response(location: str, job_id: str) -> HttpResponse:
    """Return the response for a request without a result yet: 202, and where the result will be."""
    response = json_response(202, {"id": job_id, "status": "waiting", "location": location})
    response.lines += f"location: {location}\r\n{PREFERENCE_APPLIED}: {RESPOND_ASYNC}\r\n".encode()
    return response
