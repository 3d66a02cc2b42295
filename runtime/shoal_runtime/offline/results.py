"""Results of a window's rows, in row order, as a table with the output schema.

The schema depends only on the model's signature and the kept columns, so all shards have the same schema.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from shoal_runtime.offline.errors import InvalidSettings
from shoal_runtime.offline.schemas import few, holds_bytes
from shoal_runtime.offline.windows import CONTENT
from shoal_runtime.signature.spec import ANY, TensorSpec
from shoal_schema.wire.datatypes import Array, bfloat16_to_float32

ERROR: Final = "shoal_error"
NONE: Final = "-"
_TYPES: Final = {
    "BOOL": pa.bool_(),
    # Few readers of Parquet support half precision.
    "FP16": pa.float32(),
    "BF16": pa.float32(),
    "FP32": pa.float32(),
    "FP64": pa.float64(),
    **{f"{sign}INT{bits}": getattr(pa, f"{sign.lower()}int{bits}")() for sign in ("", "U") for bits in (8, 16, 32, 64)},
}
NO_TEXT: Final = "is not UTF-8 text: declare its content_type as application/octet-stream"
_TEXTS: Final = ("text/", "application/json")


def kept_columns(
    schema: pa.Schema, keep: Sequence[str] | None, read: Mapping[str, Sequence[str]], specs: Sequence[TensorSpec]
) -> dict[str, str]:
    """Return the input columns to write beside the results, by their name in the output.

    Args:
        schema: columns of the input's rows.
        keep: ``NAME`` or ``NEW=NAME`` each; None keeps all columns except bytes that the model reads.
        read: columns of each of the model's inputs.
        specs: the model's outputs.

    Raises:
        InvalidSettings: a column does not exist, or has the name of an output.
    """
    columns = set(schema.names)
    if keep is None:
        used = {name for names in read.values() for name in names}
        bulky = {each.name for each in schema if each.name in used and holds_bytes(each.type)} | {CONTENT}
        kept = {name: name for name in schema.names if name not in bulky}
    else:
        kept = {}
        for option in keep:
            new, separator, column = option.partition("=")
            # A column's own name may have an equals sign.
            if separator and option not in columns:
                kept[new] = column
            elif option != NONE:
                kept[option] = option
    if absent := [name for name in kept.values() if name not in columns]:
        raise InvalidSettings(f"the input has no column {absent[0]} to keep: its columns are {few(schema.names)}")
    # Results and kept columns share one table.
    reserved = {ERROR, *(spec.name for spec in specs)}
    if clash := [name for name in kept if name in reserved]:
        free = {f"input_{name}" if name in reserved else name: column for name, column in kept.items()}
        raise InvalidSettings(
            f"{clash[0]} is both a column of the input and of the results. Rename it, as in"
            f" --keep {','.join(keep_options(free))}"
        )
    return kept


def keep_options(kept: Mapping[str, str]) -> list[str]:
    """Return kept columns as values of ``--keep``: ``NAME`` or ``NEW=NAME``."""
    return [name if name == column else f"{name}={column}" for name, column in kept.items()]


def result_schema(schema: pa.Schema, kept: Mapping[str, str], specs: Sequence[TensorSpec]) -> pa.Schema:
    """Return the output schema: kept columns, the model's outputs, and errors."""
    outputs = [pa.field(spec.name, result_type(spec)) for spec in specs]
    beside = [pa.field(name, schema.field(column).type) for name, column in kept.items()]
    return pa.schema([*beside, *outputs, pa.field(ERROR, pa.string())])


def result_type(spec: TensorSpec) -> pa.DataType:
    """Return the column type of a model output: a number, text, bytes, or lists of these."""
    kind = _TYPES[spec.datatype] if spec.datatype != "BYTES" else pa.string() if is_text(spec) else pa.binary()
    for size in reversed(_row_shape(spec)):
        kind = pa.list_(kind) if size == ANY else pa.list_(kind, size)
    return kind


def is_text(spec: TensorSpec) -> bool:
    """Return whether a `BYTES` output holds text; true if it declares no content type."""
    return all(each.startswith(_TEXTS) for each in spec.media_types)


def _all_text(cell: Any) -> bool:
    if isinstance(cell, list):
        return all(map(_all_text, cell))
    try:
        cell.decode()
    except UnicodeDecodeError:
        return False
    return True


def _row_shape(spec: TensorSpec) -> list[int]:
    """Return the shape of a row of an output.

    The axis from which padding is removed has any size.
    """
    return [ANY if dimension == _unpad_axis(spec) else size for dimension, size in enumerate(spec.row_shape)]


def _unpad_axis(spec: TensorSpec) -> int | None:
    """Return the axis of a row from which padding is removed, or None."""
    return None if spec.unpad_axis is None else spec.unpad_axis - (spec.unpad_axis > spec.batch_dim)


class WindowResults:
    """Results and errors of a window's rows, collected batch by batch.

    Args:
        rows: number of rows in the window.
        specs: the model's outputs.
        errors: errors of rows that are not sent to the model, by row.
        lengths: length of each row, for each ragged input.
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
        """Return whether each row of the window has a result or an error."""
        return self._left == 0

    def add(self, chosen: Array, outputs: Mapping[str, Array], errors: Mapping[int, str]) -> list[str]:
        """Store the results and errors of a batch.

        Args:
            chosen: row numbers in the window, in the batch's order.
            outputs: outputs of the successful rows, in order.
            errors: errors of the failed rows, by position in the batch.

        Returns: Errors of the batch's rows, including outputs that are not valid text.
        """
        self._left -= len(chosen)
        for place, message in errors.items():
            self.errors[int(chosen[place])] = message
        good = [row for place, row in enumerate(chosen.tolist()) if place not in errors]
        for spec in self._specs if good else ():
            values = np.moveaxis(outputs[spec.name], spec.batch_dim, 0)
            if ANY in _row_shape(spec) or spec.datatype == "BYTES":
                self._store_cells(spec, good, values)
                continue
            if spec.name not in self._stored:
                self._stored[spec.name] = np.zeros((self.rows, *values.shape[1:]), values.dtype)
            self._stored[spec.name][good] = values
        return [self.errors[row] for row in chosen.tolist() if row in self.errors]

    def fail(self, chosen: Array, message: str) -> None:
        """Store one error for all rows of a batch."""
        self.add(chosen, {}, dict.fromkeys(range(len(chosen)), message))

    def _store_cells(self, spec: TensorSpec, good: Sequence[int], values: Array) -> None:
        """Store outputs that are bytes, or have different shapes, as Python objects."""
        stored = self._stored.setdefault(spec.name, [None] * self.rows)
        axis, lengths = _unpad_axis(spec), self._lengths.get(spec.unpad_input or "")
        for row, value in zip(good, values, strict=True):
            cell = value
            if axis is not None and lengths:
                # Padding is cut off along the axis that follows the input's own length.
                cell = value[(slice(None),) * axis + (slice(lengths[row]),)]
            if spec.datatype == "BF16":
                cell = bfloat16_to_float32(np.asarray(cell))
            stored[row] = cell = cell.tolist() if isinstance(cell, np.ndarray | np.generic) else cell
            if spec.datatype == "BYTES" and is_text(spec) and not _all_text(cell):
                self.errors.setdefault(row, f"{spec.name} {NO_TEXT}")

    def table(self, kept: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return kept columns, outputs and errors of all rows as a table with ``schema``."""
        failed = np.array([row in self.errors for row in range(self.rows)], dtype=bool)
        outputs = []
        for spec in self._specs:
            kind = schema.field(spec.name).type
            stored = self._stored.get(spec.name)
            if stored is None:
                outputs.append(pa.nulls(self.rows, kind))
            elif isinstance(stored, list):
                cells = [None if gone else cell for cell, gone in zip(stored, failed, strict=True)]
                outputs.append(pa.array(cells, kind))
            else:
                numbers = bfloat16_to_float32(stored) if spec.datatype == "BF16" else stored
                sizes, element = [], kind
                while pa.types.is_fixed_size_list(element):
                    sizes.append(element.list_size)
                    element = element.value_type
                flat = np.ascontiguousarray(numbers).reshape(-1)
                column = pa.array(flat).cast(element) if sizes else pa.array(flat, mask=failed).cast(element)
                # Rows of one shape are lists, nested from the inside out around one flat array; null where they failed.
                for depth, size in reversed(list(enumerate(sizes))):
                    mask = pa.array(failed) if depth == 0 else None
                    column = pa.FixedSizeListArray.from_arrays(column, size, mask=mask)
                outputs.append(column)
        errors = pa.array([self.errors.get(row) for row in range(self.rows)], pa.string())
        return pa.table([*kept.columns, *outputs, errors], schema=schema)
