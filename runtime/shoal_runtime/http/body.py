"""Buffers of large request bodies, in the memory that the model uses."""

from collections.abc import Mapping
from typing import Final

from shoal_schema.interfaces.headers import HEADER_LENGTH
from shoal_schema.wire.body import Body

LARGE_BYTES: Final = 16384
BODY: Final = "shoal.body"
"""Key in an ASGI scope: the `Body` of a large request, else None."""


def large_body(headers: Mapping[bytes, bytes], limit_bytes: int) -> Body | None:
    """Return a buffer for a request's body; None if the body is small or exceeds `limit_bytes`."""
    size_bytes = int(headers.get(b"content-length", 0))
    if not LARGE_BYTES < size_bytes <= limit_bytes:
        return None
    # The binary part after the JSON is aligned, so that tensors need no copy.
    json_bytes = headers.get(HEADER_LENGTH.encode(), b"")
    aligned_at = int(json_bytes) if json_bytes.isdigit() and len(json_bytes) < 16 else 0
    return Body(size_bytes, aligned_at=aligned_at)
