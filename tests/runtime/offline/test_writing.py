"""Lines of JSON: the form of a cell of any type, and cells without a form."""

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from shoal_runtime.offline.directories import LocalDirectory
from shoal_runtime.offline.errors import JobError
from shoal_runtime.offline.results import ERROR
from shoal_runtime.offline.writing import OutputWriter
from shoal_schema.resource.offline import ResultFormat


def written(column: pa.Array, folder: Path) -> list[Any]:
    table = pa.table({"x": column, ERROR: pa.nulls(len(column), pa.string())})
    destination = OutputWriter(LocalDirectory(folder), None, ResultFormat.JSON_LINES, table.schema)
    with destination.part("part-00000") as part:
        part.write(table)
    lines = (folder / "part-00000.jsonl").read_bytes().splitlines()
    return [orjson.loads(line)["x"] for line in lines]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([0, None], pa.timestamp("us")), ["1970-01-01T00:00:00", None]),
        (pa.array([1, None], pa.timestamp("ns")), ["1970-01-01T00:00:00.000000001", None]),
        (pa.array([1], pa.timestamp("ns", "UTC")), ["1970-01-01T00:00:00.000000001Z"]),
        (pa.array([1], pa.duration("ns")), [1]),
        (pa.array([1], pa.time64("ns")), [1]),
        (pa.array([b"a"]), ["YQ=="]),
        (pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), [[["a", 1]]]),
        (pa.array([float("nan")]), [None]),
    ],
)
def test_a_cell_is_written_as_json(column: pa.Array, expected: list[Any], tmp_path: Path) -> None:
    assert written(column, tmp_path) == expected


@pytest.mark.parametrize(
    "column",
    [pa.array([2**62], pa.timestamp("s")), pa.array([b"\xff"]).view(pa.string())],
    ids=["time beyond all calendars", "invalid UTF-8"],
)
def test_a_cell_without_a_json_form_ends_the_job_without_a_file(column: pa.Array, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="cannot be written as JSON"):
        written(column, tmp_path)
    assert not list(tmp_path.glob("*.jsonl"))
