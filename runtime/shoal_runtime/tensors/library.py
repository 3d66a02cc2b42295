"""The tensor operations that the pipeline requires; `torch_tensors` and `numpy_tensors` implement them."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from shoal_runtime.handlers.spec import TensorSpec
from shoal_schema.wire.datatypes import Array

Tensor = Any
"""A tensor of the library."""


class Library(Protocol):
    """A library of tensors. `Tensor` is the library's type, `Array` is numpy's."""

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
        """Return the library's type for a numeric datatype, or None without a type of the same bits."""

    def filled(self, shape: Sequence[int], datatype: str, value: float) -> Tensor:
        """Return a tensor filled with one number."""

    def filled_like(self, like: Tensor, shape: Sequence[int], value: float) -> Tensor:
        """Return a tensor filled with one number, of the type of `like`."""

    def stack(self, tensors: Sequence[Tensor]) -> Tensor:
        """Stack tensors of one shape along a new first dimension."""

    def repeat_first(self, tensor: Tensor, dim: int, count: int) -> Tensor:
        """Append the first row `count` times along `dim`."""

    def is_declared(self, value: object, dtype: Any) -> bool:
        """Return whether a value is a dense tensor of this type, which needs no cast."""

    def cast(self, tensor: Tensor, spec: TensorSpec) -> tuple[Tensor, Tensor | None]:
        """Cast a tensor to the output's datatype, on its device.

        Returns:
            The tensor, and flags of the numbers that the datatype cannot hold; None if it holds all.

        Raises:
            ForwardFailed: the cast would drop fractions, or the tensor is not dense.
        """

    def rows_with(self, where: Tensor, batch_dim: int) -> Tensor:
        """Return for each row whether any of its flags is set."""

    def first_misfit(self, row: Tensor, spec: TensorSpec) -> int | float:
        """Return the first number of a row that the output's datatype cannot hold. There is at least one."""

    def host_array(self, tensor: Tensor) -> Array:
        """Return a tensor on the host as a wire array, without a copy; bfloat16 as its bits."""

    def readable(self, value: Any) -> Any:
        """Convert a tensor to an array for handlers; other values stay."""

    def fetch_all(self, result: Any, fetch: Callable[[list[Tensor]], list[Tensor]]) -> Any:
        """Replace tensors by arrays at any depth of dicts and lists."""
