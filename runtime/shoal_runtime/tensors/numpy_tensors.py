"""Tensors that are numpy's own arrays: for models that need no PyTorch.

numpy has no bfloat16: where a signature says `BF16`, a model sees and returns float32. Arrays of `BYTES` hold objects.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from shoal_runtime.errors import ForwardFailed
from shoal_runtime.handlers.spec import TensorSpec
from shoal_schema.wire.datatypes import DTYPES, Array, bfloat16_to_float32, float32_to_bfloat16


class NumpyTensors:
    """numpy as a library of tensors (`Library`)."""

    holds_text = True

    def is_tensor(self, value: object) -> bool:
        """Return whether the value is an array."""
        return isinstance(value, np.ndarray)

    def as_tensor(self, value: Any) -> Array:
        """Return an array or number as an array."""
        refuse_hidden(value)
        return np.asarray(value)

    def from_wire(self, array: Array, datatype: str) -> Array:
        """Return the array; the bits of `BF16` become float32."""
        return bfloat16_to_float32(array) if datatype == "BF16" else array

    def dtype(self, datatype: str) -> np.dtype[Any] | None:
        """Return numpy's type; `BF16` has none of the same bits."""
        return None if datatype == "BF16" else DTYPES[datatype]

    def filled(self, shape: Sequence[int], datatype: str, value: float) -> Array:
        """Return an array of one number."""
        return np.full(tuple(shape), value, self.dtype(datatype) or np.float32)

    def filled_like(self, like: Array, shape: Sequence[int], value: float) -> Array:
        """Return an array of one number, in the type of another."""
        return np.full(tuple(shape), value, like.dtype)

    def stack(self, tensors: Sequence[Array]) -> Array:
        """Join arrays along a new first dimension."""
        return np.stack(list(tensors))

    def repeat_first(self, tensor: Array, dim: int, count: int) -> Array:
        """Return the array with its first row added."""
        first = tensor.take([0], dim)
        return np.concatenate((tensor, np.repeat(first, count, dim)), dim)

    def is_declared(self, value: object, dtype: Any) -> bool:
        """Return whether the value is a plain array of this type."""
        # numpy takes None for its own float64.
        return dtype is not None and type(value) is np.ndarray and value.dtype == dtype

    def cast(self, tensor: Array, spec: TensorSpec) -> tuple[Array, Array | None]:
        """Return the array in the output's datatype, and where its numbers do not fit, if any may not."""
        wanted = self.dtype(spec.datatype) or np.dtype(np.float32)
        if not castable(tensor, wanted):
            raise ForwardFailed(f"output {spec.name} is {tensor.dtype}; the signature says {spec.datatype}")
        with np.errstate(over="ignore", invalid="ignore"):
            cast = tensor.astype(wanted, copy=False)
        if spec.datatype == "BF16":
            bits = float32_to_bfloat16(cast)
            return bits, lost(tensor, bfloat16_to_float32(bits))
        return cast, None if np.can_cast(tensor.dtype, wanted) else lost(tensor, cast)

    def rows_with(self, where: Array, batch_dim: int) -> Array:
        """Return for each row whether `where` is true anywhere in it."""
        return np.asarray(where.any(axis=tuple(dim for dim in range(where.ndim) if dim != batch_dim)))

    def first_misfit(self, row: Array, spec: TensorSpec) -> int | float:
        """Return the first number of a row that the output's datatype does not hold."""
        _, where = self.cast(row, spec)
        assert where is not None
        number: int | float = row.reshape(-1)[int(where.reshape(-1).argmax())].item()
        return number

    def host_array(self, tensor: Array) -> Array:
        """Return the array."""
        return tensor

    def readable(self, value: Any) -> Any:
        """Return the value."""
        return value

    def fetch_all(self, result: Any, fetch: Callable[[list[Array]], list[Array]]) -> Any:
        """Return the result, whose arrays are on the host."""
        return result


NUMPY: Final = NumpyTensors()


def refuse_hidden(array: Any) -> None:
    """Raise ValueError where numbers are masked: no tensor can say so, and its reader would take them for real."""
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise ValueError("a masked array hides some of its numbers: fill them first (array.filled(...))")


def castable(array: Array, wanted: np.dtype[Any]) -> bool:
    """Return whether numbers keep their kind in another type: no fraction becomes an integer."""
    whole = wanted.kind in "iu" and array.dtype.kind in "iu"
    large = wanted.kind in "iuf" and array.dtype == object and set(map(type, array.flat)) == {int}
    return array.size == 0 or whole or large or np.can_cast(array.dtype, wanted, casting="same_kind")


def lost(array: Array, cast: Array) -> Array:
    """Return where numbers are not the same in `cast`; floating-point ones may lose precision, and not be finite."""
    if cast.dtype.kind == "f":
        infinite: Array = np.isinf(cast) & ~np.isinf(array.astype(np.float64))
        return infinite
    return np.asarray(cast != array)
