"""What the model answered to a window's rows, put back in their order: a table of the schema that was declared before.

Its schema follows from the model's signature and the columns that are kept, never from what was answered, so that a
shard of no rows, or of failed ones alone, has the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from shoal_runtime.handlers.spec import ANY, TensorSpec
from shoal_runtime.offline.errors import WrongSettings
from shoal_runtime.offline.schemas import few
from shoal_runtime.offline.windows import CONTENT, holds_bytes
from shoal_schema.wire.datatypes import Array, bfloat16_to_float32

ERROR: Final = "shoal_error"
NONE: Final = "-"
_TYPES: Final = {
    "BOOL": pa.bool_(),
    # Readers of Parquet that know half precision are few.
    "FP16": pa.float32(),
    "BF16": pa.float32(),
    "FP32": pa.float32(),
    "FP64": pa.float64(),
    **{f"{sign}INT{bits}": getattr(pa, f"{sign.lower()}int{bits}")() for sign in ("", "U") for bits in (8, 16, 32, 64)},
}
NO_TEXT: Final = "is no text: declare its content_type, application/octet-stream"
_TEXTS: Final = ("text/", "application/json")


def kept_columns(
    schema: pa.Schema, asked: Sequence[str] | None, read: Mapping[str, Sequence[str]], specs: Sequence[TensorSpec]
) -> dict[str, str]:
    """Return the columns that stand beside the answers, by their names there, and which of the input they are.

    Raises:
        WrongSettings: one is not there, or has the name of an output.
    """
    if asked is None:
        used = {name for names in read.values() for name in names}
        bulky = {each.name for each in schema if each.name in used and holds_bytes(each.type)} | {CONTENT}
        kept = {name: name for name in schema.names if name not in bulky}
    else:
        kept = dict(_renamed(each, schema) for each in asked if each != NONE)
    known = set(schema.names)
    if absent := [name for name in kept.values() if name not in known]:
        raise WrongSettings(f"there is no column {absent[0]} to keep: the input has {few(schema.names)}")
    taken = {ERROR, *(spec.name for spec in specs)}
    if twice := [name for name in kept if name in taken]:
        free = {f"input_{name}" if name in taken else name: column for name, column in kept.items()}
        said = f"{twice[0]} is both a column of the input and of the answers: give it another name"
        raise WrongSettings(f"{said}, as in --keep {','.join(told(free))}")
    return kept


def _renamed(asked: str, schema: pa.Schema) -> tuple[str, str]:
    name, renamed, column = asked.partition("=")
    return (name, column) if renamed and asked not in schema.names else (asked, asked)


def told(kept: Mapping[str, str]) -> list[str]:
    """Return the columns as they are asked for: ``NAME``, or ``NEW=NAME``."""
    return [name if name == column else f"{name}={column}" for name, column in kept.items()]


def answer_schema(schema: pa.Schema, kept: Mapping[str, str], specs: Sequence[TensorSpec]) -> pa.Schema:
    """Return the schema of every shard's answers."""
    outputs = [pa.field(spec.name, answer_type(spec)) for spec in specs]
    beside = [pa.field(name, schema.field(column).type) for name, column in kept.items()]
    return pa.schema([*beside, *outputs, pa.field(ERROR, pa.string())])


def answer_type(spec: TensorSpec) -> pa.DataType:
    """Return the type of an output's column: a number, a text, or lists of them."""
    kind = _TYPES[spec.datatype] if spec.datatype != "BYTES" else pa.string() if is_text(spec) else pa.binary()
    for size in reversed(_free(spec)):
        kind = pa.list_(kind) if size == ANY else pa.list_(kind, size)
    return kind


def is_text(spec: TensorSpec) -> bool:
    """Return whether an output of `BYTES` holds texts: unless it says that it is something else."""
    return all(each.startswith(_TEXTS) for each in spec.media_types)


def _all_text(cell: Any) -> bool:
    if isinstance(cell, list):
        return all(map(_all_text, cell))
    try:
        cell.decode()
    except UnicodeDecodeError:
        return False
    return True


def _free(spec: TensorSpec) -> list[int]:
    """Return the shape of a row; along the axis that is cut to the row's own length any size goes."""
    return [ANY if dimension == _cut_axis(spec) else size for dimension, size in enumerate(spec.row_shape)]


def _cut_axis(spec: TensorSpec) -> int | None:
    return None if spec.unpad_axis is None else spec.unpad_axis - (spec.unpad_axis > spec.batch_dim)


class Answers:
    """What is known of a window's rows.

    Args:
        rows: how many it has.
        specs: the model's outputs.
        errors: rows that are known to have failed, each with the reason.
        lengths: of each input whose rows differ, their own.
    """

    def __init__(
        self, rows: int, specs: Sequence[TensorSpec], errors: Mapping[int, str], lengths: Mapping[str, Sequence[int]]
    ) -> None:
        self.rows = rows
        self.errors = dict(errors)
        self._specs = specs
        self._lengths = lengths
        self._stored: dict[str, Any] = {}
        self._left = rows - len(self.errors)

    @property
    def complete(self) -> bool:
        """Return whether each row has its answer or its error."""
        return self._left == 0

    def add(self, chosen: Array, outputs: Mapping[str, Array], errors: Mapping[int, str]) -> list[str]:
        """Take what became of a batch: outputs of the rows that succeeded, in order, and errors by place.

        Returns:
            All errors of its rows; texts that are none are among them.
        """
        self._left -= len(chosen)
        for place, said in errors.items():
            self.errors[int(chosen[place])] = said
        good = [row for place, row in enumerate(chosen.tolist()) if place not in errors]
        for spec in self._specs if good else ():
            self._store(spec, good, np.moveaxis(outputs[spec.name], spec.batch_dim, 0))
        return [self.errors[row] for row in chosen.tolist() if row in self.errors]

    def fail(self, chosen: Array, said: str) -> None:
        """Take that all rows of a batch failed for one reason."""
        self.add(chosen, {}, dict.fromkeys(range(len(chosen)), said))

    def _store(self, spec: TensorSpec, good: Sequence[int], values: Array) -> None:
        if ANY in _free(spec) or spec.datatype == "BYTES":
            stored = self._stored.setdefault(spec.name, [None] * self.rows)
            for row, value in zip(good, values, strict=True):
                stored[row] = cell = _plain(self._cut(spec, row, value), spec)
                if spec.datatype == "BYTES" and is_text(spec) and not _all_text(cell):
                    self.errors.setdefault(row, f"{spec.name} {NO_TEXT}")
            return
        if spec.name not in self._stored:
            self._stored[spec.name] = np.zeros((self.rows, *values.shape[1:]), values.dtype)
        self._stored[spec.name][good] = values

    def _cut(self, spec: TensorSpec, row: int, value: Any) -> Any:
        axis, lengths = _cut_axis(spec), self._lengths.get(spec.unpad_input or "")
        if axis is None or not lengths:
            return value
        return value[(slice(None),) * axis + (slice(lengths[row]),)]

    def table(self, kept: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return the columns that are kept, the outputs and the errors, in the schema."""
        outputs = [self._column(spec, schema.field(spec.name).type) for spec in self._specs]
        errors = pa.array([self.errors.get(row) for row in range(self.rows)], pa.string())
        return pa.table([*kept.columns, *outputs, errors], schema=schema)

    def _column(self, spec: TensorSpec, kind: pa.DataType) -> pa.Array:
        failed = np.array([row in self.errors for row in range(self.rows)], dtype=bool)
        stored = self._stored.get(spec.name)
        if stored is None:
            return pa.nulls(self.rows, kind)
        if isinstance(stored, list):
            return pa.array([None if gone else cell for cell, gone in zip(stored, failed, strict=True)], kind)
        return _dense(bfloat16_to_float32(stored) if spec.datatype == "BF16" else stored, kind, failed)


def _dense(stored: Array, kind: pa.DataType, failed: Array) -> pa.Array:
    """Return rows of one shape as a column, null where they failed."""
    if stored.ndim == 1:
        return pa.array(stored, mask=failed).cast(kind)
    flat, sizes, element = np.ascontiguousarray(stored).reshape(-1), [], kind
    while pa.types.is_fixed_size_list(element):
        sizes.append(element.list_size)
        element = element.value_type
    column = pa.array(flat).cast(element)
    for size in reversed(sizes[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return pa.FixedSizeListArray.from_arrays(column, sizes[0], mask=pa.array(failed))


def _plain(cell: Any, spec: TensorSpec) -> Any:
    if spec.datatype == "BF16":
        cell = bfloat16_to_float32(np.asarray(cell))
    return cell.tolist() if isinstance(cell, np.ndarray | np.generic) else cell
