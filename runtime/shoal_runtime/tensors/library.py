"""What the pipeline asks of a library of tensors; `torch_tensors` and `numpy_tensors` answer."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from shoal_runtime.handlers.spec import TensorSpec
from shoal_schema.wire.datatypes import Array

Tensor = Any
"""A tensor of the library's own."""


class Library(Protocol):
    """A library of tensors; `Tensor` stands for its own kind, `Array` for numpy's."""

    holds_text: bool
    """Whether a tensor may hold `BYTES`; where it may not, they are lists of the rows' values."""

    def is_tensor(self, value: object) -> bool:
        """Return whether a value is one of the library's tensors."""

    def as_tensor(self, value: Any) -> Tensor:
        """Return an array or number as a tensor that shares its memory where it can.

        Raises:
            ValueError: a masked array hides some of its numbers.
        """

    def from_wire(self, array: Array, datatype: str) -> Tensor:
        """Return a numeric wire array as a tensor that shares its memory where it can."""

    def dtype(self, datatype: str) -> Any:
        """Return the library's type for a numeric datatype; None where it has none of the same bits."""

    def filled(self, shape: Sequence[int], datatype: str, value: float) -> Tensor:
        """Return a tensor of one number."""

    def filled_like(self, like: Tensor, shape: Sequence[int], value: float) -> Tensor:
        """Return a tensor of one number, in the type of another."""

    def stack(self, tensors: Sequence[Tensor]) -> Tensor:
        """Join tensors of one shape along a new first dimension."""

    def repeat_first(self, tensor: Tensor, dim: int, count: int) -> Tensor:
        """Return the tensor with its first row added so many times, counted along `dim`."""

    def is_declared(self, value: object, dtype: Any) -> bool:
        """Return whether a value is a tensor of this type whose numbers lie in rows: nothing is to be cast."""

    def cast(self, tensor: Tensor, spec: TensorSpec) -> tuple[Tensor, Tensor | None]:
        """Return the tensor in the output's datatype, where it lies, and where its numbers do not fit, if any may not.

        Raises:
            ForwardFailed: numbers would lose their fractions, or the tensor is not dense.
        """

    def rows_with(self, where: Tensor, batch_dim: int) -> Tensor:
        """Return for each row whether `where` is true anywhere in it."""

    def first_misfit(self, row: Tensor, spec: TensorSpec) -> int | float:
        """Return the first number of a row that the output's datatype does not hold; there is one."""

    def host_array(self, tensor: Tensor) -> Array:
        """Return a tensor on the host as a wire array that shares its memory; bfloat16 gives its bits."""

    def readable(self, value: Any) -> Any:
        """Return a value, but an array that handlers can compute with where it is a tensor of any device."""

    def fetch_all(self, result: Any, fetch: Callable[[list[Tensor]], list[Tensor]]) -> Any:
        """Return a result of forward with arrays for its tensors, at any depth of dicts and lists."""
