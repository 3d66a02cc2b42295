"""Rows as they are read: none is lost for another's fault, whatever block of the file they are in."""

import csv
import io
from codecs import BOM_UTF8
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from shoal_runtime.offline import csv_rows
from shoal_runtime.offline.errors import JobError, ShardError
from shoal_runtime.offline.finding import find_columns
from shoal_runtime.offline.fitting import fitted
from shoal_runtime.offline.folder import FolderPlace
from shoal_runtime.offline.shards import cut
from shoal_runtime.offline.tables import READ_ROWS, Source, filtered, from_lines
from shoal_runtime.offline.where import compiled
from shoal_runtime.offline.windows import TARGET_BYTES, Window
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
        patch.setattr(csv_rows, "BLOCK_BYTES", 512)
        (Path(folder) / "rows.csv").write_text(text.getvalue(), encoding="utf-8", newline="")
        place = FolderPlace(Path(folder))
        (shard,) = cut(place.files(""), RowFormat.CSV, 2**20)
        windows = list(Source(place, RowFormat.CSV, schema).windows(shard, batch))

    rows = [row for each in windows for row in each.table.to_pylist()]
    said = [each.faults.get(row) for each in windows for row in range(each.table.num_rows)]
    wanted = [{"a": line[0], "b": line[1]} if len(line) == 2 else {"a": None, "b": None} for line in lines]
    assert rows == wanted
    told = [None if len(line) == 2 else f"the line has {len(line)} fields, and not 2" for line in lines]
    assert [each and each.split(":")[0] for each in said] == told


@pytest.mark.parametrize(
    ("name", "form", "text", "said"),
    [
        (
            "rows.jsonl",
            RowFormat.JSON_LINES,
            b'[{"x": 1}]',
            "has no lines of JSON that are objects: jq -c '.\\[\\]' makes them",
        ),
        ("rows.csv", RowFormat.CSV, "a,b\n1,2\n".encode("utf-16"), "cannot be read: 'utf-8' codec can't decode"),
    ],
)
def test_a_file_of_another_form_is_refused_with_a_sentence(
    name: str, form: RowFormat, text: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(text)
    place = FolderPlace(tmp_path)
    (file,) = place.files("")

    with pytest.raises(JobError, match=f"{name} {said}"):
        find_columns(place, [file], form)


@pytest.mark.parametrize("shard_bytes", [4, 2**20])
def test_a_byte_order_mark_is_no_part_of_a_line(shard_bytes: int, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(BOM_UTF8 + b'{"x":1}\n{"x":2}\n')
    place = FolderPlace(tmp_path)
    source = Source(place, RowFormat.JSON_LINES, pa.schema([("x", pa.int64())]))
    shards = cut(place.files(""), RowFormat.JSON_LINES, shard_bytes)
    windows = [window for shard in shards for window in source.windows(shard, 8)]

    assert [row for each in windows for row in each.table.to_pylist()] == [{"x": 1}, {"x": 2}]
    assert not any(each.faults for each in windows)


def test_a_bad_line_at_the_begin_of_a_file_costs_it_nothing(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\nlonely\n1,2\n")
    place = FolderPlace(tmp_path)

    assert find_columns(place, place.files(""), RowFormat.CSV).schema == pa.schema(
        [("a", pa.string()), ("b", pa.string())]
    )


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


CELL_CASTS = [
    (pa.array([1, 5]), pa.bool_(), [True, None]),
    (pa.array([1.0, 1.5]), pa.int64(), [1, None]),
    (pa.array([{"a": 1, "b": 2}]), pa.struct([("a", pa.int64())]), [None]),
    (pa.array([2, 2**53 + 1]), pa.float64(), [2.0, None]),
    (pa.array(["1", "x"]), pa.int64(), [1, None]),
    (pa.array([0.1, float("nan")]), pa.float32(), [pytest.approx(0.1), pytest.approx(float("nan"), nan_ok=True)]),
    (pa.array([[0.5, None]], pa.large_list(pa.float64())), pa.list_(pa.float32()), [[0.5, None]]),
    (pa.array(["a", None]).dictionary_encode(), pa.string(), ["a", None]),
]


@pytest.mark.parametrize(("column", "kind", "found"), CELL_CASTS)
def test_a_cell_of_a_file_with_other_types_is_what_it_was_or_its_rows_fault(
    column: pa.Array, kind: pa.DataType, found: list[object]
) -> None:
    """Fractions alone are rounded."""
    window = fitted(pa.table({"x": column}), pa.schema([("x", kind)]))

    assert window.table["x"].to_pylist() == found
    given = column.to_pylist()
    lost = [row for row, cell in enumerate(found) if cell is None and given[row] is not None]
    assert window.faults == {row: f"x is {str(given[row])!r}, which is no {kind}" for row in lost}


def test_a_file_with_two_columns_of_one_name_is_no_input(tmp_path: Path) -> None:
    parquet.write_table(pa.table([[1], [2]], names=["x", "x"]), tmp_path / "rows.parquet")
    place = FolderPlace(tmp_path)
    (shard,) = cut(place.files(""), RowFormat.PARQUET, 2**20)

    with pytest.raises(ShardError, match="two columns called x"):
        list(Source(place, RowFormat.PARQUET, pa.schema([("x", pa.int64())])).windows(shard, 1))


@pytest.mark.parametrize(
    ("where", "kept", "faults"),
    [
        ("x == 1", [1, None], {1: "no JSON"}),
        ("x == 2", [None, 2], {0: "no JSON"}),
        ("x == null", [None, None], {0: "no JSON"}),
        ("x == null or x == 1", [1, None, None], {1: "no JSON"}),
        ("x != null", [1, 2], {}),
    ],
)
def test_a_row_that_cannot_be_read_comes_out_where_nobody_knows_whether_it_was_meant(
    where: str, kept: list[int | None], faults: dict[int, str]
) -> None:
    table = pa.table({"x": pa.array([1, None, 2, None], pa.int64())})
    meant = compiled(where, table.schema)
    assert meant is not None
    found = filtered(Window(table, {1: "the line is no JSON"}), meant)

    assert found.table["x"].to_pylist() == kept
    assert {row: said.removeprefix("the line is ") for row, said in found.faults.items()} == faults


CASTS = [
    (pa.int64(), 1, None),
    (pa.int64(), True, "True"),
    (pa.float64(), True, "True"),
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
    schema = find_columns(place, place.files(""), RowFormat.JSON_LINES).schema
    window = from_lines([f'{{"x": {cell}}}'.encode() for cell in cells], schema)

    assert window.table.to_pylist() == [{"x": "a"}, {"x": None}, {"x": "b"}, {"x": None}, {"x": None}]
    assert window.faults == {1: "x is '5', which is no string", 4: "x is '[1]', which is no string"}


def csv_windows(folder: Path, text: bytes) -> list[Window]:
    (folder / "rows.csv").write_bytes(text)
    place = FolderPlace(folder)
    files = place.files("")
    schema = find_columns(place, files, RowFormat.CSV).schema
    return [
        each
        for shard in cut(files, RowFormat.CSV, 64)
        for each in Source(place, RowFormat.CSV, schema).windows(shard, 8)
    ]


@pytest.mark.parametrize("before", [1, 60])
@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b'1,"x\n2,y\n3,z\n', 0),
        (b'1,"x\n2,y\n3,"z"\n', 0),
        (b'1,"x\ny"\n2,"a""b"\n3,"c\n', 3),
        (b'1,"' + b"x\n" * 2000, 0),
        (b'1,"' + b"x\n" * 400, 0),
    ],
)
def test_a_quote_that_never_closes_is_an_error_that_names_file_and_line(
    text: bytes, line: int, before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_rows, "BLOCK_BYTES", 512)

    with pytest.raises(ShardError, match=rf"rows\.csv cannot be read: .*line {before + 3 + line} "):
        csv_windows(tmp_path, b"a,b\n" + b"1,fifteen letters\n" * before + b"0,\n" + text)


@pytest.mark.parametrize("at", [0, 1, 100, 510, 600])
@pytest.mark.parametrize("size", [300, 512, 1000, 1024, 1100, 2000])
def test_a_cell_of_any_size_is_whole_or_an_error_that_says_so(
    size: int, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_rows, "BLOCK_BYTES", 512)
    for quote in ('"', ""):
        cell = "x" * size
        text = f"a,b\n{'y' * at},1\n{quote}{cell}{quote},2\nz,3\n".encode()
        try:
            windows = csv_windows(tmp_path, text)
        except ShardError as error:
            assert size > 512
            assert ("line 3 does not close" if quote else "a row is larger") in str(error)  # noqa: PT017 (either is good)
        else:
            assert [row["a"] for each in windows for row in each.table.to_pylist()] == [("y" * at) or None, cell, "z"]


def test_a_quote_that_never_closes_in_the_header_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"rows\.csv cannot be read: a quote in line 1 never closes"):
        csv_windows(tmp_path, b'a,"b\n1,2\n3,4\n')
    with pytest.raises(JobError, match=r"rows\.csv cannot be read: a quote in line 1 does not close"):
        csv_windows(tmp_path, b'a,"b\n' + b"1,2\n" * 2**22)


@given(
    st.lists(st.tuples(st.text(st.sampled_from('",\r\näx '), max_size=9), CELLS | st.just("NA")), max_size=40),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
)
def test_cells_of_csv_are_what_was_written_in_any_blocks(rows: list[tuple[str, str]], end: str, mark: bool) -> None:
    text = io.StringIO()
    csv.writer(
        text, quoting=csv.QUOTE_NOTNULL if hasattr(csv, "QUOTE_NOTNULL") else csv.QUOTE_ALL, lineterminator=end
    ).writerows([["a", "b"], *rows])
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_rows, "BLOCK_BYTES", 256)
        windows = csv_windows(Path(folder), BOM_UTF8 * mark + text.getvalue().encode())

    assert [row for each in windows for row in each.table.to_pylist()] == [{"a": a, "b": b} for a, b in rows]
    assert not any(each.faults for each in windows)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (b"a\n1\n\n2\n", ["1", None, "2"]),
        (b"\n\r\na\r\n1\r\n\r\n2", ["1", None, "2"]),
        (b'a\n""\n\n', ["", None]),
        (BOM_UTF8 + b'"a"\n1\n', ["1"]),
        (b"a,b\n1,2\n\n\r\n3,4\n\n", ["1", "3"]),
        (b"a,b\nNA,1\nnull,\n,2\n", ["NA", "null", None]),
        (b"a,b\n1,2,\n3\n4,5\n", [None, None, "4"]),
        (b"a,b,\n1,2,\n3,4,5\n", ["1", "3"]),
    ],
)
def test_an_empty_line_is_a_row_of_one_column_alone_and_only_an_empty_cell_is_null(
    text: bytes, rows: list[str | None], tmp_path: Path
) -> None:
    windows = csv_windows(tmp_path, text)

    assert [cell for each in windows for cell in each.table["a"].to_pylist()] == rows
    faults = [each.faults.get(row) for each in windows for row in range(each.table.num_rows)]
    assert [fault is not None for fault in faults] == [b"1,2,\n3\n" in text and row is None for row in rows]
