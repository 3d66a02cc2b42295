"""Models of tables: rows or columns in, predictions out. What estimators and boosted trees have in common."""

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from shoal_runtime.errors import ItemError, LoadError
from shoal_runtime.faults import HANDLER_FAULTS, describe, said
from shoal_runtime.formats.columns import (
    TEXT,
    Batch,
    Column,
    declared_columns,
    frame_maker,
    in_toml,
    inputs_of,
    reconciled,
)
from shoal_runtime.formats.source import Loaded, Source
from shoal_runtime.formats.table_trials import trial_values
from shoal_runtime.handlers.spec import ANY, TensorSpec
from shoal_schema.wire.datatypes import DATATYPES, DTYPES, Array

OUTPUT: Final = "output-0"
"""KServe's name, where the file has none."""
PROBABILITIES: Final = "probabilities"
"""What classifiers give beside their labels."""
NULLABLE: Final = ("FP32", "FP64", "BYTES")
TRIES_S: Final = 2.0
"""Time to try the columns of one tensor for nulls one by one."""
BAD_VALUES: Final = (ValueError, TypeError, KeyError)
"""What libraries raise for values that they do not take."""


class TableHandler:
    """Make a table of the inputs, and read each declared output from it.

    ``outputs`` holds a function for each name that the library has a result of its own for; whatever else an output is
    called, it is the prediction, `output-0`. Undeclared, they are what two made-up rows give.
    """

    def __init__(
        self,
        source: Source,
        inputs: Sequence[TensorSpec],
        table: Callable[[Batch], Any],
        outputs: Mapping[str, Callable[[Any], Any]],
        columns: Sequence[Column] = (),
    ) -> None:
        self.inputs = tuple(inputs)
        self._columns = {column.input or column.name: column for column in columns}
        self._table = table
        self.trial_values = trial_values(inputs, columns)
        """By input, what warm-up chooses each column's values from; none where any number goes."""
        self._functions = dict(outputs)
        self.outputs = tuple(source.outputs) or self._probed(source.told_outputs)
        self._functions = {spec.name: outputs.get(spec.name, outputs[OUTPUT]) for spec in self.outputs}
        self.inputs = tuple(self._with_nulls(spec) for spec in self.inputs)

    def forward(self, batch: Batch) -> dict[str, Array] | list[Any]:
        """Predict; where the library raises, the rows that it raises on fail alone."""
        try:
            return self._predicted(batch)
        except HANDLER_FAULTS as error:
            rows = len(next(iter(batch.values())))
            if rows > 1 and isinstance(error, BAD_VALUES):
                return self._halved(batch, rows)
            if isinstance(error, BAD_VALUES):
                return [ItemError(said(error))]
            raise

    def loaded(self, platform: str) -> Loaded:
        """Return the handler as a loaded model."""
        return Loaded(self, self.inputs, self.outputs, platform)

    def _predicted(self, batch: Batch) -> dict[str, Array]:
        table = self._table(batch)
        return {name: plain(function(table)) for name, function in self._functions.items()}

    def _halved(self, batch: Batch, rows: int) -> list[Any]:
        """Return each row's outputs, or its error: halves of a batch until those that fail are alone."""
        results: list[Any] = []
        for part in (slice(0, rows // 2), slice(rows // 2, rows)):
            half = {name: array[part] for name, array in batch.items()}
            made = self.forward(half)
            count = len(next(iter(half.values())))
            results += made if isinstance(made, list) else [_row(made, row) for row in range(count)]
        return results

    def _probed(self, told: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        try:
            made = self._predicted(self._examples(2))
            return tuple(shown(name, array) for name, array in made.items())
        except HANDLER_FAULTS as error:
            if told:
                return tuple(told)
            named = any(spec.columns or len(spec.shape) == 1 for spec in self.inputs)
            declared = f":\n{in_toml(list(self._columns.values()))}" if self._columns and named else ""
            raise LoadError(
                f"the model cannot predict rows of example values ({describe(error)}): declare its [[inputs]] and"
                f" [[outputs]] in model.toml{declared}"
            ) from error

    def _with_nulls(self, spec: TensorSpec) -> TensorSpec:
        """Return the input as nullable if the model predicts a row with a null in it, in any of its columns."""
        if spec.nullable or spec.datatype not in NULLABLE:
            return spec
        row = self._examples(1)
        nothing = np.array([None], dtype=object) if spec.datatype == "BYTES" else np.nan
        end_s = time.monotonic() + TRIES_S
        # All of it first, then each column: an imputer may stand before one of them alone.
        chosen: list[Any] = [
            ...,
            *((slice(None), place) for place in range(row[spec.name][0].size if spec.row_shape else 0)),
        ]
        for part in chosen:
            tried = row[spec.name].copy()
            tried[part] = nothing
            if self._predicts({**row, spec.name: tried}):
                return replace(spec, nullable=True)
            if time.monotonic() > end_s:
                break
        return spec

    def _predicts(self, batch: Batch) -> bool:
        try:
            self._predicted(batch)
        except HANDLER_FAULTS:
            return False
        return True

    def _examples(self, rows: int) -> dict[str, Array]:
        """Return rows of values that the model takes, as far as its columns tell; else zeros and empty texts."""
        return {spec.name: self._example(spec, rows) for spec in self.inputs}

    def _example(self, spec: TensorSpec, rows: int) -> Array:
        blank = _blank(spec, rows=rows)
        if len(spec.shape) == 1 and (column := self._columns.get(spec.name)) is not None:
            if column.example is not None:
                blank[:] = column.example
        elif self._columns and spec.columns:
            for place, name in enumerate(spec.columns):
                if (column := self._columns.get(name)) is not None and column.example is not None:
                    blank[:, place] = column.example
        return blank


def _row(outputs: Mapping[str, Array], row: int) -> dict[str, Array]:
    return {name: array[row] for name, array in outputs.items()}


def matrix(inputs: Sequence[TensorSpec], columns: Sequence[Column] = ()) -> Callable[[Batch], Array]:
    """Return what makes one array, rows by features, of the inputs: in the order of the model's columns, if it has any.

    The inputs are those that `columns.reconciled` gave.
    """
    names = [column.input or column.name for column in columns] or [spec.name for spec in inputs]
    only = inputs[0] if len(inputs) == 1 and len(inputs[0].shape) > 1 else None
    known = only is not None and set(only.columns) == {column.name for column in columns}
    places = [only.columns.index(column.name) for column in columns] if only is not None and known else []
    in_order = places == list(range(len(places)))

    def rows(batch: Batch) -> Array:
        array = batch[inputs[0].name]
        return array if in_order else array[:, places]

    def table(batch: Batch) -> Array:
        count = len(next(iter(batch.values())))
        # An optional input that was left out is missing in every row.
        return np.column_stack([batch[name] if name in batch else np.full(count, np.nan) for name in names])

    return table if only is None else rows


def frame(inputs: Sequence[TensorSpec], columns: Sequence[Column] = ()) -> Callable[[Batch], Any]:
    """Return what makes a pandas frame of the inputs: the model's columns, or one for each input."""
    pandas = imported("pandas", "sklearn")
    return frame_maker(inputs, columns or declared_columns(inputs), pandas=pandas)


def served_columns(
    source: Source, columns: Sequence[Column], *, named: bool
) -> tuple[Sequence[TensorSpec], Sequence[Column]]:
    """Return the inputs of boosted trees and their columns: as declared, or else as the file has them.

    Raises:
        LoadError: what is declared is not what the file holds.
    """
    if not source.inputs:
        return inputs_of(columns, named=named), columns
    if named or len(source.inputs) == 1:
        return reconciled(source.inputs, columns, named=named)
    if len(source.inputs) != len(columns):
        raise LoadError(f"{len(source.inputs)} inputs are declared; the model was trained on {len(columns)} columns")
    return source.inputs, [
        replace(column, input=spec.name, datatype=spec.datatype)
        for column, spec in zip(columns, source.inputs, strict=True)
    ]


def framed_if_categorical(inputs: Sequence[TensorSpec], columns: Sequence[Column]) -> Callable[[Batch], Any]:
    """Return what makes the table of boosted trees: an array, or a frame where a column is a pandas category."""
    categorical = any(column.categories is not None for column in columns)
    return frame(inputs, columns) if categorical else matrix(inputs, columns)


def imported(module: str, extra: str | None) -> Any:
    """Import a library that only one format needs, and an extra of ours brings, if it is not one of the user's.

    Raises:
        LoadError: it is not installed, or lacks a library of the system.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        wanted = f'"shoal[{extra}]"' if extra else module.partition(".")[0]
        raise LoadError(f"this model needs {error.name}: pip install {wanted}") from None
    except OSError as error:
        raise LoadError(f"{module} cannot be loaded: {error} (on Debian: apt-get install libgomp1)") from None


def plain(value: Any) -> Array:
    """Return what a library gave as an array of a datatype of the wire: texts are objects there."""
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


def _blank(spec: TensorSpec, *, rows: int) -> Array:
    shape = [rows, *(1 if size == ANY else size for size in spec.row_shape)]
    if spec.datatype == "BYTES":
        return np.full(shape, "" if TEXT in spec.media_types else b"", dtype=object)
    return np.zeros(shape, DTYPES[spec.datatype])


def shown(name: str, array: Array) -> TensorSpec:
    """Return the output whose rows these are."""
    if array.dtype == object:
        return TensorSpec(name, "BYTES", [ANY, *array.shape[1:]], content_type=TEXT)
    return TensorSpec(name, DATATYPES[array.dtype], [ANY, *array.shape[1:]])
