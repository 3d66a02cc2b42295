"""A model's inputs and outputs: the V2 model metadata as values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.wire.datatypes import DATATYPES
from shoal_schema.wire.columns import decode_columns


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output of a model."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    """-1 for a free length; includes the batch dimension when the model batches."""
    batch_dim: int = 0
    """The dimension that counts rows."""
    content_types: tuple[str, ...] = ()
    """Media types of the elements of a ``BYTES`` tensor; empty if the server declares none."""
    optional: bool = False
    """Whether a request may omit this input."""
    example: str = ""
    """An example text; empty if the server declares none."""
    columns: tuple[str, ...] = ()
    """Column names of a tensor whose rows are vectors of numbers, such as a classifier's classes; may be empty."""
    nullable: bool = False
    """Whether the input accepts nulls."""
    logical_type: str = ""
    """``datetime`` for texts that are dates; otherwise empty."""
    unit: str = ""
    """Unit of dates given as numbers since 1970; empty if numbers are not dates."""

    @property
    def is_json(self) -> bool:
        """Whether each element is one JSON document."""
        return self.datatype == "BYTES" and self.content_types == ("application/json",)

    @property
    def counts_rows(self) -> bool:
        """Whether the batch dimension has a free length."""
        return self.batch_dim < len(self.shape) and self.shape[self.batch_dim] == -1


@dataclass(frozen=True, slots=True)
class Signature:
    """A model's name, inputs, outputs and batch sizes."""

    name: str
    versions: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int | None = None
    """Maximum rows of one batch; None if the server does not declare it."""
    allowed_batch_sizes: tuple[int, ...] = ()
    """Sizes to which batches are padded; empty if the server declares none."""

    @property
    def batches(self) -> bool:
        """Whether one request may hold several rows."""
        return all(tensor.counts_rows for tensor in (*self.inputs, *self.outputs))

    def row_shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the shape of one row, without the batch dimension if the model batches."""
        if not self.batches:
            return tensor.shape
        return tensor.shape[: tensor.batch_dim] + tensor.shape[tensor.batch_dim + 1 :]


def parse_signature(metadata: Any) -> Signature:
    """Return the signature in V2 model metadata.

    Raises:
        ValueError: the metadata violates the protocol.
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
        raise ValueError(f"the model metadata violates the V2 protocol: {error!r}") from error


def _tensor(metadata: Mapping[str, Any]) -> Tensor:
    parameters = metadata.get("parameters") or {}
    # V2 parameters are scalars, so lists are comma-separated text.
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
