"""Requests and responses of asynchronous requests at the activator."""

import re
from collections.abc import Mapping

from shoal_proxy.activator.headers import Headers
from shoal_proxy.asynchronous.acceptance import prefers_later_result, queries_later_result
from shoal_proxy.codecs.base import HttpResponse
from shoal_schema.interfaces.headers import ASYNC_ID, PREFER, TIMEOUT_MS
from shoal_schema.interfaces.protocols import HTTP, RESULT
from shoal_schema.wire.framing import join_lists

_PREFER, _TIMEOUT_MS, _ASYNC_ID = PREFER.encode(), TIMEOUT_MS.encode(), ASYNC_ID.encode()
_RESULT = re.compile(RESULT.format(model="[^/]+", id="([^/]+)"), re.ASCII)
_INFER = re.compile(
    "|".join(
        path.format(model="[^/:]+", version="[^/:]+")
        for protocol in HTTP.protocols
        if protocol.asynchronous
        for path in protocol.infer_paths
    )
)


def accepts_later_result(method: str, path: str, query: bytes, headers: Headers) -> bool:
    """Return whether a request is an inference whose client accepts the result later (RFC 7240)."""
    if method != "POST" or not _INFER.fullmatch(path):
        return False
    return prefers_later_result(join_lists(headers).get(_PREFER, b"")) or queries_later_result(query)


def result_id(path: str) -> str:
    """Return the id in the path of a result; empty for another path."""
    found = _RESULT.fullmatch(path)
    return found[1] if found else ""


def hand_over_headers(headers: Headers, job_id: str, timeout_s: float) -> list[tuple[bytes, bytes]]:
    """Return the client's headers with the id of the job and its time."""
    kept = [(name, value) for name, value in headers if name not in (_TIMEOUT_MS, _ASYNC_ID)]
    return [*kept, (_TIMEOUT_MS, b"%d" % (1000 * timeout_s)), (_ASYNC_ID, job_id.encode())]


def stored_response(status: int, headers: Headers, body: bytes) -> HttpResponse:
    """Return a pod's response in the form that is kept as a result."""
    values: Mapping[bytes, bytes] = dict(headers)
    dropped = (b"content-type", b"content-length", b"connection")
    lines = b"".join(b"%b: %b\r\n" % (name, value) for name, value in headers if name not in dropped)
    return HttpResponse(status, (body,), values.get(b"content-type", b"application/json"), lines)
