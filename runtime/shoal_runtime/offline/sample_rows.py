"""The first rows of a file as batches of a model's inputs."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from shoal_runtime.offline.column_discovery import find_columns
from shoal_runtime.offline.directories import open_input
from shoal_runtime.offline.errors import InvalidSettings
from shoal_runtime.offline.inputs import InputRows, batch_of_rows, make_rows
from shoal_runtime.offline.mapping import check_kinds, mapped_columns, required_columns
from shoal_runtime.offline.shards import cut, format_of
from shoal_runtime.offline.tables import TableSource
from shoal_runtime.signature.spec import TensorSpec
from shoal_schema.resource.offline import RowFormat
from shoal_schema.wire.datatypes import Array

SHARD_BYTES: Final = 2**26


def sample_rows(
    uri: str, specs: Sequence[TensorSpec], batch_size: int, max_batches: int
) -> tuple[list[dict[str, Array]], int]:
    """Return full batches of the first rows of an input, which `shoal batch` could read, and the number of these rows.

    The last batch is filled up with the first rows.

    Raises:
        JobError: the input cannot be read, or has no row that the model accepts.
    """
    place, files = open_input(uri, ())
    kind = format_of(files, RowFormat.AUTO)
    found = find_columns(place, files, kind)
    columns = mapped_columns(specs, {}, found.schema)
    check_kinds(specs, columns, found.schema)
    needed = dict.fromkeys(name for names in columns.values() for name in names)
    source = TableSource(
        place,
        kind,
        pa.schema([found.schema.field(name) for name in needed]),
        required=required_columns(specs, columns, found.schema),
    )
    for shard in cut(files, kind, SHARD_BYTES):
        for window in source.windows(shard, batch_size * max_batches):
            rows = make_rows(window, specs, columns)
            if len(rows.good):
                return _batches(rows, specs, batch_size, max_batches)
            raise InvalidSettings(
                f"no row of {uri} fits the model; the first error is: {next(iter(rows.errors.values()))}"
            )
    raise InvalidSettings(f"{uri} has no rows")


def _batches(
    rows: InputRows, specs: Sequence[TensorSpec], batch_size: int, max_batches: int
) -> tuple[list[dict[str, Array]], int]:
    # A batch holds rows of one key, that is of one shape but for padded axes.
    key = rows.keys[rows.good[0]]
    alike = np.array([row for row in rows.good.tolist() if rows.keys[row] == key], np.int64)[: batch_size * max_batches]
    count = -(-len(alike) // batch_size)
    chosen = np.resize(alike, count * batch_size)
    return [batch_of_rows(rows, part, specs) for part in np.split(chosen, count)], len(alike)
