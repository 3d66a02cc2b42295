"""Tensor library for models without PyTorch: numpy arrays.

numpy has no bfloat16, so models receive and return float32 for `BF16`. Arrays of `BYTES` hold objects.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from shoal_runtime.errors import ForwardFailed
from shoal_runtime.signature.spec import TensorSpec
from shoal_schema.wire.datatypes import DTYPES, Array, bfloat16_to_float32, float32_to_bfloat16


class NumpyTensors:
    """Implementation of `Library` with numpy arrays."""

    holds_text = True

    def is_tensor(self, value: object) -> bool:
        """Return whether a value is an array."""
        return isinstance(value, np.ndarray)

    def as_tensor(self, value: Any) -> Array:
        """Convert an array or number to an array.

        Raises:
            ValueError: the array has masked numbers.
        """
        refuse_hidden(value)
        return np.asarray(value)

    def from_wire(self, array: Array, datatype: str) -> Array:
        """Return the array unchanged; `BF16` bits become float32."""
        return bfloat16_to_float32(array) if datatype == "BF16" else array

    def dtype(self, datatype: str) -> np.dtype[Any] | None:
        """Return the numpy type of a datatype; None for `BF16`."""
        return None if datatype == "BF16" else DTYPES[datatype]

    def filled(self, shape: Sequence[int], datatype: str, value: float) -> Array:
        """Return an array filled with one number."""
        return np.full(tuple(shape), value, self.dtype(datatype) or np.float32)

    def filled_like(self, like: Array, shape: Sequence[int], value: float) -> Array:
        """Return an array filled with one number, with the type of `like`."""
        return np.full(tuple(shape), value, like.dtype)

    def stack(self, tensors: Sequence[Array]) -> Array:
        """Stack arrays along a new first dimension."""
        return np.stack(list(tensors))

    def repeat_first(self, tensor: Array, dim: int, count: int) -> Array:
        """Extend an array along `dim` with `count` copies of its first row."""
        # A list as index keeps the dimension.
        first = tensor.take([0], dim)
        return np.concatenate((tensor, np.repeat(first, count, dim)), dim)

    def is_declared(self, value: object, dtype: Any) -> bool:
        """Return whether a value is a plain array of a type."""
        # dtype == None would mean float64 to numpy.
        return dtype is not None and type(value) is np.ndarray and value.dtype == dtype

    def cast(self, tensor: Array, spec: TensorSpec) -> tuple[Array, Array | None]:
        """Cast an array to an output's datatype; also return a mask of the numbers that do not fit."""
        wanted = self.dtype(spec.datatype) or np.dtype(np.float32)
        if not castable(tensor, wanted):
            raise ForwardFailed(f"output {spec.name} is {tensor.dtype}; the signature declares {spec.datatype}")
        with np.errstate(over="ignore", invalid="ignore"):
            cast = tensor.astype(wanted, copy=False)
        if spec.datatype == "BF16":
            bits = float32_to_bfloat16(cast)
            return bits, lost(tensor, bfloat16_to_float32(bits))
        return cast, None if np.can_cast(tensor.dtype, wanted) else lost(tensor, cast)

    def rows_with(self, where: Array, batch_dim: int) -> Array:
        """Return for each row whether a mask is set at any position of the row."""
        return np.asarray(where.any(axis=tuple(dim for dim in range(where.ndim) if dim != batch_dim)))

    def first_misfit(self, row: Array, spec: TensorSpec) -> int | float:
        """Return the first number of a row that the output's datatype cannot hold."""
        _, where = self.cast(row, spec)
        assert where is not None
        number: int | float = row.reshape(-1)[int(where.reshape(-1).argmax())].item()
        return number

    def host_array(self, tensor: Array) -> Array:
        """Return the array unchanged."""
        return tensor

    def readable(self, value: Any) -> Any:
        """Return the value unchanged."""
        return value

    def split_tensors(self, result: Any) -> tuple[list[Array], Callable[[list[Array]], Any]]:
        """Return no tensor: all arrays are already on the host."""
        return [], lambda _: result


NUMPY: Final = NumpyTensors()


def refuse_hidden(array: Any) -> None:
    """Raise ValueError for a masked array, because tensors would treat masked numbers as real."""
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise ValueError("the array has masked numbers. Fill them first (array.filled(...))")


def castable(array: Array, wanted: np.dtype[Any]) -> bool:
    """Return whether an array may be cast to a type.

    Integers may become other integers or floating-point numbers, but fractions may not become integers.
    """
    # Objects hold Python integers beyond 64 bits.
    whole = wanted.kind in "iu" and array.dtype.kind in "iu"
    large = wanted.kind in "iuf" and array.dtype == object and set(map(type, array.flat)) == {int}
    return array.size == 0 or whole or large or np.can_cast(array.dtype, wanted, casting="same_kind")


def lost(array: Array, cast: Array) -> Array:
    """Return a mask of numbers that a cast has changed.

    Floating-point numbers may lose precision, but not become infinite.
    """
    if cast.dtype.kind == "f":
        # Infinities of the model pass; overflow does not.
        infinite: Array = np.isinf(cast) & ~np.isinf(array.astype(np.float64))
        return infinite
    return np.asarray(cast != array)
