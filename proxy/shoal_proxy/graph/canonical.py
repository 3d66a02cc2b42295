"""What a composer's code hands over, as arrays of the declared datatype and shape; nothing wraps or is cut."""

from collections.abc import Coroutine, Mapping
from typing import Any

import numpy as np

from shoal_schema.graphs.tensors import ANY, Tensor
from shoal_schema.wire.datatypes import DTYPES, Array, bfloat16_to_float32, float32_to_bfloat16

_FROM = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}
"""By the kind of a datatype, the kinds of numpy that become it."""


def canonical(
    given: Mapping[str, Any], tensors: Mapping[str, Tensor], optional: frozenset[str], whose: str
) -> tuple[dict[str, Array], int]:
    """Return tensors as they travel, and how many rows they have.

    Args:
        given: by name, arrays or nested lists, rows first.
        tensors: what they are to be.
        optional: those that may be missing.
        whose: whom sentences speak of.

    Raises:
        ValueError: one is missing, unknown, or something else; or they have different numbers of rows.
    """
    if isinstance(given, Coroutine):
        given.close()
        raise ValueError(f"{whose} is a coroutine, not a dict of tensors by name: it is to be awaited")
    if not isinstance(given, Mapping):
        raise ValueError(f"{whose} is a {type(given).__name__}, not a dict of tensors by name")
    if unknown := [name for name in given if name not in tensors]:
        raise ValueError(f"{whose} holds {unknown[0]!r}, which is none of {', '.join(tensors)}")
    if missing := [name for name in tensors if name not in given and name not in optional]:
        raise ValueError(f"{whose} lacks {missing[0]!r}")
    if not given:
        raise ValueError(f"{whose} has no tensors")
    arrays = {name: _array(value, tensors[name], f"{whose}: {name!r}") for name, value in given.items()}
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) != 1:
        raise ValueError(f"{whose} has tensors of different numbers of rows: {counts}")
    return arrays, next(iter(counts.values()))


def _array(value: Any, tensor: Tensor, what: str) -> Array:
    try:
        # A copy: it is sent later, on another thread, and code that fills one buffer again and again keeps its own.
        array = _texts(value) if tensor.datatype == "BYTES" else _numbers(np.array(value, order="C"), tensor.datatype)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{what} is no {tensor.datatype}: {error}") from None
    sizes = zip(tensor.shape, array.shape[1:], strict=False)
    if array.ndim != len(tensor.shape) + 1 or any(want not in (ANY, size) for want, size in sizes):
        raise ValueError(f"{what} has the shape {array.shape}, rows first; a row is {tensor}")
    return array


def _texts(value: Any) -> Array:
    array = np.asarray(value, object)
    texts = [each.encode() if isinstance(each, str) else each for each in array.ravel().tolist()]
    if wrong := [each for each in texts if not isinstance(each, bytes)]:
        raise ValueError(f"it holds a {type(wrong[0]).__name__}")
    result = np.empty(len(texts), object)
    result[:] = texts
    return result.reshape(array.shape)


def _numbers(array: Array, datatype: str) -> Array:
    dtype = np.dtype(np.float32) if datatype == "BF16" else DTYPES[datatype]
    if array.dtype.kind not in _FROM.get(dtype.kind, ""):
        raise ValueError(f"it is {array.dtype}")
    with np.errstate(over="ignore"):
        cast = array.astype(dtype, copy=False)
    bits = float32_to_bfloat16(cast) if datatype == "BF16" else cast
    lost = _lost(array, bfloat16_to_float32(bits) if datatype == "BF16" else cast)
    if lost.any():
        raise ValueError(f"it does not hold {array[lost][0]}")
    return bits


def _lost(array: Array, cast: Array) -> Array:
    """Return where numbers are others in ``cast``; those with a fraction may be rounded, and not become infinite."""
    if cast.dtype.kind != "f":
        return np.asarray(cast != array)
    return np.asarray(np.isinf(cast) & np.isfinite(array))


def readable(arrays: Mapping[str, Array], tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Return tensors as a composer's code reads them: numpy knows no BF16, of which the numbers are FP32."""
    return {
        name: bfloat16_to_float32(array) if tensors[name].datatype == "BF16" else array
        for name, array in arrays.items()
    }
