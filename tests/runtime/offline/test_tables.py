"""Rows as they are read: none is lost for another's fault, whatever block of the file they are in."""

import csv
import io
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from shoal_runtime.offline import tables
from shoal_runtime.offline.folder import FolderPlace
from shoal_runtime.offline.shards import cut
from shoal_runtime.offline.tables import READ_ROWS, Source, find_schema, from_lines
from shoal_runtime.offline.windows import TARGET_BYTES
from shoal_schema.resource.offline import RowFormat

CELLS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)
LINES = st.lists(st.lists(CELLS | st.just("two\nlines"), min_size=1, max_size=4), max_size=60)


@given(LINES, st.integers(1, 9))
def test_each_line_of_csv_is_a_row_also_one_of_too_few_or_too_many_fields(lines: list[list[str]], batch: int) -> None:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([["a", "b"], *lines])
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        # Blocks of a few lines, so that bad ones are at the begin and the end of some.
        patch.setattr(tables, "BLOCK_BYTES", 512)
        (Path(folder) / "rows.csv").write_text(text.getvalue(), encoding="utf-8", newline="")
        place = FolderPlace(Path(folder))
        (shard,) = cut(place.files(""), RowFormat.CSV, 2**20)
        windows = list(Source(place, RowFormat.CSV, schema).windows(shard, batch))

    rows = [row for each in windows for row in each.table.to_pylist()]
    said = [each.faults.get(row) for each in windows for row in range(each.table.num_rows)]
    wanted = [{"a": line[0], "b": line[1]} if len(line) == 2 else {"a": None, "b": None} for line in lines]
    assert rows == wanted
    told = [None if len(line) == 2 else f"the line has {len(line)} fields, and not 2" for line in lines]
    assert said == told


def test_a_bad_line_at_the_begin_of_a_file_costs_it_nothing(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\nlonely\n1,2\n")
    place = FolderPlace(tmp_path)

    assert find_schema(place, place.files("")[0], RowFormat.CSV) == pa.schema([("a", pa.int64()), ("b", pa.int64())])


def test_cells_that_are_packed_small_make_small_windows(tmp_path: Path) -> None:
    count, cell = 1500, "x" * 200_000
    parquet.write_table(pa.table({"x": [cell] * count}), tmp_path / "rows.parquet")
    place = FolderPlace(tmp_path)
    (file,) = place.files("")
    (shard,) = cut([file], RowFormat.PARQUET, 2**20)
    sizes = [
        (each.table.num_rows, each.table.nbytes)
        for each in Source(place, RowFormat.PARQUET, pa.schema([("x", pa.string())])).windows(shard, 8)
    ]

    assert file.size_bytes < len(cell) * 10
    assert sum(rows for rows, _ in sizes) == count
    assert max(size_bytes for _, size_bytes in sizes) <= TARGET_BYTES + READ_ROWS * len(cell)


CASTS = [
    (pa.int64(), 1, None),
    (pa.int64(), 1.0, None),
    (pa.int64(), 1.5, "1.5"),
    (pa.int64(), 2**70, str(2**70)),
    (pa.float64(), 2**53 + 1, str(2**53 + 1)),
    (pa.float64(), 3, None),
    (pa.string(), 5, "5"),
    (pa.int64(), "5", "5"),
    (pa.list_(pa.int64()), [1, 2.5], "[1, 2.5]"),
    (pa.list_(pa.float64()), [1, 2.5], None),
    (pa.struct([("a", pa.int64()), ("b", pa.int64())]), {"a": 1}, None),
    (pa.struct([("a", pa.int64())]), {"a": 1.5}, "{'a': 1.5}"),
    (pa.struct([("a", pa.int64())]), [1], "[1]"),
    (pa.list_(pa.int64()), {"a": 1}, "{'a': 1}"),
]


@pytest.mark.parametrize(("kind", "cell", "said"), CASTS)
def test_a_cell_of_json_is_what_it_was_or_its_rows_fault(kind: pa.DataType, cell: object, said: str | None) -> None:
    """Types are those of the first lines, and what comes later may be otherwise."""
    lines = [orjson.dumps({"x": cell}) if cell != 2**70 else b'{"x": %d}' % 2**70, b'{"x": null}']
    window = from_lines(lines, pa.schema([("x", kind)]))

    assert window.faults == ({} if said is None else {0: f"x is {said!r}, which is no {kind}"})
    found = window.table["x"].to_pylist()
    assert found[1] is None
    assert found[0] == (None if said else {"a": 1, "b": None} if isinstance(cell, dict) else cell)


def test_a_column_has_the_type_of_most_of_its_first_cells(tmp_path: Path) -> None:
    cells = ['"a"', "5", '"b"', "null", "[1]"]
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"x": {cell}}}\n' for cell in cells))
    place = FolderPlace(tmp_path)
    schema = find_schema(place, place.files("")[0], RowFormat.JSON_LINES)
    window = from_lines([f'{{"x": {cell}}}'.encode() for cell in cells], schema)

    assert window.table.to_pylist() == [{"x": "a"}, {"x": None}, {"x": "b"}, {"x": None}, {"x": None}]
    assert window.faults == {1: "x is '5', which is no string", 4: "x is '[1]', which is no string"}
