"""`BYTES` elements: each is a 4-byte little-endian length, then that many bytes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal_runtime.codecs.datatypes import Array

_LENGTH = struct.Struct("<I")


def unpack_elements(raw: memoryview) -> list[bytes]:
    """Split `raw` into its elements.

    Raises:
        ValueError: a length runs past the end.
    """
    elements: list[bytes] = []
    position, end = 0, len(raw)
    while position < end:
        if position + _LENGTH.size > end:
            raise ValueError(f"the last {end - position} bytes are no whole 4-byte length")
        (length,) = _LENGTH.unpack_from(raw, position)
        position += _LENGTH.size
        if position + length > end:
            raise ValueError(f"element {len(elements)} claims {length} bytes, {end - position} are left")
        elements.append(bytes(raw[position : position + length]))
        position += length
    return elements


def pack_elements(elements: Iterable[bytes]) -> bytes:
    """Join the elements, each behind its length."""
    parts = []
    for element in elements:
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def object_array(elements: Sequence[object], shape: tuple[int, ...]) -> Array:
    """Return a `shape`-shaped array of these objects, kept as they are."""
    array = np.empty(len(elements), dtype=object)
    # Slice assignment would look inside elements that are sequences themselves.
    for index, element in enumerate(elements):
        array[index] = element
    return array.reshape(shape)
