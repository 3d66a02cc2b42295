"""``BYTES`` elements: each is a 4-byte little-endian length, then that many bytes."""

import struct
from collections.abc import Iterable, Sequence

import numpy as np

from shoal_schema.wire.datatypes import Array

_LENGTH = struct.Struct("<I")


def unpack_elements(raw: bytes | memoryview) -> list[bytes]:
    """Split ``raw`` into its elements.

    Raises:
        ValueError: a length runs past the end.
    """
    elements: list[bytes] = []
    position = 0
    end = len(raw)
    while position < end:
        if position + 4 > end:
            raise ValueError(f"BYTES data ends inside an element's length: {end - position} of 4 bytes")
        (length,) = _LENGTH.unpack_from(raw, position)
        position += 4 + length
        if position > end:
            raise ValueError(f"BYTES element {len(elements)} says {length} bytes, but the data ends before")
        elements.append(bytes(raw[position - length : position]))
    return elements


def pack_elements(elements: Iterable[bytes]) -> bytes:
    """Join the elements, each behind its length."""
    parts: list[bytes] = []
    for element in elements:
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def bytes_array(elements: list[bytes], shape: tuple[int, ...]) -> Array:
    """Return ``elements`` as an object array of ``shape``, without letting numpy look inside them."""
    flat = np.empty(len(elements), dtype=object)
    flat[:] = elements
    return flat.reshape(shape)


def object_array(elements: Sequence[object], shape: tuple[int, ...]) -> Array:
    """Return an array of ``shape`` of any objects, kept as they are."""
    array = np.empty(len(elements), dtype=object)
    # Slice assignment would look inside elements that are sequences themselves.
    for index, element in enumerate(elements):
        array[index] = element
    return array.reshape(shape)
