"""Ragged outputs: checks of their declarations, and the form in which they are published."""

from collections.abc import Sequence
from typing import Final

from shoal_runtime.errors import LoadError
from shoal_runtime.signature.spec import TensorSpec
from shoal_schema.guides import guide

RAGGED_REMEDY: Final = (
    'return the row number of each item from the model, and declare the output with rows = "ragged" in model.toml'
    f"{guide('how-to/detectors', ' (', ')')}"
)
UNEVEN_REMEDY: Final = (
    f"{RAGGED_REMEDY}; without row numbers, serve one row at a time with SHOAL_BATCHING_MAX_BATCH_SIZE=1"
    " (batching.maxBatchSize)"
)


def check_ragged(outputs: Sequence[TensorSpec], *, max_batch_size: int) -> None:
    """Check that each ragged output declares the row numbers of its items.

    Raises:
        LoadError: no row numbers are declared, or the named output or column cannot hold them.
    """
    specs = {spec.name: spec for spec in outputs}
    for spec in outputs:
        if spec.rows is None:
            continue
        if spec.row_index is None:
            # With one row per batch every item belongs to it.
            if spec.row_column is None and max_batch_size > 1:
                raise LoadError(
                    f"output {spec.name} is ragged and declares no row numbers. Set row_index to the output that holds"
                    " them, or row_column to a column of it, or serve one row at a time with"
                    " SHOAL_BATCHING_MAX_BATCH_SIZE=1 (batching.maxBatchSize)"
                )
            _check_numbers(spec, spec)
        elif spec.row_index == spec.name or spec.row_index not in specs:
            raise LoadError(f"output {spec.name}: row_index names {spec.row_index!r}, which is not another output")
        else:
            _check_numbers(specs[spec.row_index], spec)


def published(outputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return a model's outputs as clients receive them.

    A ragged output becomes one JSON value per row. Outputs that hold row numbers are omitted.
    """
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
    # Floating-point row numbers are accepted, since detectors concatenate them with boxes.
    good = source.datatype not in ("BOOL", "BYTES") and source.batch_dim == 0
    if column is None:
        good = good and (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1))
    else:
        good = good and len(shape) == 2 and (shape[1] == -1 or column < shape[1])
    if not good:
        needs = "row_index requires one number per item" if column is None else f"row_column {column} requires numbers"
        raise LoadError(f"output {source.name} is {source.datatype} {list(shape)}; {needs}")


def index_names(outputs: Sequence[TensorSpec]) -> set[str]:
    """Return the names of outputs that hold row numbers of ragged outputs."""
    return {spec.row_index for spec in outputs if spec.row_index is not None}
