"""Tensors between the wire and canonical arrays, every value checked: JSON data, binary data, shapes.

numpy converts generously ("1" to 1.0, 300 to 44 as UINT8); a model's caller deserves an error instead.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from shoal_proxy.errors import InvalidRequest
from shoal_proxy.model.datatypes import DTYPES, Array, bytes_array
from shoal_proxy.model.signature import InputSpec, ModelSignature, OutputSpec

_KINDS = {"f": "iuf", "i": "iu", "u": "iu", "b": "b"}
_WORDS = {"f": "numbers", "i": "integers", "u": "integers", "b": "booleans", "O": "strings"}
_LENGTH = struct.Struct("<I")


def canonical_shape(spec: InputSpec, shape: Any) -> tuple[int, ...]:
    """Return a wire ``shape`` with its batch dimension in front, checked against the model's.

    Raises:
        InvalidRequest: it is no list of sizes, has no rows, or differs from the signature.
    """
    if type(shape) is not list or not all(type(size) is int and size >= 0 for size in shape):
        raise InvalidRequest(f"input {spec.name!r}: shape must be a list of sizes, not {shape!r}")
    if spec.batch_dim and len(shape) > spec.batch_dim:
        shape = [shape[spec.batch_dim], *shape[: spec.batch_dim], *shape[spec.batch_dim + 1 :]]
    check_shape(spec, tuple(shape))
    return tuple(shape)


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
    if spec.datatype == "BYTES":
        return _strings(spec, data)
    if spec.datatype == "BF16":
        raise InvalidRequest(f"input {spec.name!r} is BF16, which JSON cannot carry: send it as binary data")
    try:
        natural = np.array(data)
    except ValueError:
        raise InvalidRequest(f"input {spec.name!r} has ragged rows: lists at one level differ in length") from None
    except OverflowError as error:
        raise InvalidRequest(f"input {spec.name!r}: {error}") from None
    dtype = DTYPES[spec.datatype]
    if natural.dtype.kind not in _KINDS[dtype.kind] and natural.size:
        raise InvalidRequest(f"input {spec.name!r} is {spec.datatype} and takes {_WORDS[dtype.kind]} only")
    return natural if natural.dtype == dtype else _narrow(spec, natural, dtype)


def _narrow(spec: InputSpec, natural: Array, dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            narrow = natural.astype(dtype)
        fits = bool(np.isfinite(narrow).all())
    else:
        narrow = natural.astype(dtype)
        bounds = np.iinfo(dtype) if dtype.kind in "iu" else None
        fits = not natural.size or bounds is None or (natural.min() >= bounds.min and natural.max() <= bounds.max)
    if not fits:
        raise InvalidRequest(f"input {spec.name!r} holds values outside the range of {spec.datatype}")
    return narrow


def _strings(spec: InputSpec, data: Any) -> Array:
    level, shape = (data if type(data) is list else [data]), []
    if type(data) is list:
        shape.append(len(data))
    while level and type(level[0]) is list:
        width = len(level[0])
        if any(type(row) is not list or len(row) != width for row in level):
            raise InvalidRequest(f"input {spec.name!r} has ragged rows: lists at one level differ in length")
        level = list(chain.from_iterable(level))
        shape.append(width)
    if not all(type(text) is str for text in level):
        raise InvalidRequest(f"input {spec.name!r} is BYTES and takes strings only")
    return bytes_array([text.encode() for text in level], tuple(shape))


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


def check_json(inputs: Mapping[str, Array], signature: ModelSignature) -> None:
    """Refuse what a runtime without the binary extension cannot be told.

    Here, and not when the batch is written: there it would fail the requests of others too.

    Raises:
        InvalidRequest: bytes that are no text, NaN, an infinity, or bfloat16.
    """
    for name, array in inputs.items():
        if what := _unspeakable(signature.inputs[name], array):
            raise InvalidRequest(f"input {name!r} holds {what}, and this runtime takes JSON only")


def _unspeakable(spec: InputSpec, array: Array) -> str:
    """Return what in ``array`` JSON has no words for, or nothing."""
    if spec.datatype == "BF16":
        return "bfloat16"
    if array.dtype.kind == "f":
        return "" if np.isfinite(array).all() else "NaN or infinity"
    if not array.dtype.hasobject:
        return ""
    try:
        for element in array.ravel().tolist():
            element.decode()
    except UnicodeDecodeError:
        return "bytes that are not UTF-8 text"
    return ""


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
