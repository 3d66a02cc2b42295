"""Parameters of requests for the queue, read from their headers."""

from collections.abc import Mapping
from math import isfinite
from typing import Final

from shoal_proxy.asynchronous.acceptance import prefers_later_result
from shoal_proxy.balance.orca import requested_format
from shoal_proxy.batching.pending import PLAIN_LANE, LaneKey
from shoal_proxy.bodies.decompressor import CODINGS
from shoal_proxy.errors import InvalidRequest, UnsupportedCoding
from shoal_proxy.http.header_cache import InferRoute, QueueParameters, RequestHead
from shoal_schema.interfaces.headers import (
    FORWARDED,
    HEADER_LENGTH,
    LOAD_FORMAT,
    LOWEST_PRIORITY,
    PREFER,
    PRIORITY,
    REQUEST_ID,
    RETURN_MS,
    SHADOW,
    TIMEOUT_MS,
    TRACEPARENT,
    TRACESTATE,
)
from shoal_schema.interfaces.protocols import HTTP

_MIN_TIMEOUT_S, _MAX_TIMEOUT_S = 1e-6, 3600.0
"""The range of clients' timeouts: the timeout sent to the runtime applies to a whole batch."""
_MAX_TRACE_BYTES = 1024
"""Maximum length of forwarded trace headers; the runtime reads the headers of a whole batch at once."""
_TRACED = tuple([(name.encode(), name) for name in (REQUEST_ID, TRACEPARENT, TRACESTATE)])
_TIMEOUT_MS, _PRIORITY, _CONTENT_ENCODING = TIMEOUT_MS.encode(), PRIORITY.encode(), b"content-encoding"
_FORWARDED, _LOAD_FORMAT, _SHADOW = FORWARDED.encode(), LOAD_FORMAT.encode(), SHADOW.encode()
_PREFER, _RETURN_MS = PREFER.encode(), RETURN_MS.encode()
_NAMES: Final = (
    *[name for name, _ in _TRACED], _CONTENT_ENCODING, _TIMEOUT_MS, _PRIORITY, _FORWARDED, _LOAD_FORMAT, _SHADOW,
    _PREFER, _RETURN_MS,
)  # fmt: skip
"""Headers that affect `QueueParameters`, beside those in the settings."""

_OF_BODY: Final = frozenset({b"content-type", HEADER_LENGTH.encode()})
_OF_RESPONSE: Final = frozenset({_PREFER, _TIMEOUT_MS, _LOAD_FORMAT, _FORWARDED, _RETURN_MS})
"""Headers that concern the first response to an asynchronous request only."""


class ParameterReader:
    """Reads `QueueParameters` from the headers of requests.

    Args:
        forwarded_headers: lower-case names of the headers to forward to the runtime.
        fair_share_header: lower-case name of the header that identifies a client's share; empty for none.
    """

    def __init__(self, forwarded_headers: tuple[bytes, ...], fair_share_header: bytes) -> None:
        self._forwarded_headers = forwarded_headers
        self._fair_share_header = fair_share_header
        self.sticky_header = b""
        """Lower-case name of the header that assigns clients to revisions; empty for none."""
        self.accepts_async = False
        """Whether the service accepts asynchronous requests."""

    @property
    def names(self) -> frozenset[bytes]:
        """Return the headers that affect the parameters."""
        return frozenset({*_NAMES, *self._forwarded_headers, self._fair_share_header, self.sticky_header})

    def job_headers(self, headers: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Return the headers with which an asynchronous request runs later.

        Credentials are not among them, unless they are forwarded to the runtime.
        """
        return {name: headers[name] for name in sorted({*self.names, *_OF_BODY} - _OF_RESPONSE) if name in headers}

    def read(self, head: RequestHead) -> QueueParameters:
        """Return the queue's parameters of a request.

        Raises:
            ProxyError: a header is invalid.
        """
        headers = head.headers
        encoding = headers.get(_CONTENT_ENCODING)
        # A supported coding has been removed from the headers; this one is not supported, or a list of several.
        if encoding is not None and encoding.lower() not in (b"", b"identity"):
            text, known = encoding.decode("latin-1"), CODINGS.decode()
            raise UnsupportedCoding(f"Content-Encoding {text!r} is not supported; expected one of {known}, or none")
        given, return_ms = headers.get(_TIMEOUT_MS), headers.get(_RETURN_MS)
        names = self._forwarded_headers
        forwarded_headers = tuple([(name, headers[name]) for name in names if name in headers]) if names else ()
        shadow = _SHADOW in headers
        lane = self._lane(headers)
        if shadow:
            lane = LaneKey(lane.share, LOWEST_PRIORITY)
        trace: dict[str, str] | None = None
        for name, text in _TRACED:
            value = headers.get(name)
            if value is not None and len(value) <= _MAX_TRACE_BYTES:
                if trace is None:
                    trace = {}
                trace[text] = value.decode("latin-1")
        is_async = self._is_async(head.route, headers.get(_PREFER))
        timeout_s = 0.0 if given is None else _positive_ms(TIMEOUT_MS, given) / 1000
        return QueueParameters(
            # `asynchronous.timeoutSeconds` limits the time of asynchronous requests.
            timeout_s if is_async or not timeout_s else limited_timeout_s(1000 * timeout_s),
            lane,
            forwarded_headers,
            trace,
            forwarded=_FORWARDED in headers,
            return_before_s=0.0 if return_ms is None else limited_timeout_s(_positive_ms(RETURN_MS, return_ms)),
            load_format=requested_format(headers.get(_LOAD_FORMAT)),
            shadow=shadow,
            sticky=headers.get(self.sticky_header, b"") if self.sticky_header else b"",
            is_async=is_async,
        )

    def _lane(self, headers: Mapping[bytes, bytes]) -> LaneKey:
        share_header, priority = self._fair_share_header, headers.get(_PRIORITY)
        if priority is None and not share_header:
            return PLAIN_LANE
        if priority and (len(priority) != 1 or not priority.isdigit()):
            text = priority.decode("latin-1")
            raise InvalidRequest(f"{PRIORITY} must be a digit (0 is the highest priority), not {text!r}")
        share = headers.get(share_header, b"") if share_header else b""
        return LaneKey(share, int(priority) if priority else 0)

    def _is_async(self, route: InferRoute, prefer: bytes | None) -> bool:
        """Return whether a client requests its result later.

        Raises:
            InvalidRequest: the target requests that, and it is not supported.
        """
        if route.is_async:
            if not self.accepts_async:
                raise InvalidRequest("?async=true requires the field asynchronous, which is not set")
            if not route.supports_async:
                paths = [path for each in HTTP.protocols if each.asynchronous for path in each.infer]
                raise InvalidRequest(f"this path does not support ?async=true; supported are {', '.join(paths)}")
            return True
        # A server may ignore the preference (RFC 7240).
        if prefer is None or not (self.accepts_async and route.supports_async):
            return False
        return prefers_later_result(prefer)


def limited_timeout_s(timeout_ms: float) -> float:
    """Return a client's timeout within the allowed range."""
    return min(max(timeout_ms / 1000, _MIN_TIMEOUT_S), _MAX_TIMEOUT_S)


def _positive_ms(name: str, value: bytes) -> float:
    try:
        timeout_ms = float(value)
    except ValueError:
        timeout_ms = 0.0
    if not isfinite(timeout_ms) or timeout_ms <= 0:
        text = value.decode("latin-1")
        raise InvalidRequest(f"{name} must be a positive number of milliseconds, not {text!r}")
    return timeout_ms
