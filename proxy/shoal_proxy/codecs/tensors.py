"""Convert tensors between JSON or binary data and arrays, and check values and shapes.

numpy would convert silently ("1" to 1.0, 300 to 44 as UINT8); here such values are errors. A canonical array has the
batch dimension first; a wire array has it where the model declares it.
"""

import struct
from collections.abc import Callable, Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from shoal_proxy.codecs.base import shown
from shoal_proxy.codecs.cells import numbers, texts
from shoal_proxy.errors import InvalidRequest
from shoal_proxy.model.signature import InputSpec, OutputSpec
from shoal_schema.wire.datatypes import DTYPES, Array
from shoal_schema.wire.elements import bytes_array, pack_elements, unpack_elements

_NUMBERS = (frozenset({float, int}), "numbers")
_INTEGERS = (frozenset({int}), "integers")
ALLOWED: dict[str, tuple[frozenset[type], str]] = {
    **dict.fromkeys(("FP16", "FP32", "FP64", "BF16"), _NUMBERS),
    **dict.fromkeys((f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)), _INTEGERS),
    "BOOL": (frozenset({bool}), "booleans"),
    "BYTES": (frozenset({str}), "strings"),
}
CODES = {
    "BOOL": "?", "INT8": "b", "UINT8": "B", "INT16": "h", "UINT16": "H", "INT32": "i", "UINT32": "I",
    "INT64": "q", "UINT64": "Q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
_MAX_DIMENSIONS = 32  # numpy 1.26's; JSON may nest a thousand deep


def wire_shape_of(spec: InputSpec, shape: Any) -> list[int]:
    """Check and return the ``shape`` of a tensor in a request.

    Raises:
        InvalidRequest: ``shape`` is not a list of sizes, has no rows, or does not match the signature.
    """
    if spec.one_row is not None and are_sizes(shape, spec.one_row):
        return spec.one_row
    if type(shape) is not list or not all(type(size) is int and size >= 0 for size in shape):
        raise InvalidRequest(f"input {spec.name!r}: shape must be a list of sizes, not {shown(shape)}")
    sizes = list(shape)
    if len(sizes) > spec.batch_dim:
        # The canonical form has the batch dimension first.
        sizes.insert(0, sizes.pop(spec.batch_dim))
    check_shape(spec, tuple(sizes))
    return shape


def are_sizes(given: Any, sizes: list[int]) -> bool:
    """Return whether ``given`` equals ``sizes`` and holds only integers."""
    if given != sizes:
        return False
    for size in given:  # noqa: SIM110 (a generator costs more than all of this)
        if type(size) is not int:
            return False
    return True


def check_shape(spec: InputSpec, shape: tuple[int, ...]) -> None:
    """Reject a canonical ``shape`` that does not match the signature."""
    fits = len(shape) == len(spec.shape)
    if not fits or any(want not in (-1, size) for want, size in zip(spec.shape, shape, strict=True)):
        raise InvalidRequest(
            f"input {spec.name!r} has shape {shown(wire_shape(spec, shape))};"
            f" the model expects {wire_shape(spec, spec.shape)} (-1: any size)"
        )
    if 0 in shape:
        # Empty rows need no data: [10**12, 0] would fill the queue with a request of a hundred bytes.
        what = "no rows" if shape[0] == 0 else "no elements"
        raise InvalidRequest(f"input {spec.name!r} has {what}: its shape is {wire_shape(spec, shape)}")


def wire_shape(spec: InputSpec | OutputSpec, shape: Sequence[int]) -> list[int]:
    """Return a canonical ``shape`` with the batch dimension at its wire position."""
    sizes = list(shape)
    if spec.batch_dim and len(sizes) > spec.batch_dim:
        sizes.insert(spec.batch_dim, sizes.pop(0))
    return sizes


def wire_axis(spec: InputSpec | OutputSpec, axis: int) -> int:
    """Return the wire index of a canonical axis other than the batch dimension."""
    return axis - 1 if axis <= spec.batch_dim else axis


def to_canonical(spec: InputSpec | OutputSpec, array: Array) -> Array:
    """Return a view of a wire array with the batch dimension first."""
    return np.moveaxis(array, spec.batch_dim, 0) if spec.batch_dim else array


def to_wire(spec: InputSpec | OutputSpec, array: Array) -> Array:
    """Return a contiguous array with the batch dimension at its wire position."""
    return (
        np.ascontiguousarray(np.moveaxis(array, 0, spec.batch_dim)) if spec.batch_dim else np.ascontiguousarray(array)
    )


def from_json(spec: InputSpec | OutputSpec, data: Any, *, flags: bool = False) -> Array:
    """Return JSON ``data`` as an array of the same shape.

    Args:
        spec: the tensor's declaration.
        data: a scalar or nested lists.
        flags: whether true and false are accepted as 1 and 0.

    Raises:
        InvalidRequest: ragged rows, or values of another type or out of the datatype's range.
    """
    flat: list[Any] = data if type(data) is list else [data]
    shape: tuple[int, ...] | None = None if flat is data else ()
    kinds = set(map(type, flat))
    if list in kinds:
        flat, shape = _flatten(spec, flat)
        kinds = set(map(type, flat))
    allowed, words = ALLOWED[spec.datatype]
    if not kinds <= allowed or (spec.datatype == "BYTES" and isinstance(spec, InputSpec) and spec.unit):
        if isinstance(spec, OutputSpec):
            raise InvalidRequest(f"{_called(spec)} is {spec.datatype} and accepts only {words}")
        if spec.datatype == "BYTES":
            return bytes_array(texts(spec, flat), (len(flat),) if shape is None else shape)
        flat = numbers(spec, flat, allowed, words, flags=flags and spec.datatype != "BOOL")
    if spec.datatype == "BYTES":
        return bytes_array([text.encode() for text in flat], (len(flat),) if shape is None else shape)
    code = CODES.get(spec.datatype)
    if code is None:
        raise InvalidRequest(f"{_called(spec)} is BF16, which JSON cannot carry. Send it as binary data")
    try:
        # `struct` is fast and, unlike numpy, rejects numbers out of range.
        array: Array = np.frombuffer(struct.pack(f"<{len(flat)}{code}", *flat), DTYPES[spec.datatype])
    except (struct.error, OverflowError):
        raise InvalidRequest(f"{_called(spec)} has values outside the range of {spec.datatype}") from None
    return array if shape is None else array.reshape(shape)


def _flatten(spec: InputSpec | OutputSpec, level: list[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """Return nested lists as one list, and their shape."""
    shape = [len(level)]
    # Each iteration removes one level of nesting.
    while level and type(level[0]) is list and len(shape) < _MAX_DIMENSIONS:
        width = len(level[0])
        if set(map(type, level)) != {list} or set(map(len, level)) != {width}:
            raise InvalidRequest(f"{_called(spec)} has ragged rows: lists at one level differ in length")
        level = list(chain.from_iterable(level))
        shape.append(width)
    return level, tuple(shape)


def _called(spec: InputSpec | OutputSpec) -> str:
    return f"{'input' if isinstance(spec, InputSpec) else 'output'} {spec.name!r}"


def from_binary(spec: InputSpec | OutputSpec, data: memoryview, shape: Sequence[int]) -> Array:
    """Return binary ``data`` as an array of wire ``shape``, as a view if possible.

    The data is little-endian and row-major.

    Raises:
        InvalidRequest: the length of ``data`` does not match the shape.
    """
    if spec.datatype == "BYTES":
        count = prod(shape)
        try:
            elements = unpack_elements(data)
        except ValueError as error:
            raise InvalidRequest(f"tensor {spec.name!r}: {error}") from None
        if len(elements) != count:
            raise InvalidRequest(
                f"tensor {spec.name!r}: the shape needs {count} BYTES elements, the data has {len(elements)}"
            )
        return bytes_array(elements, tuple(shape))
    # The wire is little-endian, as is every entry of `DTYPES`.
    dtype = DTYPES[spec.datatype]
    expected = prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise InvalidRequest(
            f"tensor {spec.name!r}: {spec.datatype} of shape {list(shape)} has {expected} bytes, not {len(data)}"
        )
    if dtype.kind == "b":
        # Any nonzero byte is true.
        flags: Array = np.frombuffer(data, np.uint8).reshape(shape) != 0
        return flags
    # A view of the body, which is copied when the batch is formed.
    return np.frombuffer(data, dtype).reshape(shape)


def to_binary(array: Array) -> bytes | memoryview:
    """Return the bytes of a wire array, as a view if its memory is contiguous."""
    if array.dtype.hasobject:
        return pack_elements(array.ravel().tolist())
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def tensor_entry(
    spec: InputSpec | OutputSpec, array: Array, tail: list[bytes | memoryview] | None, *, words: Callable[[bytes], Any]
) -> dict[str, Any]:
    """Return a canonical array as a tensor object of V2's JSON.

    Args:
        spec: the tensor's declaration.
        array: the tensor's values.
        tail: receives the bytes of a binary tensor; None to put the data in the JSON.
        words: returns the JSON value of an element of ``BYTES``.
    """
    wire = to_wire(spec, array)
    tensor: dict[str, Any] = {"name": spec.name, "datatype": spec.datatype, "shape": wire.shape}
    if tail is not None:
        data = to_binary(wire)
        tail.append(data)
        tensor["parameters"] = {"binary_data_size": len(data)}
    elif spec.datatype == "BYTES":
        tensor["data"] = [words(element) for element in wire.ravel().tolist()]
    else:
        tensor["data"] = (widen_bf16(wire) if spec.datatype == "BF16" else wire).reshape(-1)
    return tensor


def widen_bf16(array: Array) -> Array:
    """Return raw bfloat16 bits as float32 values, for JSON."""
    return (array.astype(np.uint32) << 16).view(np.float32)


def text(element: bytes) -> Any:
    """Return the JSON value of a ``BYTES`` element: its UTF-8 text, or V1's base64 object."""
    try:
        return element.decode()
    except UnicodeDecodeError:
        from base64 import b64encode  # noqa: PLC0415 (rare: binary data in a JSON response)

        return {"b64": b64encode(element).decode()}
