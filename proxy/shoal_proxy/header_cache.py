"""Requests' heads, understood without a parser when one like them was served before.

A client sends the same headers in the same order again and again. What changes is a few values: an id, a trace, a
length, a token. The first such head is parsed and kept as a template. Where a later one differs in values alone, those
become gaps in the template, and from then on a head is compared piece by piece and only the gaps are read. What follows
from the kept pieces (names, their order, the request line) was the parser's word; a value read here holds no character
that could end its line, so a head taken here is one that the parser takes, in the same way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from shoal_proxy.batching.pending import LaneKey
from shoal_proxy.codecs.base import Codec

MAX_BYTES: Final = 4096
"""Of a head that is kept."""
MAX_TARGETS: Final = 64
"""Request lines known; all are forgotten when there are more."""
MAX_TEMPLATES: Final = 8
"""Of one request line: clients that send other headers, or in another order. The one used last is kept longest."""
FIELD_BYTES: Final = 32
"""What each header costs beyond its letters, as HTTP/2 counts: many small ones take memory too."""
_END: Final = b"\r\n\r\n"
_METHODS: Final = (b"POST ", b"PUT /")
_CONTENT_LENGTH: Final = b"content-length"
_UNKEPT: Final = frozenset({b"expect", b"upgrade", b"transfer-encoding"})
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


class Terms(NamedTuple):
    """What a request's headers ask of the queue."""

    timeout_s: float
    """0 when they name none."""
    lane: LaneKey
    forwarded: tuple[tuple[bytes, bytes], ...]
    trace: Mapping[str, str] | None


class Head:
    """A request line and headers; header names in lower case."""

    __slots__ = ("headers", "keep_alive", "route", "terms")

    def __init__(self, route: Route, headers: Mapping[bytes, bytes], *, keep_alive: bool) -> None:
        self.route = route
        self.headers = headers
        self.keep_alive = keep_alive
        self.terms: Terms | None = None
        """None until somebody has made sense of the headers."""


class Template:
    """A head with gaps for the values that change. ``lines`` are the headers of the one it was made from."""

    __slots__ = ("after", "gaps", "head", "length_gap", "lines", "names", "same_terms", "start", "varying")

    def __init__(
        self, head: Head, target: bytes, lines: Sequence[bytes], varying: frozenset[bytes], *, same_terms: bool
    ) -> None:
        self.head = head
        self.lines = lines
        self.names = [line.partition(b":")[0] for line in lines]
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
                pieces.append(b"\r\n")
            else:
                pieces[-1] += line + b"\r\n"
        pieces[-1] += b"\r\n"
        self.start = pieces[0]
        self.after = pieces[1:]
        """What follows each gap, up to the next one or to the body."""
        self.length_gap = self.gaps.index(_CONTENT_LENGTH)


class HeaderCache:
    """Templates by their request lines.

    Args:
        max_body_bytes: of the requests that are taken here.
        max_head_bytes: of any head, each header counting `FIELD_BYTES` more.
        term_names: of the headers that `Terms` are made of, in lower case.
    """

    def __init__(self, max_body_bytes: int, max_head_bytes: int, term_names: frozenset[bytes]) -> None:
        self._targets: dict[bytes, list[Template]] = {}
        self._max_body_bytes = max_body_bytes
        self._max_head_bytes = max_head_bytes
        self._term_names = term_names

    def find(self, data: bytes) -> tuple[Head, int] | None:
        """Return the head of ``data`` and where its body starts, if ``data`` is one whole request of a known kind."""
        templates = self._targets.get(data[: data.find(b"\r\n", 0, MAX_BYTES)])
        if templates is None:
            return None
        for template in templates:
            found = self._read(template, data)
            if found is not None:
                if template is not templates[0]:
                    templates.remove(template)
                    templates.insert(0, template)
                return found
        return None

    def _read(self, template: Template, data: bytes) -> tuple[Head, int] | None:
        values, start = _cut(template, data)
        size_bytes = len(data) - start
        if start == 0 or size_bytes > self._max_body_bytes:
            return None
        if start + FIELD_BYTES * len(template.lines) > self._max_head_bytes:
            return None
        length = values[template.length_gap]
        if len(length) > 8 or not length.isdigit() or int(length) != size_bytes:
            return None
        headers = dict(template.head.headers)
        for index in range(len(values)):
            headers[template.gaps[index]] = values[index]
        head = Head(template.head.route, headers, keep_alive=True)
        if template.same_terms:
            head.terms = template.head.terms
        return head, start

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
        if len(self._targets) >= MAX_TARGETS and target not in self._targets:
            self._targets.clear()
        templates = self._targets.setdefault(target, [])
        varying = frozenset({_CONTENT_LENGTH})
        for template in templates:
            differing = _differing(template, lines)
            if differing is not None:
                templates.remove(template)
                varying = template.varying | differing
                break
        same_terms = varying.isdisjoint(self._term_names)
        templates.insert(0, Template(head, target, lines, varying, same_terms=same_terms))
        del templates[MAX_TEMPLATES:]


def _cut(template: Template, data: bytes) -> tuple[list[bytes], int]:
    """Return what is in the template's gaps and where the body starts; 0 where ``data`` is not of its kind."""
    values: list[bytes] = []
    if not data.startswith(template.start):
        return values, 0
    start = len(template.start)
    for after in template.after:
        end = data.find(b"\r\n", start, MAX_BYTES)
        if end <= start or not data.startswith(after, end):
            return values, 0
        value = data[start:end]
        if value[0] == _SPACE or value[-1] == _SPACE:
            return values, 0
        values.append(value)
        start = end + len(after)
    return values, 0 if b"".join(values).translate(None, _PRINTABLE) else start


def _fields(lines: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the headers that ``lines`` hold, as the parser hands them over."""
    parts = [line.partition(b":") for line in lines]
    return {name.lower(): value.strip(b" \t") for name, _, value in parts}


def _differing(template: Template, lines: Sequence[bytes]) -> frozenset[bytes] | None:
    """Return the names of the headers that differ from the template's, None where more than values do."""
    if [line.partition(b":")[0] for line in lines] != template.names:
        return None
    pairs = zip(template.lines, lines, strict=True)
    names = {new.partition(b":")[0].lower() for old, new in pairs if old != new}
    return frozenset(names) if names.isdisjoint(_PINNED) else None
