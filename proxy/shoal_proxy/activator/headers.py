"""End-to-end headers of forwarded requests and responses (RFC 9110, section 7.6.1)."""

import re
from collections.abc import Sequence
from math import isfinite
from typing import Final

import orjson

from shoal_schema.interfaces.headers import EXECUTED, TIMEOUT_MS
from shoal_schema.interfaces.protocols import HTTP

Headers = Sequence[tuple[bytes, bytes]]

_TIMEOUT_MS, _EXECUTED = TIMEOUT_MS.encode(), EXECUTED.encode()
_CONNECTION, _HOST, _LENGTH = b"connection", b"host", b"content-length"
_HOP_BY_HOP = frozenset({
    _CONNECTION, b"expect", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade",
})  # fmt: skip
HEALTHY: Final = {check.path: orjson.dumps(check.healthy) for check in HTTP.checks}
"""A ready proxy's response to each health check; the activator returns it, as a health check starts no pod."""
NO_BODY = frozenset({204, 304})
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
MAX_TIMEOUT_S = 3600.0
UNAVAILABLE = 503


def requested_timeout_s(headers: Headers) -> float | None:
    """Return the client's timeout (s); None if it is missing or invalid."""
    given = dict(headers).get(_TIMEOUT_MS)  # the last of several counts, as at a proxy
    return None if given is None else _timeout_s(given)


def content_length(headers: Headers) -> int:
    """Return the body's Content-Length; 0 if there is none."""
    return int(dict(headers).get(_LENGTH, b"0"))


def request_headers(headers: Headers, size_bytes: int, waited_s: float) -> list[tuple[bytes, bytes]]:
    """Return the client's headers for the pod, with the timeout minus ``waited_s``."""
    # A client must not remove the Host header by naming it in Connection.
    dropped = (_hop_by_hop(headers) | {_LENGTH}) - {_HOST}
    kept = [(name, value) for name, value in headers if name not in dropped]
    for index, (name, value) in enumerate(kept):
        if name == _TIMEOUT_MS and (given_s := _timeout_s(value)) is not None:
            kept[index] = name, b"%d" % max(1, 1000 * (given_s - waited_s))
    # A request without a body gets no Content-Length.
    had_body = size_bytes or any(name in (_LENGTH, b"transfer-encoding") for name, _ in headers)
    return [*kept, *([(_LENGTH, b"%d" % size_bytes)] if had_body else [])]


def is_response(status: int, headers: Headers) -> bool:
    """Return whether status and headers form a valid final HTTP response."""
    return 200 <= status <= 599 and not any(_CONTROL.search(value) for _, value in headers)


def response_headers(status: int, headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the pod's headers for the client, with ``connection: close``.

    The client then opens a new connection, which the Service routes to a pod.
    """
    lower = [(name.lower(), value) for name, value in headers]
    # With a Content-Length uvicorn would wait for a body, which these statuses do not have.
    dropped = _hop_by_hop(lower) | {b"date"} | ({_LENGTH} if status in NO_BODY else set())
    return [*((name, value) for name, value in lower if name not in dropped), (_CONNECTION, b"close")]


def did_not_run(status: int, headers: Headers) -> bool:
    """Return whether a pod rejected the request before the model ran it, so that another pod may run it."""
    return status == UNAVAILABLE and any((name.lower(), value) == (_EXECUTED, b"no") for name, value in headers)


def _hop_by_hop(headers: Headers) -> frozenset[bytes]:
    """Return the hop-by-hop headers, including headers named in ``Connection``."""
    named = [value.lower().split(b",") for name, value in headers if name == _CONNECTION]
    return _HOP_BY_HOP.union(token.strip() for tokens in named for token in tokens)


def _timeout_s(value: bytes) -> float | None:
    try:
        given_s = float(value) / 1000
    except ValueError:
        return None
    return given_s if isfinite(given_s) and given_s > 0 else None
