"""Handler for models of tables, shared by scikit-learn estimators and boosted trees."""

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np

from shoal_runtime.errors import ItemError, LoadError
from shoal_runtime.faults import HANDLER_FAULTS, describe, exception_message
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
from shoal_runtime.formats.library_device import LibraryDevice
from shoal_runtime.formats.source import LoadedModel, ModelSource
from shoal_runtime.formats.table_trials import trial_values
from shoal_runtime.packages import install_extras, install_package
from shoal_runtime.signature.spec import ANY, TensorSpec
from shoal_schema.wire.datatypes import DATATYPES, DTYPES, Array

OUTPUT: Final = "output-0"
"""KServe's output name, for files without names."""
PROBABILITIES: Final = "probabilities"
"""Second output of classifiers."""
NULLABLE: Final = ("FP32", "FP64", "BYTES")
TRIES_S: Final = 2.0
"""Maximum time in seconds to try null in each column of one tensor."""
BAD_VALUES: Final = (ValueError, TypeError, KeyError)
"""Errors of libraries about invalid values."""


class TableHandler:
    """Handler that converts a batch to a table, and computes each output from the table.

    Undeclared outputs are found by a prediction of two example rows.

    Args:
        source: model to serve.
        inputs: the model's inputs.
        table: function that converts a batch to the model's table.
        outputs: functions of the table by output name; a declared output without a function is the prediction.
        columns: columns in the model's order, if known.
    """

    def __init__(
        self,
        source: ModelSource,
        inputs: Sequence[TensorSpec],
        table: Callable[[Batch], Any],
        outputs: Mapping[str, Callable[[Any], Any]],
        columns: Sequence[Column] = (),
    ) -> None:
        self.inputs = tuple(inputs)
        self._columns = {column.input or column.name: column for column in columns}
        self._table = table
        self.trial_values = trial_values(inputs, columns)
        """Values for trials by input and column; none if any number is valid."""
        # All outputs of the library, until the declared ones are known.
        self._functions = dict(outputs)
        self.outputs = tuple(source.outputs) or self._probed(source.described_outputs)
        self._functions = {spec.name: outputs.get(spec.name, outputs[OUTPUT]) for spec in self.outputs}
        self.inputs = tuple(self._with_nulls(spec) for spec in self.inputs)

    def forward(self, batch: Batch) -> dict[str, Array] | list[Any]:
        """Predict a batch; if the library raises an error, only the rows that cause it fail."""
        try:
            return self._predicted(batch)
        except HANDLER_FAULTS as error:
            # Any other error would hit every row, so the batch fails as a whole.
            if not isinstance(error, BAD_VALUES):
                raise
            rows = len(next(iter(batch.values())))
            if rows == 1:
                return [ItemError(exception_message(error))]
        # Bisect the batch until the rows that fail are alone.
        results: list[Any] = []
        for part in (slice(0, rows // 2), slice(rows // 2, rows)):
            half = {name: array[part] for name, array in batch.items()}
            made = self.forward(half)
            count = len(next(iter(half.values())))
            if isinstance(made, dict):
                made = [{name: array[row] for name, array in made.items()} for row in range(count)]
            results += made
        return results

    def loaded(self, platform: str, device: LibraryDevice | None = None) -> LoadedModel:
        """Return the handler as a loaded model on a device; None is the CPU."""
        return LoadedModel(self, self.inputs, self.outputs, platform, device=device)

    def _predicted(self, batch: Batch) -> dict[str, Array]:
        table = self._table(batch)
        return {name: plain(function(table)) for name, function in self._functions.items()}

    def _probed(self, described: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the specifications of the outputs of example predictions.

        If the prediction fails, return the described outputs.

        Raises:
            LoadError: the prediction fails, and no outputs are described.
        """
        try:
            made = self._predicted(self._examples(2))
            return tuple(shown(name, array) for name, array in made.items())
        except HANDLER_FAULTS as error:
            if described:
                return tuple(described)
            # With names, the message contains the declarations to copy.
            named = any(spec.columns or len(spec.shape) == 1 for spec in self.inputs)
            declared = f":\n{in_toml(list(self._columns.values()))}" if self._columns and named else ""
            raise LoadError(
                f"the model cannot predict example rows ({describe(error)}). Declare its [[inputs]] and"
                f" [[outputs]] in model.toml{declared}"
            ) from error

    def _with_nulls(self, spec: TensorSpec) -> TensorSpec:
        """Test whether the model predicts rows with nulls in an input.

        Returns:
            The input's specification; it is nullable if a prediction with a null in at least one column succeeded.
        """
        if spec.nullable or spec.datatype not in NULLABLE:
            return spec
        row = self._examples(1)
        null = np.array([None], dtype=object) if spec.datatype == "BYTES" else np.nan
        end_s = time.monotonic() + TRIES_S
        # All columns at once, then each: an imputer may precede only some of them.
        chosen: list[Any] = [
            ...,
            *((slice(None), place) for place in range(row[spec.name][0].size if spec.row_shape else 0)),
        ]
        for part in chosen:
            tried = row[spec.name].copy()
            tried[part] = null
            with suppress(*HANDLER_FAULTS):
                self._predicted({**row, spec.name: tried})
                return replace(spec, nullable=True)
            if time.monotonic() > end_s:
                break
        return spec

    def _examples(self, rows: int) -> dict[str, Array]:
        """Return example rows: known values of the columns, else zeros and empty texts."""
        examples: dict[str, Array] = {}
        for spec in self.inputs:
            # Dimensions of any size have size 1.
            shape = [rows, *(1 if size == ANY else size for size in spec.row_shape)]
            if spec.datatype == "BYTES":
                made = np.full(shape, "" if TEXT in spec.media_types else b"", dtype=object)
            else:
                made = np.zeros(shape, DTYPES[spec.datatype])
            if len(spec.shape) == 1 and (column := self._columns.get(spec.name)) is not None:
                if column.example is not None:
                    made[:] = column.example
            elif self._columns and spec.columns:
                for place, name in enumerate(spec.columns):
                    if (column := self._columns.get(name)) is not None and column.example is not None:
                        made[:, place] = column.example
            examples[spec.name] = made
        return examples


def matrix(inputs: Sequence[TensorSpec], columns: Sequence[Column] = ()) -> Callable[[Batch], Array]:
    """Return a function that converts a batch to an array of shape [rows, features].

    Args:
        inputs: inputs that `columns.reconciled` returned.
        columns: columns in the model's order; empty to keep the order of the inputs.
    """
    names = [column.input or column.name for column in columns] or [spec.name for spec in inputs]
    # A single tensor already has the columns; several inputs are stacked.
    only = inputs[0] if len(inputs) == 1 and len(inputs[0].shape) > 1 else None
    known = only is not None and set(only.columns) == {column.name for column in columns}
    places = [only.columns.index(column.name) for column in columns] if only is not None and known else []
    in_order = places == list(range(len(places)))

    def rows(batch: Batch) -> Array:
        array = batch[inputs[0].name]
        return array if in_order else array[:, places]

    def table(batch: Batch) -> Array:
        count = len(next(iter(batch.values())))
        # An omitted optional input is missing in every row.
        return np.column_stack([batch[name] if name in batch else np.full(count, np.nan) for name in names])

    return table if only is None else rows


def frame(inputs: Sequence[TensorSpec], columns: Sequence[Column] = ()) -> Callable[[Batch], Any]:
    """Return a function that converts a batch to a pandas frame."""
    pandas = imported("pandas", "sklearn")
    return frame_maker(inputs, columns or declared_columns(inputs), pandas=pandas)


def served_columns(
    source: ModelSource, columns: Sequence[Column], *, named: bool
) -> tuple[Sequence[TensorSpec], Sequence[Column]]:
    """Return the inputs and columns of boosted trees: as declared, or else as in the file.

    Raises:
        LoadError: the declared inputs differ from the file.
    """
    if not source.inputs:
        return inputs_of(columns, named=named), columns
    # Without names, declared inputs match the columns by position.
    if named or len(source.inputs) == 1:
        return reconciled(source.inputs, columns, named=named)
    if len(source.inputs) != len(columns):
        raise LoadError(f"the model was trained on {len(columns)} columns; {len(source.inputs)} inputs are declared")
    return source.inputs, [
        replace(column, input=spec.name, datatype=spec.datatype)
        for column, spec in zip(columns, source.inputs, strict=True)
    ]


def framed_if_categorical(inputs: Sequence[TensorSpec], columns: Sequence[Column]) -> Callable[[Batch], Any]:
    """Return a function that converts a batch to an array, or a frame if a column is categorical."""
    categorical = any(column.categories is not None for column in columns)
    return frame(inputs, columns) if categorical else matrix(inputs, columns)


def imported(module: str, extra: str | None) -> Any:
    """Import a library that only some formats require.

    Args:
        module: name of the module to import.
        extra: extra of the package `shoal` that installs the library; None if the user must install it.

    Raises:
        LoadError: the library is not installed, or a system library is missing.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        install = f". {install_extras(extra)}" if extra else f": {install_package(module.partition('.')[0])}"
        raise LoadError(f"this model requires {error.name}{install}") from None
    except OSError as error:
        raise LoadError(f"{module} cannot be loaded: {error} (on Debian: apt-get install libgomp1)") from None


def plain(value: Any) -> Array:
    """Convert a library's result to an array; texts become Python objects."""
    array = np.asarray(value)
    # numpy pads texts of fixed length, which the wire does not have.
    return array.astype(object) if array.dtype.kind in "US" else array


def shown(name: str, array: Array) -> TensorSpec:
    """Return the specification of an output whose value is ``array``."""
    if array.dtype == object:
        return TensorSpec(name, "BYTES", [ANY, *array.shape[1:]], content_type=TEXT)
    return TensorSpec(name, DATATYPES[array.dtype], [ANY, *array.shape[1:]])
