"""Codec of a tensor's JSON `data`: flat or nested lists to arrays, and back.

Numbers in strings, fractions for integers, numbers out of range, and ragged lists are rejected.
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
"""Digits of the shortest integer beyond 64 bits, each as a zero."""
_ZEROS = bytes(ord("0") if chr(code).isdigit() and code < 128 else ord(" ") for code in range(256))
"""Translation table from digits to zeros and anything else to spaces.

Searching the translated text is faster than a regular expression.
"""
_KINDS: dict[str, set[type]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}
_KIND_NAMES = {"b": "true or false", "u": "whole numbers", "i": "whole numbers", "f": "numbers"}


def array_from_json(data: Any, datatype: str, shape: tuple[int, ...]) -> Array:
    """Convert JSON data to an array of a datatype and shape.

    Raises:
        ValueError: the data does not match. Its message continues a sentence that begins with the
            input, such as "input x".
    """
    if not isinstance(data, list):
        raise ValueError("needs a list in `data`")
    if datatype == "BF16":
        raise ValueError("is BF16, which JSON cannot hold. Send it as binary data")
    if datatype == "BYTES":
        flat = data
        if data and isinstance(data[0], list):
            # Flatten by the declared shape, one dimension at a time.
            flat = [data]
            for size in shape:
                if not all(isinstance(part, list) and len(part) == size for part in flat):
                    raise ValueError(f"has nested lists in `data` that do not match its shape {list(shape)}")
                flat = [element for part in flat for element in part]
        if not all(isinstance(element, str) for element in flat):
            raise ValueError("is BYTES and needs strings in `data`")
        if len(flat) != math.prod(shape):
            raise ValueError(_miscount(len(flat), shape))
        try:
            return object_array([element.encode() for element in flat], shape)
        except UnicodeEncodeError:
            raise ValueError("holds a lone surrogate, which UTF-8 cannot encode") from None
    array = _numbers(data, datatype)
    if array.shape == shape:
        return array
    if array.size != math.prod(shape):
        raise ValueError(_miscount(array.size, shape))
    if array.ndim != 1:
        raise ValueError(f"has `data` of shape {list(array.shape)}, which differs from its shape {list(shape)}")
    return array.reshape(shape)


def exact_json(text: bytes) -> Any:
    """Parse JSON with exact integers; orjson returns floats beyond 64 bits.

    Raises:
        orjson.JSONDecodeError: the text is not JSON.
        RecursionError: the value is nested too deeply.
    """
    value = orjson.loads(text)
    # json is slower, and accepts NaN and the like, which orjson has rejected above.
    return json.loads(text) if _LONG in text.translate(_ZEROS) else value


def array_to_json(array: Array) -> Array | list[Any]:
    """Return an array's row-major elements for orjson, which writes NaN and infinities as null.

    Raises:
        ValueError: a `BYTES` element is not UTF-8.
    """
    if array.dtype != object:
        return np.ascontiguousarray(array).reshape(-1)
    try:
        return [element.decode() for element in array.reshape(-1)]
    except UnicodeDecodeError:
        raise ValueError("holds bytes that are not UTF-8. Request binary data") from None


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
    # numpy converts true to 1 beside other numbers, so types are checked before the conversion.
    kinds = set(map(type, elements))
    if not kinds <= _KINDS[wanted.kind]:
        # The JSON reader makes floats of integers beyond 64 bits.
        large = kinds <= {int, float} and (np.abs(array) >= 2.0**63).any()
        beyond = "; it cannot hold integers beyond 64 bits" if large else ""
        raise ValueError(f"is {datatype} and needs {_KIND_NAMES[wanted.kind]} in `data`{beyond}")
    if array.dtype.kind == "f" and wanted.kind in "iu":
        # numpy makes floats of a list that mixes small integers and ones above 2**63.
        array = np.array(data, dtype=object)
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


def _miscount(count: int, shape: tuple[int, ...]) -> str:
    return f"has {count} elements in `data`; shape {list(shape)} needs {math.prod(shape)}"
