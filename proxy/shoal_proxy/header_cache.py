"""Requests' heads, understood without a parser when one like them was served before.

A client sends the same headers in the same order again and again. What changes is a few values: an id, a trace, a
length, a token. The first such head is parsed and kept as a template. Where a later one differs in values alone, those
become gaps in the template, and from then on a head is compared piece by piece and only the gaps are read. What follows
from the kept pieces (names, their order, the request line) was the parser's word; a value read here holds no character
that could end its line, so a head taken here is one that the parser takes, in the same way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shoal_proxy.access.gate import Caller
from shoal_proxy.batching.pending import LaneKey
from shoal_proxy.codecs.base import Codec
from shoal_schema.wire.framing import FIELD_BYTES

MAX_BYTES: Final = 4096
"""Of a head that is kept."""
MAX_TEMPLATES: Final = 16
"""One for each path and each kind of client: other headers, or another order. The one used last is kept longest."""
_END: Final = b"\r\n\r\n"
_METHODS: Final = (b"POST ", b"PUT /")
_CONTENT_LENGTH: Final = b"content-length"
_UNKEPT: Final = frozenset({b"content-encoding", b"expect", b"upgrade", b"transfer-encoding"})
"""Headers that ask for more than to be answered."""
_PINNED: Final = frozenset({b"connection", b"proxy-connection"})
"""Headers whose values say what becomes of the connection: no gaps."""
_PRINTABLE: Final = bytes(range(0x20, 0x7F))
"""What a value may hold to be read here; the parser takes a little more."""
_SPACE: Final = 0x20


@dataclass(frozen=True)
class Route:
    """One infer path: which codec speaks there."""

    codec: Codec


class Terms:
    """What a request's headers ask of the queue; ``timeout_s`` is 0 when they name none.

    ``handed_over``: a sibling sends it. ``load_format``: how to tell our load in the answer, 0 for not at all.
    """

    __slots__ = ("forwarded", "handed_over", "lane", "load_format", "timeout_s", "trace")

    def __init__(
        self,
        timeout_s: float,
        lane: LaneKey,
        forwarded: tuple[tuple[bytes, bytes], ...],
        trace: Mapping[str, str] | None,
        *,
        handed_over: bool = False,
        load_format: int = 0,
    ) -> None:
        self.timeout_s = timeout_s
        self.lane = lane
        self.forwarded = forwarded
        self.trace = trace
        self.handed_over = handed_over
        self.load_format = load_format


class Head:
    """A request line and headers; header names in lower case."""

    __slots__ = ("caller", "headers", "keep_alive", "route", "terms")

    def __init__(self, route: Route, headers: dict[bytes, bytes], *, keep_alive: bool) -> None:
        self.route = route
        self.headers = headers
        self.keep_alive = keep_alive
        self.terms: Terms | None = None
        """None until somebody has made sense of the headers."""
        self.caller: Caller | None = None
        """None until it is known who calls, where that is asked; never kept for a later request."""


class Template:
    """A head with gaps for the values that change. ``lines`` are the headers of the one it was made from."""

    __slots__ = ("after", "gaps", "head", "headers", "length_gap", "lines", "same_terms", "start", "target", "varying")

    def __init__(
        self, head: Head, target: bytes, lines: Sequence[bytes], varying: frozenset[bytes], *, same_terms: bool
    ) -> None:
        self.head = head
        self.headers: dict[bytes, bytes] = head.headers
        self.target = target
        self.lines = lines
        self.varying = varying
        self.same_terms = same_terms
        """Whether no gap is a header that `Terms` are made of."""
        self.gaps: list[bytes] = []
        """Names, in lower case, in the order of the head."""
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
        """What follows each gap, up to the next one or to the body."""
        self.length_gap = self.gaps.index(_CONTENT_LENGTH)


class HeaderCache:
    """Templates, the one used last first.

    Args:
        max_body_bytes: of the requests that are taken here.
        max_head_bytes: of any head, each header counting `FIELD_BYTES` more.
        term_names: of the headers that `Terms` are made of, in lower case.
    """

    def __init__(self, max_body_bytes: int, max_head_bytes: int, term_names: frozenset[bytes]) -> None:
        self._templates: list[Template] = []
        self._max_body_bytes = max_body_bytes
        self._max_head_bytes = max_head_bytes
        self._term_names = term_names

    def find(self, data: bytes) -> tuple[Head, int] | None:
        """Return the head of ``data`` and where its body starts, if ``data`` is one whole request of a known kind."""
        for template in self._templates:
            if not data.startswith(template.start):
                continue
            values: list[bytes] = []
            start = _cut(template, data, values)
            if start == 0 or not self._takes(template, values[template.length_gap], start, len(data) - start):
                continue
            if template is not self._templates[0]:
                self._templates.remove(template)
                self._templates.insert(0, template)
            return _head_with(template, values), start
        return None

    def _takes(self, template: Template, length: bytes, start: int, size_bytes: int) -> bool:
        """Return whether a request is within its limits and its body as long as it says."""
        return (
            size_bytes <= self._max_body_bytes
            and start + FIELD_BYTES * len(template.lines) <= self._max_head_bytes
            and len(length) <= 8
            and length.isdigit()
            and int(length) == size_bytes
        )

    def learn(self, data: bytes, head: Head) -> None:
        """Keep the ``head`` of ``data``, which was parsed and served, if ``data`` was one whole request."""
        start = data.find(_END, 0, MAX_BYTES) + 4
        size_bytes = len(data) - start
        headers = head.headers
        if start < 4 or size_bytes > self._max_body_bytes or not data.startswith(_METHODS):
            return
        if head.terms is None or not head.keep_alive or not headers.keys().isdisjoint(_UNKEPT):
            return
        target, *lines = data[: start - 4].split(b"\r\n")
        # Where headers are repeated, or the parser read lines otherwise than they are cut here, it is asked each time.
        if not target.endswith(b" HTTP/1.1") or _fields(lines) != headers or len(lines) != len(headers):
            return
        if headers.get(_CONTENT_LENGTH) == b"%d" % size_bytes:
            self._keep(head, target, lines)

    def _keep(self, head: Head, target: bytes, lines: list[bytes]) -> None:
        varying = frozenset({_CONTENT_LENGTH})
        for template in self._templates:
            differing = _differing(template, target, lines)
            if differing is not None:
                self._templates.remove(template)
                varying = template.varying | differing
                break
        same_terms = varying.isdisjoint(self._term_names)
        self._templates.insert(0, Template(head, target, lines, varying, same_terms=same_terms))
        del self._templates[MAX_TEMPLATES:]


def _cut(template: Template, data: bytes, values: list[bytes]) -> int:
    """Put what is in the gaps into ``values``; return where the body starts, 0 where ``data`` is of another kind."""
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
    # This also finds the ends of lines: a gap that was cut too long.
    return 0 if b"".join(values).translate(None, _PRINTABLE) else start


def _head_with(template: Template, values: list[bytes]) -> Head:
    headers = template.headers.copy()
    for index in range(len(values)):
        headers[template.gaps[index]] = values[index]
    head = Head(template.head.route, headers, keep_alive=True)
    if template.same_terms:
        head.terms = template.head.terms
    return head


def _fields(lines: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the headers that ``lines`` hold, as the parser hands them over."""
    parts = [line.partition(b":") for line in lines]
    return {name.lower(): value.strip(b" \t") for name, _, value in parts}


def _differing(template: Template, target: bytes, lines: Sequence[bytes]) -> frozenset[bytes] | None:
    """Return the names of the headers that differ from the template's, None where more than values do."""
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
