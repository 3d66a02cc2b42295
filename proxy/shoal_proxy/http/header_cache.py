"""A cache of request heads, which are matched without the HTTP parser.

A client sends the same headers in the same order repeatedly. Only a few values change, such as an id, a trace, a length
or a token. The first such head is parsed and stored as a template. If a later head differs only in values, these values
become gaps of the template. From then on heads are compared with the template piece by piece, and only the gaps are
read. The parser has accepted the template's names, their order and the request line. A value that is read from a gap
contains no character that could end its line. So the parser would accept every head that is matched here, with the same
result.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shoal_proxy.access.control import AuthenticatedClient
from shoal_proxy.batching.pending import LaneKey
from shoal_proxy.codecs.base import Codec
from shoal_schema.wire.framing import FIELD_BYTES

MAX_BYTES: Final = 4096
"""The largest head that is cached."""
MAX_TEMPLATES: Final = 16
"""Most templates; there is one for each path and kind of client (its headers and their order).

The least recently used one is dropped.
"""
_END: Final = b"\r\n\r\n"
_METHODS: Final = (b"POST ", b"PUT /")
_CONTENT_LENGTH: Final = b"content-length"
_UNKEPT: Final = frozenset({b"content-encoding", b"expect", b"upgrade", b"transfer-encoding"})
"""Headers that need handling by the parser; heads with them are not cached."""
_PINNED: Final = frozenset({b"connection", b"proxy-connection"})
"""Headers whose values affect the connection, so that they never become gaps."""
_PRINTABLE: Final = bytes(range(0x20, 0x7F))
"""The characters of a value read here; the parser accepts a few more."""
_SPACE: Final = 0x20


@dataclass(frozen=True)
class InferRoute:
    """The codec of an infer path, and the label of its protocol.

    Args:
        label: the label of the protocol.
        codec: decoder and encoder of the protocol.
        supports_async: whether clients may request the result later.
        is_async: whether the target requests that, by ``?async=true``.
    """

    label: str
    codec: Codec
    supports_async: bool = False
    is_async: bool = False


class QueueParameters:
    """Parameters for the queue, read from a request's headers.

    Args:
        timeout_s: the client's timeout; 0 without one.
        lane: key of the client's fair share and priority, by which the scheduler divides capacity.
        forwarded_headers: headers to forward to the runtime.
        trace: trace headers.
        forwarded: whether a peer sent the request.
        return_before_s: time before its deadline at which a forwarded request is returned unless it has begun; 0 for
            never.
        load_format: format of the load report in the response; 0 for no report.
        shadow: whether the request is a batch that runs here for comparison only.
        sticky: the value that assigns the client to a revision.
        is_async: whether the client requests the result later.
    """

    __slots__ = (
        "forwarded", "forwarded_headers", "is_async", "lane", "load_format", "return_before_s", "shadow", "sticky",
        "timeout_s", "trace",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 (each with its name)
        self,
        timeout_s: float,
        lane: LaneKey,
        forwarded_headers: tuple[tuple[bytes, bytes], ...],
        trace: Mapping[str, str] | None,
        *,
        forwarded: bool = False,
        return_before_s: float = 0.0,
        load_format: int = 0,
        shadow: bool = False,
        sticky: bytes = b"",
        is_async: bool = False,
    ) -> None:
        self.timeout_s = timeout_s
        self.lane = lane
        self.forwarded_headers = forwarded_headers
        self.trace = trace
        self.forwarded = forwarded
        self.return_before_s = return_before_s
        self.load_format = load_format
        self.shadow = shadow
        self.sticky = sticky
        self.is_async = is_async


class RequestHead:
    """A request's route and headers. Header names are in lower case."""

    __slots__ = ("client", "headers", "keep_alive", "parameters", "route")

    def __init__(self, route: InferRoute, headers: dict[bytes, bytes], *, keep_alive: bool) -> None:
        self.route = route
        self.headers = headers
        self.keep_alive = keep_alive
        self.parameters: QueueParameters | None = None
        """None until the headers are interpreted."""
        self.client: AuthenticatedClient | None = None
        """The authenticated client; None until then, or without access control. Never cached."""


class HeadTemplate:
    """Template of a request head, with gaps for the values that change."""

    __slots__ = (
        "after",
        "gaps",
        "head",
        "headers",
        "length_gap",
        "lines",
        "same_parameters",
        "start",
        "target",
        "varying",
    )

    def __init__(
        self,
        head: RequestHead,
        target: bytes,
        lines: Sequence[bytes],
        varying: frozenset[bytes],
        *,
        same_parameters: bool,
    ) -> None:
        self.head = head
        self.headers: dict[bytes, bytes] = head.headers
        self.target = target
        self.lines = lines
        self.varying = varying
        self.same_parameters = same_parameters
        """Whether no gap is a header that affects `QueueParameters`."""
        self.gaps: list[bytes] = []
        """Lower-case names of the gaps' headers, in the order of the head."""
        pieces = [target + b"\r\n"]
        for line in lines:
            name, _, rest = line.partition(b":")
            if name.lower() in varying:
                pieces[-1] += line[: len(line) - len(rest.lstrip(b" \t"))]
                self.gaps.append(name.lower())
                pieces.append(b"")
            else:
                pieces[-1] += line
            pieces[-1] += b"\r\n"
        pieces[-1] += b"\r\n"
        self.start = pieces[0]
        self.after = pieces[1:]
        """The text after each gap, up to the next one or the body."""
        self.length_gap = self.gaps.index(_CONTENT_LENGTH)


class HeaderCache:
    """Templates of request heads, the most recently used first.

    Args:
        max_body_bytes: maximum size of the body of a matched request.
        max_head_bytes: maximum size of a head; each header counts `FIELD_BYTES` more than its size.
        term_names: lower-case names of the headers that affect `QueueParameters`.
    """

    def __init__(self, max_body_bytes: int, max_head_bytes: int, term_names: frozenset[bytes]) -> None:
        self._templates: list[HeadTemplate] = []
        self._max_body_bytes = max_body_bytes
        self._max_head_bytes = max_head_bytes
        self._parameter_headers = term_names

    def find(self, data: bytes) -> tuple[RequestHead, int] | None:
        """Return the cached head of a complete request, and its body's offset."""
        for template in self._templates:
            if not data.startswith(template.start):
                continue
            values: list[bytes] = []
            start = _cut(template, data, values)
            if start == 0:
                continue
            # The request must be within the limits, and its body complete.
            length, size_bytes = values[template.length_gap], len(data) - start
            if not (
                size_bytes <= self._max_body_bytes
                and start + FIELD_BYTES * len(template.lines) <= self._max_head_bytes
                and len(length) <= 8
                and length.isdigit()
                and int(length) == size_bytes
            ):
                continue
            if template is not self._templates[0]:
                self._templates.remove(template)
                self._templates.insert(0, template)
            headers = template.headers.copy()
            for index in range(len(values)):
                headers[template.gaps[index]] = values[index]
            head = RequestHead(template.head.route, headers, keep_alive=True)
            if template.same_parameters:
                head.parameters = template.head.parameters
            return head, start
        return None

    def store(self, data: bytes, head: RequestHead) -> None:
        """Cache ``head``, parsed from ``data``, if ``data`` is a whole request."""
        start = data.find(_END, 0, MAX_BYTES) + 4
        size_bytes = len(data) - start
        headers = head.headers
        if start < 4 or size_bytes > self._max_body_bytes or not data.startswith(_METHODS):
            return
        if head.parameters is None or not head.keep_alive or not headers.keys().isdisjoint(_UNKEPT):
            return
        target, *lines = data[: start - 4].split(b"\r\n")
        parts = [line.partition(b":") for line in lines]
        fields = {name.lower(): value.strip(b" \t") for name, _, value in parts}
        # Heads with repeated headers, or with lines that the parser splits differently, are always left to it.
        if not target.endswith(b" HTTP/1.1") or fields != headers or len(lines) != len(headers):
            return
        if headers.get(_CONTENT_LENGTH) != b"%d" % size_bytes:
            return
        varying = frozenset({_CONTENT_LENGTH})
        for template in self._templates:
            differing = _differing(template, target, lines)
            if differing is not None:
                self._templates.remove(template)
                varying = template.varying | differing
                break
        # If no gap affects `QueueParameters`, they are computed once per template.
        same_parameters = varying.isdisjoint(self._parameter_headers)
        self._templates.insert(0, HeadTemplate(head, target, lines, varying, same_parameters=same_parameters))
        # The least recently used ones are last.
        del self._templates[MAX_TEMPLATES:]


def _cut(template: HeadTemplate, data: bytes, values: list[bytes]) -> int:
    """Read the template's gaps from ``data``, and append them to ``values``.

    Returns: The offset of the body; 0 if ``data`` does not match the template.
    """
    start = len(template.start)
    for after in template.after:
        end = data.find(after, start, MAX_BYTES)
        if end <= start:
            return 0
        value = data[start:end]
        if value[0] == _SPACE or value[-1] == _SPACE:
            return 0
        values.append(value)
        start = end + len(after)
    # This also detects line ends: a gap that spans several lines.
    return 0 if b"".join(values).translate(None, _PRINTABLE) else start


def _differing(template: HeadTemplate, target: bytes, lines: Sequence[bytes]) -> frozenset[bytes] | None:
    """Return the headers whose values differ; None if other parts differ."""
    if target != template.target or len(lines) != len(template.lines):
        return None
    names: set[bytes] = set()
    for old, new in zip(template.lines, lines, strict=True):
        name = new.partition(b":")[0]
        if old.partition(b":")[0] != name:
            return None
        if old != new:
            names.add(name.lower())
    return frozenset(names) if names.isdisjoint(_PINNED) else None
