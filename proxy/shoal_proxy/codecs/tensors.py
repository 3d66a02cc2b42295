"""Tensors between the wire and canonical arrays, every value checked: JSON data, binary data, shapes.

numpy converts generously ("1" to 1.0, 300 to 44 as UINT8); a model's caller deserves an error instead.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from shoal_proxy.errors import InvalidRequest
from shoal_proxy.model.datatypes import DTYPES, Array, bytes_array
from shoal_proxy.model.signature import InputSpec, OutputSpec

_NUMBERS = (frozenset({float, int}), "numbers")
_INTEGERS = (frozenset({int}), "integers")
_ALLOWED: dict[str, tuple[frozenset[type], str]] = {
    **dict.fromkeys(("FP16", "FP32", "FP64", "BF16"), _NUMBERS),
    **dict.fromkeys((f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)), _INTEGERS),
    "BOOL": (frozenset({bool}), "booleans"),
    "BYTES": (frozenset({str}), "strings"),
}
_CODES = {
    "BOOL": "?", "INT8": "b", "UINT8": "B", "INT16": "h", "UINT16": "H", "INT32": "i", "UINT32": "I",
    "INT64": "q", "UINT64": "Q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
_LENGTH = struct.Struct("<I")


def check_wire_shape(spec: InputSpec, shape: Any) -> None:
    """Refuse a wire ``shape`` that the model does not take.

    Raises:
        InvalidRequest: it is no list of sizes, has no rows, or differs from the signature.
    """
    if shape == spec.one_row:
        return
    if type(shape) is not list or not all(type(size) is int and size >= 0 for size in shape):
        raise InvalidRequest(f"input {spec.name!r}: shape must be a list of sizes, not {shape!r}")
    if spec.batch_dim and len(shape) > spec.batch_dim:
        shape = [shape[spec.batch_dim], *shape[: spec.batch_dim], *shape[spec.batch_dim + 1 :]]
    check_shape(spec, tuple(shape))


def check_shape(spec: InputSpec, shape: tuple[int, ...]) -> None:
    """Refuse a canonical ``shape`` that the model does not take."""
    fits = len(shape) == len(spec.shape)
    if not fits or any(want not in (-1, size) for want, size in zip(spec.shape, shape, strict=True)):
        raise InvalidRequest(
            f"input {spec.name!r} has shape {wire_shape(spec, shape)};"
            f" the model takes {wire_shape(spec, spec.shape)} (-1: any size)"
        )
    if shape and shape[0] == 0:
        raise InvalidRequest(f"input {spec.name!r} has no rows")


def wire_shape(spec: InputSpec | OutputSpec, shape: Sequence[int]) -> list[int]:
    """Return a canonical ``shape`` as the wire has it."""
    sizes = list(shape)
    if spec.batch_dim and len(sizes) > spec.batch_dim:
        sizes.insert(spec.batch_dim, sizes.pop(0))
    return sizes


def wire_axis(spec: InputSpec | OutputSpec, axis: int) -> int:
    """Return a canonical axis, not the batch dimension, as the wire counts it."""
    return axis - 1 if axis <= spec.batch_dim else axis


def to_canonical(spec: InputSpec | OutputSpec, array: Array) -> Array:
    """Return a view of a wire array with its batch dimension in front."""
    return np.moveaxis(array, spec.batch_dim, 0) if spec.batch_dim else array


def to_wire(spec: InputSpec | OutputSpec, array: Array) -> Array:
    """Return a canonical array as the wire has it, contiguous."""
    return (
        np.ascontiguousarray(np.moveaxis(array, 0, spec.batch_dim)) if spec.batch_dim else np.ascontiguousarray(array)
    )


def from_json(spec: InputSpec, data: Any) -> Array:
    """Return JSON ``data`` (a scalar or nested lists) as an array of the input's datatype and its own shape.

    Raises:
        InvalidRequest: ragged rows, values of another type, or values the datatype cannot hold.
    """
    flat: list[Any] = data if type(data) is list else [data]
    shape: tuple[int, ...] = (len(flat),) if flat is data else ()
    kinds = set(map(type, flat))
    if list in kinds:
        flat, shape = _flatten(spec, flat)
        kinds = set(map(type, flat))
    allowed, words = _ALLOWED[spec.datatype]
    if not kinds <= allowed:
        raise InvalidRequest(f"input {spec.name!r} is {spec.datatype} and takes {words} only")
    if spec.datatype == "BYTES":
        return bytes_array([text.encode() for text in flat], shape)
    return _pack(spec, flat).reshape(shape)


def _pack(spec: InputSpec, flat: list[Any]) -> Array:
    """``struct`` packs numbers quickly and, unlike numpy, refuses what does not fit."""
    code = _CODES.get(spec.datatype)
    if code is None:
        raise InvalidRequest(f"input {spec.name!r} is BF16, which JSON cannot carry: send it as binary data")
    try:
        return np.frombuffer(struct.pack(f"<{len(flat)}{code}", *flat), DTYPES[spec.datatype])
    except (struct.error, OverflowError):
        raise InvalidRequest(f"input {spec.name!r} holds values outside the range of {spec.datatype}") from None


def _flatten(spec: InputSpec, level: list[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """Return nested lists as one, with their shape."""
    shape = [len(level)]
    while level and type(level[0]) is list:
        width = len(level[0])
        if any(type(row) is not list or len(row) != width for row in level):
            raise InvalidRequest(f"input {spec.name!r} has ragged rows: lists at one level differ in length")
        level = list(chain.from_iterable(level))
        shape.append(width)
    return level, tuple(shape)


def from_binary(spec: InputSpec | OutputSpec, data: memoryview, shape: Sequence[int]) -> Array:
    """Return ``data``, little-endian and row-major, as an array of wire ``shape``, without copying where possible.

    Raises:
        InvalidRequest: its length does not fit the shape.
    """
    if spec.datatype == "BYTES":
        return bytes_array(_elements(spec.name, data, prod(shape)), tuple(shape))
    dtype = DTYPES[spec.datatype]
    expected = prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise InvalidRequest(
            f"tensor {spec.name!r}: {spec.datatype} of shape {list(shape)} is {expected} bytes, not {len(data)}"
        )
    if dtype.kind == "b":
        flags: Array = np.frombuffer(data, np.uint8).reshape(shape) != 0
        return flags
    return np.frombuffer(data, dtype).reshape(shape)


def _elements(name: str, data: memoryview, count: int) -> list[bytes]:
    elements: list[bytes] = []
    offset = 0
    while offset < len(data):
        if offset + 4 > len(data):
            raise InvalidRequest(f"tensor {name!r}: BYTES data ends inside an element's length")
        (length,) = _LENGTH.unpack_from(data, offset)
        offset += 4 + length
        if offset > len(data):
            raise InvalidRequest(f"tensor {name!r}: a BYTES element says {length} bytes, but the data ends before")
        elements.append(bytes(data[offset - length : offset]))
    if len(elements) != count:
        raise InvalidRequest(f"tensor {name!r}: shape wants {count} BYTES elements, the data holds {len(elements)}")
    return elements


def to_binary(array: Array) -> bytes | memoryview:
    """Return a wire array's bytes: a view where memory allows it."""
    if array.dtype.hasobject:
        return b"".join(piece for element in array.ravel().tolist() for piece in (_LENGTH.pack(len(element)), element))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def widen_bf16(array: Array) -> Array:
    """Return raw bfloat16 bits as float32 values, for JSON."""
    return (array.astype(np.uint32) << 16).view(np.float32)


def text(element: bytes) -> Any:
    """Return a ``BYTES`` element as JSON shows it: its UTF-8 text, or base64 as V1 writes it."""
    try:
        return element.decode()
    except UnicodeDecodeError:
        from base64 import b64encode  # noqa: PLC0415 (rare: binary data in a JSON answer)

        return {"b64": b64encode(element).decode()}
