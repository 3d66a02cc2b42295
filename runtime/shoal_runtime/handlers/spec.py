"""Tensor specifications: the signature a model publishes.

The fields are the metadata keys of docs/reference/model-metadata.md; those of ragged outputs stay in the runtime.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Final

from shoal_schema.wire.carried import CARRIED
from shoal_schema.wire.codes import CODES
from shoal_schema.wire.columns import LOGICAL_TYPES, UNITS

ANY: Final = -1
RAGGED: Final = "ragged"


@dataclass(frozen=True, slots=True)
class PaddingRule:
    """How rows of different lengths become one tensor.

    Args:
        name: the tensor the rule is for.
        pad_axis: the axis that differs, counted in the batched tensor.
        pad_value: what fills the padding.
        pad_buckets: lengths to pad to; empty means the longest row's.
        pad_mask: name of a tensor to make that is 1 at real positions and 0 at padding.
    """

    name: str
    _: KW_ONLY
    pad_axis: int | None = None
    pad_value: float = 0
    pad_buckets: Sequence[int] = ()
    pad_mask: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "pad_buckets", tuple(self.pad_buckets))
        _check_name(self.name)
        _check_padding(self)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model.

    Args:
        name: its name on the wire.
        datatype: `BOOL`, `UINT8` to `UINT64`, `INT8` to `INT64`, `FP16`, `BF16`, `FP32`, `FP64` or `BYTES`.
        shape: one number per dimension, -1 where any size goes.
        batch_dim: the dimension that counts rows.
        content_type: of a `BYTES` tensor: `image/jpeg,image/png`, `text/plain`, `application/json`...
        optional: an input that a client may leave out.
        columns: of rows of numbers, [rows, n]: the names of the n columns, as the model was trained on them.
        nullable: an input that may hold nulls: NaN in floating-point numbers, `NULL` in texts.
        logical_type: of a `BYTES` input of one element a row: `datetime`, ISO 8601 texts; pandas gets `datetime64[ns]`.
        unit: of a `datetime`: what numbers count since 1970, `s`, `ms`, `us` or `ns`; None: numbers are rejected.
        pad_axis: the axis along which rows may differ, counted in the batched tensor.
        pad_value: the number that fills the padding.
        pad_buckets: lengths to pad to, increasing.
        pad_mask: the input that says which positions are real.
        unpad_axis: the output axis that is cut back to the row's own length...
        unpad_input: ...in this input.
        example: of a `BYTES` input: a text that the model takes, for the first request that is suggested.
        rows: of an output: `ragged` where a row has any number of items, which lie one after another, [items, ...].
        row_index: of a ragged output: the output that holds the row's number of each item...
        row_column: ...in this column: of `row_index`, or without it of the output itself.
        carries: of a `BYTES` tensor: `request_headers` (an input, filled by the proxy) or `response_head` (an output).

    Raises:
        ValueError: a field is out of its range; the message names the tensor and the field.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    _: KW_ONLY
    batch_dim: int = 0
    content_type: str | None = None
    optional: bool = False
    columns: Sequence[str] = ()
    nullable: bool = False
    logical_type: str | None = None
    unit: str | None = None
    pad_axis: int | None = None
    pad_value: float = 0
    pad_buckets: Sequence[int] = ()
    pad_mask: str | None = None
    unpad_axis: int | None = None
    unpad_input: str | None = None
    rows: str | None = None
    row_index: str | None = None
    row_column: int | None = None
    example: str | None = None
    carries: str | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)
        names = ", ".join(CODES)
        _require(self.datatype in CODES, f"tensor {self.name}: datatype {self.datatype!r} is not one of {names}")
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "pad_buckets", tuple(self.pad_buckets))
        object.__setattr__(self, "columns", tuple(self.columns))
        _check_dimensions(self)
        _check_padding(self)
        _check_columns(self)
        _check_ragged(self)
        good = self.content_type is None or self.datatype == "BYTES"
        _require(good, f"tensor {self.name}: content_type goes with BYTES, not {self.datatype}")
        good = self.example is None or (self.datatype == "BYTES" and isinstance(self.example, str))
        _require(good, f"tensor {self.name}: example is a text, and goes with BYTES")
        good = self.carries is None or (self.carries in CARRIED and self.datatype == "BYTES" and len(self.shape) == 1)
        _require(good, f"tensor {self.name}: carries is {' or '.join(CARRIED)}, of BYTES, one element a row")

    @property
    def media_types(self) -> tuple[str, ...]:
        """The media types in `content_type`, lower case."""
        return tuple(t.strip().lower() for t in (self.content_type or "").split(",") if t.strip())

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row: without the batch dimension."""
        return tuple(self.shape[: self.batch_dim]) + tuple(self.shape[self.batch_dim + 1 :])


Rule = PaddingRule | TensorSpec
"""What says how a tensor is padded."""


def every_length(rule: Rule) -> Rule:
    """Return the rule with each length up to its last bucket as a bucket: no batch is longer than its longest row."""
    return replace(rule, pad_buckets=range(1, rule.pad_buckets[-1] + 1)) if rule.pad_buckets else rule


def fits(shape: Sequence[int], declared: Sequence[int]) -> bool:
    """Return whether a shape is one of those declared."""
    if len(shape) != len(declared):
        return False
    for got, want in zip(shape, declared, strict=True):  # noqa: SIM110 (a generator is an object with a frame)
        if want not in (ANY, got):
            return False
    return True


def _check_name(name: object) -> None:
    # A lone surrogate would make every metadata answer fail.
    good = isinstance(name, str) and name and not any("\ud800" <= letter <= "\udfff" for letter in name)
    _require(bool(good), "a tensor needs a name, of letters that UTF-8 has")


def _check_dimensions(spec: TensorSpec) -> None:
    rank = len(spec.shape)
    good = all(isinstance(d, int) and (d == ANY or d >= 1) for d in spec.shape)
    _require(good, f"tensor {spec.name}: shape {list(spec.shape)} may hold numbers from 1 up, and -1")
    good = 0 <= spec.batch_dim < rank
    _require(good, f"tensor {spec.name}: batch_dim {spec.batch_dim} is not within its {rank} dimensions")
    for key, axis in (("pad_axis", spec.pad_axis), ("unpad_axis", spec.unpad_axis)):
        good = axis is None or (0 <= axis < rank and axis != spec.batch_dim)
        _require(good, f"tensor {spec.name}: {key} {axis} must be within {rank} dimensions, not batch_dim")
    good = (spec.unpad_axis is None) == (spec.unpad_input is None)
    _require(good, f"tensor {spec.name}: unpad_axis and unpad_input go together")


def _check_columns(spec: TensorSpec) -> None:
    named = spec.columns
    good = len(set(named)) == len(named) and all(isinstance(name, str) for name in named)
    _require(good, f"tensor {spec.name}: columns must be different texts")
    good = not named or (spec.datatype != "BYTES" and spec.batch_dim == 0 and tuple(spec.shape[1:]) == (len(named),))
    _require(good, f"tensor {spec.name}: {len(named)} columns go with numbers of shape [-1, {len(named)}]")
    good = not spec.nullable or spec.datatype in ("FP16", "FP32", "FP64", "BYTES")
    _require(good, f"tensor {spec.name}: nullable goes with FP16, FP32, FP64 and BYTES, not {spec.datatype}")
    kind = spec.logical_type
    good = kind is None or (kind in LOGICAL_TYPES and spec.datatype == "BYTES" and not spec.row_shape)
    _require(good, f"tensor {spec.name}: logical_type is {' or '.join(LOGICAL_TYPES)}, of BYTES of shape [-1]")
    good = spec.unit is None or (spec.unit in UNITS and kind == "datetime")
    _require(good, f"tensor {spec.name}: unit is one of {', '.join(UNITS)}, of a datetime")


def _check_ragged(spec: TensorSpec) -> None:
    good = spec.rows in (None, RAGGED)
    _require(good, f"tensor {spec.name}: rows is {RAGGED!r}, not {spec.rows!r}")
    good = spec.rows is not None or (spec.row_index is None and spec.row_column is None)
    _require(good, f"tensor {spec.name}: row_index and row_column go with rows = {RAGGED!r}")
    good = spec.rows is None or (spec.batch_dim == 0 and spec.unpad_axis is None and spec.carries is None)
    _require(good, f"tensor {spec.name}: ragged items lie along the first dimension, and are not unpadded")
    column = spec.row_column
    good = column is None or (isinstance(column, int) and column >= 0)
    _require(good, f"tensor {spec.name}: row_column is a number from 0 up, not {column!r}")
    own = column is not None and spec.row_index is None
    good = not own or (len(spec.shape) == 2 and (spec.shape[1] == ANY or spec.shape[1] > (column or 0)))
    _require(good, f"tensor {spec.name}: row_column {column} is not a column of shape {list(spec.shape)}")


def _check_padding(rule: Rule) -> None:
    buckets = list(rule.pad_buckets)
    good = all(isinstance(b, int) and b >= 1 for b in buckets) and buckets == sorted(set(buckets))
    _require(good, f"tensor {rule.name}: pad_buckets {buckets} must be increasing lengths from 1 up")
    good = rule.pad_axis is not None or not (buckets or rule.pad_mask is not None)
    _require(good, f"tensor {rule.name}: pad_buckets and pad_mask need pad_axis")


def _require(condition: bool, message: str) -> None:  # noqa: FBT001 (reads as the word it is)
    if not condition:
        raise ValueError(message)
