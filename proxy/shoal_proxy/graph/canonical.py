"""Conversion of a composer's arrays to declared datatypes and shapes.

A composer is the user's Python code that passes a request through the models of a graph.
"""

from collections.abc import Coroutine, Mapping
from typing import Any

import numpy as np

from shoal_schema.graphs.tensors import ANY, Tensor
from shoal_schema.wire.datatypes import DTYPES, Array, bfloat16_to_float32, float32_to_bfloat16

_FROM = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}
"""Kinds of numpy that convert to a datatype, by its kind."""


def canonical(
    given: Mapping[str, Any], tensors: Mapping[str, Tensor], optional: frozenset[str], whose: str
) -> tuple[dict[str, Array], int]:
    """Convert arrays to their declared datatypes, and check their shapes.

    Args:
        given: arrays or nested lists by name, with rows in the first dimension.
        tensors: the declared tensors.
        optional: names of tensors that may be missing.
        whose: subject of the error messages.

    Returns: The arrays by name, and their number of rows.

    Raises:
        ValueError: a tensor is missing, unknown, or of another datatype or shape; or the numbers of rows differ.
    """
    if isinstance(given, Coroutine):
        given.close()
        raise ValueError(f"{whose} is a coroutine, expected a dict of tensors by name. Await it.")
    if not isinstance(given, Mapping):
        raise ValueError(f"{whose} is a {type(given).__name__}, expected a dict of tensors by name")
    if unknown := [name for name in given if name not in tensors]:
        raise ValueError(f"{whose} holds {unknown[0]!r}, expected {', '.join(tensors)}")
    if missing := [name for name in tensors if name not in given and name not in optional]:
        raise ValueError(f"{whose} does not hold {missing[0]!r}")
    if not given:
        raise ValueError(f"{whose} has no tensors")
    arrays = {name: _array(value, tensors[name], f"{whose}: {name!r}") for name, value in given.items()}
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) != 1:
        raise ValueError(f"{whose} has tensors of different numbers of rows: {counts}")
    return arrays, next(iter(counts.values()))


def _array(value: Any, tensor: Tensor, what: str) -> Array:
    try:
        if tensor.datatype == "BYTES":
            given = np.asarray(value, object)
            texts = [each.encode() if isinstance(each, str) else each for each in given.ravel().tolist()]
            if wrong := [each for each in texts if not isinstance(each, bytes)]:
                raise ValueError(f"it holds a {type(wrong[0]).__name__}")
            flat = np.empty(len(texts), object)
            flat[:] = texts
            array: Array = flat.reshape(given.shape)
        else:
            # A copy: it is sent later, on another thread, and the code may reuse its buffer.
            array = np.array(value, order="C")
            dtype = np.dtype(np.float32) if tensor.datatype == "BF16" else DTYPES[tensor.datatype]
            if array.dtype.kind not in _FROM.get(dtype.kind, ""):
                raise ValueError(f"it is {array.dtype}")
            # Overflow gives an infinity, which is detected below.
            with np.errstate(over="ignore"):
                cast = array.astype(dtype, copy=False)
            bits = float32_to_bfloat16(cast) if tensor.datatype == "BF16" else cast
            # Integers must be equal; fractions may be rounded, but must not become infinite.
            held = bfloat16_to_float32(bits) if tensor.datatype == "BF16" else cast
            lost = np.asarray(np.isinf(held) & np.isfinite(array) if held.dtype.kind == "f" else held != array)
            if lost.any():
                raise ValueError(f"it cannot hold {array[lost][0]}")
            array = bits
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{what} is not {tensor.datatype}: {error}") from None
    sizes = zip(tensor.shape, array.shape[1:], strict=False)
    if array.ndim != len(tensor.shape) + 1 or any(want not in (ANY, size) for want, size in sizes):
        raise ValueError(f"{what} has the shape {array.shape}, rows first; expected rows of {tensor}")
    return array


def readable(arrays: Mapping[str, Array], tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Convert BF16 tensors to FP32, because numpy does not have BF16."""
    return {
        name: bfloat16_to_float32(array) if tensors[name].datatype == "BF16" else array
        for name, array in arrays.items()
    }
