"""What of a request is passed on, and what of an answer: bodies as they are, heads without what is the connection's."""

import re
from collections.abc import Sequence
from math import isfinite

from shoal_schema.headers import EXECUTED, TIMEOUT_MS

Headers = Sequence[tuple[bytes, bytes]]

_TIMEOUT_MS, _EXECUTED = TIMEOUT_MS.encode(), EXECUTED.encode()
_CONNECTION, _HOST, _LENGTH = b"connection", b"host", b"content-length"
_OF_THE_CONNECTION = frozenset({
    _CONNECTION, b"expect", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade",
})  # fmt: skip
_ALIVE = frozenset({"/", "/ping", "/v2/health/live", "/v2/health/ready"})
_NO_BODY = frozenset({204, 304})
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
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


def asked_s(headers: Headers) -> float | None:
    """Return how long a caller gives its answer, if it says; what makes no sense is for a pod to refuse."""
    given = dict(headers).get(_TIMEOUT_MS)  # of several the last counts, as at a proxy
    return None if given is None else _sensible_s(given)


def announced_bytes(headers: Headers) -> int:
    """Return the length of a body, where the head says it."""
    return int(dict(headers).get(_LENGTH, b"0"))


def request_headers(headers: Headers, size_bytes: int, waited_s: float) -> list[tuple[bytes, bytes]]:
    """Return the head that a pod gets: the caller's, with its deadline reduced by the time that has passed."""
    dropped = (_of_the_connection(headers) | {_LENGTH}) - {_HOST}
    kept = [(name, value) for name, value in headers if name not in dropped]
    passed = [(name, _reduced(value, waited_s) if name == _TIMEOUT_MS else value) for name, value in kept]
    had_body = size_bytes or any(name in (_LENGTH, b"transfer-encoding") for name, _ in headers)
    return [*passed, *([(_LENGTH, b"%d" % size_bytes)] if had_body else [])]


def is_answer(status: int, headers: Headers) -> bool:
    """Return whether HTTP has such a status at the end of a request, and such values."""
    return 200 <= status <= 599 and not any(_CONTROL.search(value) for _, value in headers)


def answer_headers(status: int, headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the head that the caller gets; the connection ends, so that its next request goes to the pods."""
    lower = [(name.lower(), value) for name, value in headers]
    # What a length says of a body that does not come, our server would wait for.
    dropped = _of_the_connection(lower) | {b"date"} | ({_LENGTH} if status in _NO_BODY else set())
    return [*((name, value) for name, value in lower if name not in dropped), (_CONNECTION, b"close")]


def did_not_run(status: int, headers: Headers) -> bool:
    """Return whether an answer is a pod's refusal of a request that the model has not seen: another may run it."""
    return status == UNAVAILABLE and any((name.lower(), value) == (_EXECUTED, b"no") for name, value in headers)


def _of_the_connection(headers: Headers) -> frozenset[bytes]:
    """Return which headers are for the next one alone; ``Connection`` may name more of them."""
    named = [value.lower().split(b",") for name, value in headers if name == _CONNECTION]
    return _OF_THE_CONNECTION.union(token.strip() for tokens in named for token in tokens)


def _sensible_s(value: bytes) -> float | None:
    try:
        given_s = float(value) / 1000
    except ValueError:
        return None
    return given_s if isfinite(given_s) and given_s > 0 else None


def _reduced(value: bytes, waited_s: float) -> bytes:
    given_s = _sensible_s(value)
    return value if given_s is None else b"%d" % max(1, 1000 * (given_s - waited_s))
