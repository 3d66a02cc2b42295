"""The first part of a multipart form, as ``curl -F data=@cat.jpg`` sends it."""

from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from shoal_proxy.errors import InvalidRequest

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks


def first_part(body: bytes, content_type: bytes) -> tuple[bytes, str]:
    """Return the first part's data and its media type; "" when it names none.

    Raises:
        InvalidRequest: the body is not a form with a boundary and at least one whole part.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise InvalidRequest("multipart/form-data without a boundary")
    reader = _FirstPart()
    try:
        parser = MultipartParser(boundary, reader.callbacks())
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise InvalidRequest(f"malformed multipart form: {error}") from None
    if reader.parts == 0:
        raise InvalidRequest("the multipart form has no part")
    return b"".join(reader.data), reader.media_type


class _FirstPart:
    """Collects the first part; python-multipart calls back as it parses."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.media_type = ""
        self.parts = 0
        self._field: list[bytes] = []
        self._value: list[bytes] = []

    def callbacks(self) -> "MultipartCallbacks":
        """Return the callbacks of ``MultipartParser``."""
        return {
            "on_part_data": self._on_data,
            "on_part_end": self._on_end,
            "on_header_field": lambda data, start, end: self._field.append(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.append(data[start:end]),
            "on_header_end": self._on_header,
        }

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self.parts == 0:
            self.data.append(data[start:end])

    def _on_end(self) -> None:
        self.parts += 1

    def _on_header(self) -> None:
        if self.parts == 0 and b"".join(self._field).lower() == b"content-type":
            value = b"".join(self._value).partition(b";")[0]
            self.media_type = value.strip().lower().decode("latin-1")
        self._field.clear()
        self._value.clear()
