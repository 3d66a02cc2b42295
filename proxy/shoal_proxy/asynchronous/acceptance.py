"""The request for a later result (RFC 7240), and the response that accepts it."""

from typing import Final

from shoal_proxy.codecs.base import HttpResponse, json_response
from shoal_schema.interfaces.headers import PREFERENCE_APPLIED, RESPOND_ASYNC

_RESPOND_ASYNC: Final = RESPOND_ASYNC.encode()


def prefers_later_result(prefer: bytes) -> bool:
    """Return whether a value of the header ``Prefer`` requests that the response need not hold the result."""
    return _RESPOND_ASYNC in [each.partition(b";")[0].strip().lower() for each in prefer.split(b",")]


def queries_later_result(query: bytes) -> bool:
    """Return whether the query of a target requests the same."""
    return b"async=true" in query.split(b"&")


def accepted_response(location: str, job_id: str) -> HttpResponse:
    """Return the response for a request without a result yet: 202, and where the result will be."""
    response = json_response(202, {"id": job_id, "status": "waiting", "location": location})
    response.lines += f"location: {location}\r\n{PREFERENCE_APPLIED}: {RESPOND_ASYNC}\r\n".encode()
    return response
