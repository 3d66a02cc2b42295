"""What ragged outputs declare: whose their items are, and what clients see of them."""

from collections.abc import Sequence
from typing import Final

from shoal_runtime.errors import LoadError
from shoal_runtime.handlers.spec import TensorSpec

RAGGED_REMEDY: Final = (
    'let the model return the row\'s number of each item and declare the output with rows = "ragged" in model.toml'
    " (docs/how-to/detectors.md)"
)
UNEVEN_REMEDY: Final = (
    f"{RAGGED_REMEDY}; without that number, serve one row at a time with SHOAL_BATCHING_MAX_BATCH_SIZE=1"
    " (batching.maxBatchSize)"
)


def check_ragged(outputs: Sequence[TensorSpec], *, max_batch_size: int) -> None:
    """Check that each ragged output says whose its items are.

    Raises:
        LoadError: it does not, or names what is no list of rows' numbers.
    """
    specs = {spec.name: spec for spec in outputs}
    for spec in outputs:
        if spec.rows is None:
            continue
        if spec.row_index is None:
            if spec.row_column is None and max_batch_size > 1:
                raise LoadError(
                    f"output {spec.name} is ragged, and nothing tells the rows of its items: name the output that holds"
                    " them (row_index), or a column of its own (row_column); with SHOAL_BATCHING_MAX_BATCH_SIZE=1"
                    " (batching.maxBatchSize) neither is needed"
                )
            _check_numbers(spec, spec)
        elif spec.row_index == spec.name or spec.row_index not in specs:
            raise LoadError(f"output {spec.name}: row_index names {spec.row_index!r}, which is not another output")
        else:
            _check_numbers(specs[spec.row_index], spec)


def published(outputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return the outputs that clients see: a ragged one is one JSON value a row, and its index is none."""
    indices = index_names(outputs)
    shown = []
    for spec in outputs:
        if spec.rows is not None:
            shown.append(TensorSpec(spec.name, "BYTES", [-1], content_type="application/json"))
        elif spec.name not in indices:
            shown.append(spec)
    return tuple(shown)


def _check_numbers(source: TensorSpec, spec: TensorSpec) -> None:
    if spec.row_index is None and spec.row_column is None:
        return
    column, shape = spec.row_column, source.shape
    good = source.datatype not in ("BOOL", "BYTES") and source.batch_dim == 0
    if column is None:
        good = good and (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1))
    else:
        good = good and len(shape) == 2 and (shape[1] == -1 or column < shape[1])
    if not good:
        where = "one number an item" if column is None else f"a column {column} of numbers"
        raise LoadError(f"output {source.name} is {source.datatype} {list(shape)}; as row_index it needs {where}")


def index_names(outputs: Sequence[TensorSpec]) -> set[str]:
    """Return the outputs that hold the rows' numbers of ragged ones."""
    return {spec.row_index for spec in outputs if spec.row_index is not None}
