"""A tensor's `data` in JSON: flat or nested lists to arrays, strictly, and back.

Strict means: no numbers in strings, no fractions in integers, nothing out of the datatype's range,
no ragged lists.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal_runtime.codecs.datatypes import NUMPY_DTYPES
from shoal_runtime.codecs.elements import object_array

if TYPE_CHECKING:
    from shoal_runtime.codecs.datatypes import Array

_KINDS = {"b": "b", "u": "iu", "i": "iu", "f": "iuf"}
_KIND_NAMES = {"b": "true or false", "u": "whole numbers", "i": "whole numbers", "f": "numbers"}


def array_from_json(data: Any, datatype: str, shape: tuple[int, ...]) -> Array:
    """Return `data` as an array of that datatype and shape.

    Raises:
        ValueError: it holds something else; the message completes "input x ...".
    """
    if not isinstance(data, list):
        raise ValueError("needs a list in `data`")
    if datatype == "BF16":
        raise ValueError("is BF16, which JSON cannot hold: send it as binary data")
    if datatype == "BYTES":
        return object_array(_strings(data, shape), shape)
    return _shaped(_numbers(data, datatype), shape)


def array_to_json(array: Array) -> Array | list[Any]:
    """Return the flat, row-major elements, ready for orjson; NaN and infinities become null there.

    Raises:
        ValueError: a `BYTES` element is not UTF-8.
    """
    if array.dtype != object:
        return np.ascontiguousarray(array).reshape(-1)
    try:
        return [element.decode() for element in array.reshape(-1)]
    except UnicodeDecodeError:
        raise ValueError("holds bytes that are not UTF-8: ask for binary data") from None


def _strings(data: list[Any], shape: tuple[int, ...]) -> list[bytes]:
    flat = data
    if data and isinstance(data[0], list):
        flat = _flattened(data, shape)
    if not all(isinstance(element, str) for element in flat):
        raise ValueError("is BYTES and needs strings in `data`")
    if len(flat) != math.prod(shape):
        raise ValueError(_miscount(len(flat), shape))
    try:
        return [element.encode() for element in flat]
    except UnicodeEncodeError:
        raise ValueError("holds a lone surrogate, which is no text") from None


def _flattened(data: list[Any], shape: tuple[int, ...]) -> list[Any]:
    level = [data]
    for size in shape:
        if not all(isinstance(part, list) and len(part) == size for part in level):
            raise ValueError(f"has nested lists in `data` that do not match its shape {list(shape)}")
        level = [element for part in level for element in part]
    return level


def _numbers(data: list[Any], datatype: str) -> Array:
    wanted = NUMPY_DTYPES[datatype]
    try:
        array = np.array(data)
    except ValueError:
        raise ValueError("has ragged lists in `data`") from None
    if array.dtype.kind == "f" and wanted.kind == "u":
        array = _large_integers(data, array)
    if array.size == 0:
        return array.astype(wanted)
    if array.dtype.kind not in _KINDS[wanted.kind]:
        raise ValueError(f"is {datatype} and needs {_KIND_NAMES[wanted.kind]} in `data`")
    return _in_range(array, wanted, datatype)


def _large_integers(data: list[Any], array: Array) -> Array:
    # numpy makes floats of a list that mixes small integers and ones above 2**63.
    flat = np.array(data, dtype=object)
    if all(type(element) is int and element >= 0 for element in flat.reshape(-1)):
        return flat.astype(np.uint64)
    return array


def _in_range(array: Array, wanted: np.dtype[Any], datatype: str) -> Array:
    if array.dtype == wanted:
        return array
    with np.errstate(over="ignore"):
        cast = array.astype(wanted)
    fits = np.isfinite(cast) if wanted.kind == "f" else cast == array
    if not fits.all():
        worst = array.reshape(-1)[int(np.argmin(fits.reshape(-1)))]
        raise ValueError(f"holds {worst}, which is out of range for {datatype}")
    return cast


def _shaped(array: Array, shape: tuple[int, ...]) -> Array:
    if array.shape == shape:
        return array
    if array.size != math.prod(shape):
        raise ValueError(_miscount(array.size, shape))
    if array.ndim != 1:
        raise ValueError(f"has data of shape {list(array.shape)}, and says {list(shape)}")
    return array.reshape(shape)


def _miscount(count: int, shape: tuple[int, ...]) -> str:
    return f"has {count} elements in `data`; shape {list(shape)} needs {math.prod(shape)}"
