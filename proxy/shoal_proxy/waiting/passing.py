"""What of a request is passed on, and what of an answer: bodies as they are, heads without what is the connection's."""

from collections.abc import Sequence
from math import isfinite

from shoal_schema.headers import EXECUTED, TIMEOUT_MS

Headers = Sequence[tuple[bytes, bytes]]

_TIMEOUT_MS, _EXECUTED = TIMEOUT_MS.encode(), EXECUTED.encode()
_OF_THE_CONNECTION = frozenset({
    b"connection", b"expect", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade",
})  # fmt: skip
_OURS_IN_AN_ANSWER = _OF_THE_CONNECTION | {b"date"}
_ALIVE = frozenset({"/", "/ping", "/v2/health/live", "/v2/health/ready"})
LONGEST_TIMEOUT_S = 3600.0
UNAVAILABLE = 503


def is_liveness(path: str) -> bool:
    """Return whether a path asks only if somebody is here: answered without waking a pod."""
    return path in _ALIVE


def alive_document(path: str) -> bytes:
    """Return the answer to such a path, as a proxy that is well gives it."""
    return {
        "/": b'{"status":"alive"}',
        "/ping": b'{"status":"Healthy"}',
        "/v2/health/live": b'{"live":true}',
        "/v2/health/ready": b'{"ready":true}',
    }[path]


def timeout_s(headers: Headers, default_s: float) -> float:
    """Return how long a caller waits; a header that makes no sense is for a pod to refuse."""
    given = next((value for name, value in headers if name == _TIMEOUT_MS), b"")
    try:
        asked_s = float(given) / 1000 if given else default_s
    except ValueError:
        return default_s
    return min(asked_s, LONGEST_TIMEOUT_S) if asked_s > 0 else default_s


def request_headers(headers: Headers, size_bytes: int, waited_s: float) -> list[tuple[bytes, bytes]]:
    """Return the head that a pod gets: the caller's, with its deadline reduced by the time that has passed."""
    length = b"content-length"
    kept = [(name, value) for name, value in headers if name not in _OF_THE_CONNECTION and name != length]
    passed = [(name, _reduced(value, waited_s) if name == _TIMEOUT_MS else value) for name, value in kept]
    had_body = size_bytes or any(name in (length, b"transfer-encoding") for name, _ in headers)
    return [*passed, *([(length, b"%d" % size_bytes)] if had_body else [])]


def answer_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the head that the caller gets; the connection ends, so that its next request goes to the pods."""
    kept = [(name.lower(), value) for name, value in headers if name.lower() not in _OURS_IN_AN_ANSWER]
    return [*kept, (b"connection", b"close")]


def did_not_run(status: int, headers: Headers) -> bool:
    """Return whether an answer is a pod's refusal of a request that the model has not seen: another may run it."""
    return status == UNAVAILABLE and any((name.lower(), value) == (_EXECUTED, b"no") for name, value in headers)


def _reduced(value: bytes, waited_s: float) -> bytes:
    try:
        left_ms = float(value) - 1000 * waited_s
    except ValueError:
        return value
    return b"%d" % max(1, left_ms) if isfinite(left_ms) else value
