"""Parsing of multipart forms, as sent by ``curl -F data=@cat.jpg``."""

from typing import TYPE_CHECKING, Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_PARTS: Final = 128
"""Limit of parts per form: each needs more memory than its bytes."""


class FormPart:
    """A part: its field's name, its media type in lower case (empty without one) and its data."""

    __slots__ = ("data", "media_type", "name")

    def __init__(self, name: str, media_type: str, data: bytes) -> None:
        self.name = name
        self.media_type = media_type
        self.data = data


def form_parts(body: bytes, content_type: bytes) -> list[FormPart]:
    """Parse a form into its parts, in order.

    Raises:
        ValueError: the body is not a form with a boundary and at least one complete part.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise ValueError("multipart/form-data without a boundary")
    reader = _Reader()
    try:
        parser = MultipartParser(boundary, reader.callbacks())
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise ValueError(f"malformed multipart form: {error}") from None
    if not reader.parts:
        raise ValueError("the multipart form has no part")
    return reader.parts


class _Reader:
    """Collector of a form's parts, from the callbacks of python-multipart."""

    def __init__(self) -> None:
        self.parts: list[FormPart] = []
        self._data: list[bytes] = []
        self._headers: dict[bytes, bytes] = {}
        self._field: list[bytes] = []
        self._value: list[bytes] = []

    def callbacks(self) -> "MultipartCallbacks":
        """Return callbacks for ``MultipartParser``."""
        return {
            "on_part_data": lambda data, start, end: self._data.append(data[start:end]),
            "on_part_end": self._on_end,
            "on_header_field": lambda data, start, end: self._field.append(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.append(data[start:end]),
            "on_header_end": self._on_header,
        }

    def _on_end(self) -> None:
        if len(self.parts) >= MAX_PARTS:
            raise ValueError(f"the multipart form has over {MAX_PARTS} parts")
        # Content-Disposition has the field's name (RFC 7578, section 4.2).
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        media_type = self._headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")
        name = options.get(b"name", b"").decode(errors="replace")
        self.parts.append(FormPart(name, media_type, b"".join(self._data)))
        self._headers, self._data = {}, []

    def _on_header(self) -> None:
        self._headers[b"".join(self._field).lower()] = b"".join(self._value)
        self._field.clear()
        self._value.clear()
