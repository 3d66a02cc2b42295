"""A whole job in the test's process, with a model that returns its input."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from shoal_runtime.offline.column_discovery import find_columns
from shoal_runtime.offline.directories import LocalDirectory
from shoal_runtime.offline.inputs import batch_of_rows, lengths, make_rows
from shoal_runtime.offline.job import check_found
from shoal_runtime.offline.mapping import check_kinds, mapped_columns, required_columns
from shoal_runtime.offline.partitions import partitions_above
from shoal_runtime.offline.reading import all_columns
from shoal_runtime.offline.results import WindowResults, kept_columns, result_schema
from shoal_runtime.offline.row_filter import columns_of, compiled
from shoal_runtime.offline.shards import cut
from shoal_runtime.offline.tables import TableSource
from shoal_runtime.offline.writing import OutputWriter
from shoal_runtime.signature.spec import TensorSpec
from shoal_schema.resource.offline import ResultFormat, RowFormat


def scored(
    folder: Path, form: RowFormat, spec: TensorSpec, *, where: str | None = None, shard_bytes: int = 64
) -> list[Mapping[str, Any]]:
    """Return the rows that a job writes for the files of a directory: the input column, ``y`` and the error."""
    place = LocalDirectory(folder)
    files = place.files("")
    found = find_columns(place, files, form)
    known = found.schema
    columns = mapped_columns([spec], {}, known)
    check_kinds([spec], columns, known)
    output = TensorSpec(
        "y", spec.datatype, list(spec.shape), content_type="text/plain" if spec.datatype == "BYTES" else None
    )
    kept = kept_columns(known, None, columns, [output])
    needed = all_columns(columns, kept.values(), columns_of(where, known))
    check_found(found, needed, required_columns([spec], columns, known))
    source = TableSource(
        place,
        form,
        pa.schema([known.field(name) for name in needed]),
        compiled(where, known),
        required=required_columns([spec], columns, known),
        prefix=partitions_above(place.shown, [each.path for each in files]),
    )
    schema = result_schema(known, kept, [output])
    target = LocalDirectory(folder / "_out")
    destination = OutputWriter(target, None, ResultFormat.PARQUET, schema)
    for shard in cut(files, form, shard_bytes):
        with destination.part(shard.name) as part:
            for window in source.windows(shard, 2):
                part.write(_scored(window, spec, output, columns, list(kept.values()), schema))
    parts = sorted((folder / "_out").glob("*.parquet"))
    rows: list[Mapping[str, Any]] = pa.concat_tables(parquet.read_table(part) for part in parts).to_pylist()
    return rows


def _scored(
    window: Any,
    spec: TensorSpec,
    output: TensorSpec,
    columns: Mapping[str, Sequence[str]],
    kept: list[str],
    schema: Any,
) -> pa.Table:
    rows = make_rows(window, [spec], columns)
    results = WindowResults(window.table.num_rows, [output], rows.errors, lengths(rows))
    for row in rows.good:
        chosen = np.array([row])
        results.add(chosen, {"y": np.asarray(batch_of_rows(rows, chosen, [spec])[spec.name])}, {})
    return results.table(window.table.select(kept), schema)
