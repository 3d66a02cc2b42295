"""Rows as they are read: none is lost for another's fault, whatever block of the file they are in."""

import csv
import io
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime.offline import tables
from shoal_runtime.offline.folder import FolderPlace
from shoal_runtime.offline.shards import cut
from shoal_runtime.offline.tables import Source, find_schema
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
