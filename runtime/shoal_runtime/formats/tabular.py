"""Models of tables: rows or columns in, predictions out. What estimators and boosted trees have in common."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from shoal_runtime.errors import LoadError
from shoal_runtime.faults import HANDLER_FAULTS, describe
from shoal_runtime.formats.source import Loaded, Source
from shoal_runtime.handlers.spec import ANY, TensorSpec
from shoal_schema.wire.datatypes import DATATYPES, DTYPES, Array

INPUT: Final = "input-0"
OUTPUT: Final = "output-0"
"""KServe's names, where the file has none."""
PROBABILITIES: Final = "probabilities"
"""What classifiers give beside their labels."""
TEXT: Final = "text/plain"

Batch = Mapping[str, Array]


class TableHandler:
    """Make a table of the inputs, and read each declared output from it.

    ``outputs`` holds a function for each name that the library has an answer of its own for; whatever else an output
    is called, it is the prediction, `output-0`. Undeclared, they are what two made-up rows give.
    """

    def __init__(
        self,
        source: Source,
        inputs: Sequence[TensorSpec],
        table: Callable[[Batch], Any],
        outputs: Mapping[str, Callable[[Any], Any]],
    ) -> None:
        self.inputs = tuple(inputs)
        self._table = table
        self._functions = dict(outputs)
        self.outputs = tuple(source.outputs) or self._probed(source.told_outputs)
        self._functions = {spec.name: outputs.get(spec.name, outputs[OUTPUT]) for spec in self.outputs}

    def forward(self, batch: Batch) -> dict[str, Array]:
        """Predict."""
        table = self._table(batch)
        return {name: plain(function(table)) for name, function in self._functions.items()}

    def loaded(self, platform: str) -> Loaded:
        """Return the handler as a loaded model."""
        return Loaded(self, self.inputs, self.outputs, platform)

    def _probed(self, told: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        try:
            made = self.forward({spec.name: _blank(spec, rows=2) for spec in self.inputs})
            return tuple(shown(name, array) for name, array in made.items())
        except HANDLER_FAULTS as error:
            if told:
                return tuple(told)
            raise LoadError(
                f"what the model gives cannot be found out with rows of zeros and empty texts ({describe(error)}):"
                " declare its [[inputs]] and [[outputs]] in model.toml"
            ) from error


def matrix(inputs: Sequence[TensorSpec], features: Sequence[str] = ()) -> Callable[[Batch], Array]:
    """Return what makes one array, rows by features, of the inputs: by the names of features where these are they."""
    names = [spec.name for spec in inputs]
    names = list(features) if set(names) == set(features) else names

    def table(batch: Batch) -> Array:
        arrays = [batch[name] for name in names]
        return arrays[0] if len(arrays) == 1 and arrays[0].ndim > 1 else np.column_stack(arrays)

    return table


def frame(inputs: Sequence[TensorSpec], names: Sequence[str] = ()) -> Callable[[Batch], Any]:
    """Return what makes a pandas frame of the inputs: of columns, or of rows whose columns have these names."""
    pandas = imported("pandas", "sklearn")

    def columns(batch: Batch) -> Any:
        return pandas.DataFrame({spec.name: batch[spec.name] for spec in inputs})

    def rows(batch: Batch) -> Any:
        return pandas.DataFrame(batch[inputs[0].name], columns=names)

    return rows if len(inputs) == 1 and len(inputs[0].shape) > 1 else columns


def rows_of(features: int, datatype: str) -> tuple[TensorSpec, ...]:
    """Return the one input of a model that takes rows of so many features."""
    return (TensorSpec(INPUT, datatype, [ANY, features]),)


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
