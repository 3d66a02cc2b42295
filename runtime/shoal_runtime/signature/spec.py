"""Specifications of a model's inputs and outputs, called tensors.

Fields are named like the metadata keys of docs/reference/model-metadata.md. Fields for the row numbers of ragged
outputs have no such key, because clients do not receive these numbers.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Final

from shoal_schema.wire.carried_headers import CARRIED
from shoal_schema.wire.codes import CODES
from shoal_schema.wire.columns import LOGICAL_TYPES, UNITS

ANY: Final = -1
"""Size of a dimension that may have any size."""
RAGGED: Final = "ragged"


@dataclass(frozen=True, slots=True)
class PaddingRule:
    """Rule that pads rows of different lengths to one tensor."""

    name: str
    """Tensor to pad."""
    _: KW_ONLY
    pad_axis: int | None = None
    """Axis of different lengths, counted with the batch dimension."""
    pad_value: float = 0
    """Value of the padding."""
    pad_buckets: Sequence[int] = ()
    """Increasing lengths to pad to; empty for the longest row of the batch."""
    pad_mask: str | None = None
    """Name of a tensor to create: 1 at real positions, 0 at padding."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "pad_buckets", tuple(self.pad_buckets))
        _check_name(self.name)
        _check_padding(self)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Specification of one input or output of a model.

    Raises:
        ValueError: a field is out of range; the message names the tensor and the field.
    """

    name: str
    """Name in the protocol."""
    datatype: str
    """`BOOL`, `UINT8` to `UINT64`, `INT8` to `INT64`, `FP16`, `BF16`, `FP32`, `FP64` or `BYTES`."""
    shape: Sequence[int]
    """Size of each dimension, -1 for any size."""
    _: KW_ONLY
    batch_dim: int = 0
    """Dimension that counts rows."""
    content_type: str | None = None
    """Media types of a `BYTES` tensor: `image/jpeg,image/png`, `text/plain`, `application/json`..."""
    optional: bool = False
    """Whether clients may omit this input."""
    columns: Sequence[str] = ()
    """Column names of numbers [rows, n], as in training; the classes of an output of probabilities."""
    nullable: bool = False
    """Whether an input may hold nulls: NaN in floating-point numbers, `NULL` in texts."""
    logical_type: str | None = None
    """Of a `BYTES` input with one element per row: `datetime`, ISO 8601 texts, `datetime64[ns]` in pandas."""
    unit: str | None = None
    """Unit of numbers in a `datetime` since 1970: `s`, `ms`, `us` or `ns`; None rejects numbers."""
    pad_axis: int | None = None
    """Axis along which rows may differ, counted with the batch dimension."""
    pad_value: float = 0
    """Value of the padding."""
    pad_buckets: Sequence[int] = ()
    """Increasing lengths to pad to; empty for the longest row of the batch."""
    pad_mask: str | None = None
    """Input that marks the real positions."""
    unpad_axis: int | None = None
    """Axis of an output that is cut to the row's own length in `unpad_input`."""
    unpad_input: str | None = None
    """Input whose lengths cut `unpad_axis`."""
    rows: str | None = None
    """Of an output: `ragged` if a row has any number of items, which are concatenated as [items, ...]."""
    row_index: str | None = None
    """Output that holds the row number of each item of this ragged output."""
    row_column: int | None = None
    """Column of row numbers in `row_index`, or without `row_index` in this output."""
    example: str | None = None
    """Valid text of a `BYTES` input, for example requests."""
    carries: str | None = None
    """Of a `BYTES` tensor: `request_headers` (an input that the proxy fills) or `response_head` (an output)."""

    def __post_init__(self) -> None:
        _check_name(self.name)
        names = ", ".join(CODES)
        _require(self.datatype in CODES, f"tensor {self.name}: datatype {self.datatype!r} is not one of {names}")
        # Lists from handlers and TOML become tuples, so that specifications are hashable.
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "pad_buckets", tuple(self.pad_buckets))
        object.__setattr__(self, "columns", tuple(self.columns))
        rank = len(self.shape)
        good = all(isinstance(d, int) and (d == ANY or d >= 1) for d in self.shape)
        _require(good, f"tensor {self.name}: shape {list(self.shape)} must hold positive numbers or -1")
        good = 0 <= self.batch_dim < rank
        _require(good, f"tensor {self.name}: batch_dim {self.batch_dim} is outside its {rank} dimensions")
        # Padding along the batch dimension would add rows.
        for key, axis in (("pad_axis", self.pad_axis), ("unpad_axis", self.unpad_axis)):
            good = axis is None or (0 <= axis < rank and axis != self.batch_dim)
            _require(good, f"tensor {self.name}: {key} {axis} must be one of its {rank} dimensions, except batch_dim")
        # The cut needs the lengths of an input.
        good = (self.unpad_axis is None) == (self.unpad_input is None)
        _require(good, f"tensor {self.name}: unpad_axis and unpad_input require each other")
        _check_padding(self)
        _check_columns(self)
        _check_ragged(self)
        good = self.content_type is None or self.datatype == "BYTES"
        _require(good, f"tensor {self.name}: content_type requires BYTES, not {self.datatype}")
        good = self.example is None or (self.datatype == "BYTES" and isinstance(self.example, str))
        _require(good, f"tensor {self.name}: example must be a text, and requires BYTES")
        good = self.carries is None or (self.carries in CARRIED and self.datatype == "BYTES" and len(self.shape) == 1)
        _require(good, f"tensor {self.name}: carries must be {' or '.join(CARRIED)}, and requires BYTES of shape [-1]")

    @property
    def media_types(self) -> tuple[str, ...]:
        """Media types in `content_type`, in lower case."""
        return tuple(t.strip().lower() for t in (self.content_type or "").split(",") if t.strip())

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row, without the batch dimension."""
        return tuple(self.shape[: self.batch_dim]) + tuple(self.shape[self.batch_dim + 1 :])


Rule = PaddingRule | TensorSpec
"""A description of padding."""


def every_length(rule: Rule) -> Rule:
    """Return a padding rule with one bucket for each length up to its last bucket."""
    return replace(rule, pad_buckets=range(1, rule.pad_buckets[-1] + 1)) if rule.pad_buckets else rule


def fits(shape: Sequence[int], declared: Sequence[int]) -> bool:
    """Return whether a shape matches a declared shape, in which ANY matches every size."""
    if len(shape) != len(declared):
        return False
    for got, want in zip(shape, declared, strict=True):  # noqa: SIM110 (a generator is an object with a frame)
        if want not in (ANY, got):
            return False
    return True


def _check_name(name: object) -> None:
    # UTF-8 cannot encode a lone surrogate, so it would fail every metadata response.
    good = isinstance(name, str) and name and not any("\ud800" <= letter <= "\udfff" for letter in name)
    _require(bool(good), "a tensor needs a name that UTF-8 can encode")


def _check_columns(spec: TensorSpec) -> None:
    named = spec.columns
    good = len(set(named)) == len(named) and all(isinstance(name, str) for name in named)
    _require(good, f"tensor {spec.name}: columns must be distinct texts")
    good = not named or (spec.datatype != "BYTES" and spec.batch_dim == 0 and tuple(spec.shape[1:]) == (len(named),))
    _require(good, f"tensor {spec.name}: {len(named)} columns require a numeric datatype and shape [-1, {len(named)}]")
    good = not spec.nullable or spec.datatype in ("FP16", "FP32", "FP64", "BYTES")
    _require(good, f"tensor {spec.name}: nullable requires FP16, FP32, FP64 or BYTES, not {spec.datatype}")
    kind = spec.logical_type
    good = kind is None or (kind in LOGICAL_TYPES and spec.datatype == "BYTES" and not spec.row_shape)
    known = " or ".join(LOGICAL_TYPES)
    _require(good, f"tensor {spec.name}: logical_type must be {known}, and requires datatype BYTES and shape [-1]")
    good = spec.unit is None or (spec.unit in UNITS and kind == "datetime")
    _require(good, f"tensor {spec.name}: unit must be one of {', '.join(UNITS)}, and requires a datetime")


def _check_ragged(spec: TensorSpec) -> None:
    good = spec.rows in (None, RAGGED)
    _require(good, f"tensor {spec.name}: `rows` must be {RAGGED!r}, not {spec.rows!r}")
    good = spec.rows is not None or (spec.row_index is None and spec.row_column is None)
    _require(good, f"tensor {spec.name}: row_index and row_column require rows = {RAGGED!r}")
    good = spec.rows is None or (spec.batch_dim == 0 and spec.unpad_axis is None and spec.carries is None)
    _require(good, f"tensor {spec.name}: a ragged output requires batch_dim 0, without unpad_axis and carries")
    column = spec.row_column
    good = column is None or (isinstance(column, int) and column >= 0)
    _require(good, f"tensor {spec.name}: row_column must be a number from 0 up, not {column!r}")
    # Without row_index the column is in the output itself.
    own = column is not None and spec.row_index is None
    good = not own or (len(spec.shape) == 2 and (spec.shape[1] == ANY or spec.shape[1] > (column or 0)))
    _require(good, f"tensor {spec.name}: row_column {column} is outside shape {list(spec.shape)}")


def _check_padding(rule: Rule) -> None:
    buckets = list(rule.pad_buckets)
    good = all(isinstance(b, int) and b >= 1 for b in buckets) and buckets == sorted(set(buckets))
    _require(good, f"tensor {rule.name}: pad_buckets {buckets} must be increasing positive lengths")
    good = rule.pad_axis is not None or not (buckets or rule.pad_mask is not None)
    _require(good, f"tensor {rule.name}: pad_buckets and pad_mask require pad_axis")


def _require(condition: bool, message: str) -> None:  # noqa: FBT001 (as assert)
    if not condition:
        raise ValueError(message)
