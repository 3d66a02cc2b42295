"""What a model takes and gives: the V2 model metadata as values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.wire.datatypes import DATATYPES
from shoal_schema.wire.columns import decode_columns


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output of a model.

    Attributes:
        shape: -1 where any length goes; counts the batch dimension when the model batches.
        batch_dim: the dimension that counts rows.
        content_types: media types of a ``BYTES`` tensor's elements; empty when the server does not say.
        optional: callers may leave this input out.
        columns: the names of the columns of an input of rows of numbers; empty when it has none.
        nullable: the input may hold nulls.
        logical_type: ``datetime`` where texts are dates; empty otherwise.
        unit: what the numbers of a date count since 1970; empty: a date is never a number.
        example: a text that the model takes; empty when the server gives none.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    batch_dim: int = 0
    content_types: tuple[str, ...] = ()
    optional: bool = False
    example: str = ""
    columns: tuple[str, ...] = ()
    nullable: bool = False
    logical_type: str = ""
    unit: str = ""

    @property
    def is_json(self) -> bool:
        """Whether each element is the text of one JSON value."""
        return self.datatype == "BYTES" and self.content_types == ("application/json",)

    @property
    def counts_rows(self) -> bool:
        """Whether the batch dimension is free, so that it can count rows."""
        return self.batch_dim < len(self.shape) and self.shape[self.batch_dim] == -1


@dataclass(frozen=True, slots=True)
class Signature:
    """A model's name, its inputs and outputs, and what it says about batches.

    Attributes:
        max_batch_size: rows that one call of the model takes; None when the server does not say.
        allowed_batch_sizes: sizes that are fast; empty when the server does not say.
    """

    name: str
    versions: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int | None = None
    allowed_batch_sizes: tuple[int, ...] = ()

    @property
    def batches(self) -> bool:
        """Whether several rows can travel in one call."""
        return all(tensor.counts_rows for tensor in (*self.inputs, *self.outputs))

    def row_shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the shape of one row: without the batch dimension if the model batches."""
        if not self.batches:
            return tensor.shape
        return tensor.shape[: tensor.batch_dim] + tensor.shape[tensor.batch_dim + 1 :]


def parse_signature(metadata: Any) -> Signature:
    """Return the signature in a V2 model metadata answer.

    Raises:
        ValueError: the metadata breaks the protocol; the message says where.
    """
    try:
        parameters = metadata.get("parameters") or {}
        return Signature(
            name=str(metadata["name"]),
            versions=tuple(str(version) for version in metadata.get("versions") or ()),
            inputs=tuple(_tensor(each) for each in metadata["inputs"]),
            outputs=tuple(_tensor(each) for each in metadata["outputs"]),
            max_batch_size=_number(parameters, "max_batch_size"),
            allowed_batch_sizes=tuple(int(size) for size in _list(parameters, "allowed_batch_sizes")),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"model metadata breaks the V2 protocol: {error!r}") from error


def _tensor(metadata: Mapping[str, Any]) -> Tensor:
    parameters = metadata.get("parameters") or {}
    datatype = str(metadata["datatype"])
    if datatype not in DATATYPES:
        raise ValueError(f"{metadata['name']}: unknown datatype {datatype}")
    columns = parameters.get("columns")
    return Tensor(
        name=str(metadata["name"]),
        datatype=datatype,
        shape=tuple(int(length) for length in metadata["shape"]),
        batch_dim=_number(parameters, "batch_dim") or 0,
        content_types=_list(parameters, "content_type"),
        optional=parameters.get("optional") in (True, "true"),
        example=str(parameters.get("example") or ""),
        columns=decode_columns(str(columns)) if columns is not None else (),
        nullable=parameters.get("nullable") in (True, "true"),
        logical_type=str(parameters.get("logical_type") or ""),
        unit=str(parameters.get("unit") or ""),
    )


def _number(parameters: Mapping[str, Any], key: str) -> int | None:
    value = parameters.get(key)
    return None if value is None else int(value)


def _list(parameters: Mapping[str, Any], key: str) -> tuple[str, ...]:
    parts = str(parameters.get(key) or "").split(",")
    return tuple(part.strip() for part in parts if part.strip())
