"""A tensor's `data` in JSON: flat or nested lists to arrays, strictly, and back.

Strict means: no numbers in strings, no fractions in integers, nothing out of the datatype's range, no ragged lists.
"""

import json
import math
from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np
import orjson

from shoal_schema.wire.datatypes import DTYPES, Array
from shoal_schema.wire.elements import object_array

_LONG = b"0" * 19
"""The fewest digits that a whole number beyond 64 bits has, each as a zero."""
_ZEROS = bytes(ord("0") if chr(code).isdigit() and code < 128 else ord(" ") for code in range(256))
"""A table that makes a zero of each digit and a space of all else: to search for is quicker than to match."""
_KINDS: dict[str, set[type]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}
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


def exact_json(text: bytes) -> Any:
    """Return the JSON value of `text`; whole numbers stay exact, where orjson makes floats of those beyond 64 bits.

    Raises:
        orjson.JSONDecodeError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    value = orjson.loads(text)
    # Slower, and lax about what orjson has refused by now.
    return json.loads(text) if _LONG in text.translate(_ZEROS) else value


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
        raise ValueError("holds a lone surrogate, which is not text") from None


def _flattened(data: list[Any], shape: tuple[int, ...]) -> list[Any]:
    level = [data]
    for size in shape:
        if not all(isinstance(part, list) and len(part) == size for part in level):
            raise ValueError(f"has nested lists in `data` that do not match its shape {list(shape)}")
        level = [element for part in level for element in part]
    return level


def _numbers(data: list[Any], datatype: str) -> Array:
    wanted = DTYPES[datatype]
    try:
        array = np.array(data)
    except ValueError:
        raise ValueError("has ragged lists in `data`") from None
    if array.size == 0:
        return array.astype(wanted)
    elements: Iterable[Any] = data
    for _ in range(array.ndim - 1):
        elements = chain.from_iterable(elements)
    # numpy takes true for 1 beside other numbers.
    kinds = set(map(type, elements))
    if not kinds <= _KINDS[wanted.kind]:
        # Whole numbers that are too large for the JSON reader may be why there are floats.
        large = kinds <= {int, float} and (np.abs(array) >= 2.0**63).any()
        beyond = "; whole numbers beyond 64 bits are none that it can hold" if large else ""
        raise ValueError(f"is {datatype} and needs {_KIND_NAMES[wanted.kind]} in `data`{beyond}")
    if array.dtype.kind == "f" and wanted.kind in "iu":
        # numpy makes floats of a list that mixes small integers and ones above 2**63.
        array = np.array(data, dtype=object)
    return _in_range(array, wanted, datatype)


def _in_range(array: Array, wanted: np.dtype[Any], datatype: str) -> Array:
    if array.dtype == wanted:
        return array
    try:
        with np.errstate(over="ignore"):
            cast = array.astype(wanted)
    except OverflowError as error:
        raise ValueError(f"holds a number out of range for {datatype}: {error}") from None
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
