"""``BYTES`` elements: a 4-byte little-endian length, then that many bytes."""

import struct
from collections.abc import Iterable, Sequence

import numpy as np

from shoal_schema.wire.datatypes import Array

_LENGTH = struct.Struct("<I")


def unpack_elements(raw: bytes | memoryview) -> list[bytes]:
    """Split ``raw`` into elements.

    Raises:
        ValueError: a length exceeds the data.
    """
    elements: list[bytes] = []
    position = 0
    end = len(raw)
    while position < end:
        if position + 4 > end:
            raise ValueError(f"BYTES data ends inside an element's length: {end - position} of 4 bytes")
        # Check the length before copying: it may claim 4 GiB.
        (length,) = _LENGTH.unpack_from(raw, position)
        position += 4 + length
        if position > end:
            raise ValueError(
                f"BYTES element {len(elements)} has a length of {length} bytes, beyond the end of the data"
            )
        elements.append(bytes(raw[position - length : position]))
    return elements


def pack_elements(elements: Iterable[bytes]) -> bytes:
    """Join elements, each after its length."""
    parts: list[bytes] = []
    for element in elements:
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def bytes_array(elements: list[bytes], shape: tuple[int, ...]) -> Array:
    """Return an object array of ``bytes`` elements."""
    flat = np.empty(len(elements), dtype=object)
    flat[:] = elements
    return flat.reshape(shape)


def object_array(elements: Sequence[object], shape: tuple[int, ...]) -> Array:
    """Return an object array of any elements; numpy leaves elements that are sequences unchanged."""
    array = np.empty(len(elements), dtype=object)
    # Slice assignment would unpack elements that are sequences.
    for index, element in enumerate(elements):
        array[index] = element
    return array.reshape(shape)
