"""Interface of the tensor libraries, `torch_tensors` and `numpy_tensors`."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from shoal_runtime.signature.spec import TensorSpec
from shoal_schema.wire.datatypes import Array

Tensor = Any
"""A tensor of the library."""


class Library(Protocol):
    """A tensor library: PyTorch or numpy. `Tensor` is the library's type, `Array` is numpy's."""

    holds_text: bool
    """Whether a tensor may hold `BYTES`; otherwise `BYTES` are lists with one value per row."""

    def is_tensor(self, value: object) -> bool:
        """Return whether a value is a tensor of the library."""

    def as_tensor(self, value: Any) -> Tensor:
        """Convert an array or number to a tensor, without a copy where possible.

        Raises:
            ValueError: the array has masked numbers.
        """

    def from_wire(self, array: Array, datatype: str) -> Tensor:
        """Convert a numeric wire array to a tensor, without a copy where possible."""

    def dtype(self, datatype: str) -> Any:
        """Return the library's type for a numeric datatype; None if no type has the same bits."""

    def filled(self, shape: Sequence[int], datatype: str, value: float) -> Tensor:
        """Return a tensor filled with one number."""

    def filled_like(self, like: Tensor, shape: Sequence[int], value: float) -> Tensor:
        """Return a tensor filled with one number, with the type of `like`."""

    def stack(self, tensors: Sequence[Tensor]) -> Tensor:
        """Stack tensors of one shape along a new first dimension."""

    def repeat_first(self, tensor: Tensor, dim: int, count: int) -> Tensor:
        """Extend a tensor along `dim` with `count` copies of its first row."""

    def is_declared(self, value: object, dtype: Any) -> bool:
        """Return whether a value is a dense tensor of a type, so needs no cast."""

    def cast(self, tensor: Tensor, spec: TensorSpec) -> tuple[Tensor, Tensor | None]:
        """Cast a tensor to an output's datatype, on the tensor's device.

        Returns:
            The cast tensor, and a mask of the numbers that the datatype cannot hold. The mask is None if it is certain
            that there are no such numbers.

        Raises:
            ForwardFailed: the cast would drop fractions, or the tensor is not dense.
        """

    def rows_with(self, where: Tensor, batch_dim: int) -> Tensor:
        """Return for each row whether a mask is set at any position of the row."""

    def first_misfit(self, row: Tensor, spec: TensorSpec) -> int | float:
        """Return the first number of a row that the output's datatype cannot hold.

        The row must contain such a number.
        """

    def host_array(self, tensor: Tensor) -> Array:
        """Return a host tensor as a wire array, without a copy; bfloat16 as its bits."""

    def readable(self, value: Any) -> Any:
        """Convert a tensor to an array for handlers; other values are returned unchanged."""

    def split_tensors(self, result: Any) -> tuple[list[Tensor], Callable[[list[Tensor]], Any]]:
        """Return the tensors in nested dicts and lists, and a function that puts host tensors in their place.

        The function converts each of them to an array.
        """
