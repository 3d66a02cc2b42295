"""Rows as they are read: the error of a row affects no other, in whatever block of the file."""

import csv
import gzip
import io
from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import obstore
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore
from pyarrow import parquet

from shoal_runtime.offline import csv_rows
from shoal_runtime.offline.bucket import BucketDirectory
from shoal_runtime.offline.column_discovery import find_columns
from shoal_runtime.offline.directories import Directory, LocalDirectory, decompressed
from shoal_runtime.offline.errors import DirectoryUnavailable, JobError, ShardError
from shoal_runtime.offline.json_lines import from_lines
from shoal_runtime.offline.row_filter import compiled
from shoal_runtime.offline.shards import cut
from shoal_runtime.offline.tables import READ_ROWS, TableSource, filtered
from shoal_runtime.offline.windows import TARGET_BYTES, Window, cast_table
from shoal_schema.resource.offline import RowFormat

CELLS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)
LINES = st.lists(st.lists(CELLS | st.just("two\nlines"), min_size=1, max_size=4), max_size=60)


@given(LINES, st.integers(1, 9))
def test_each_csv_line_is_a_row_whatever_its_number_of_fields(lines: list[list[str]], batch: int) -> None:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([["a", "b"], *lines])
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        # Blocks of a few lines, so that bad ones are at the begin and the end of some.
        patch.setattr(csv_rows, "BLOCK_BYTES", 512)
        (Path(folder) / "rows.csv").write_text(text.getvalue(), encoding="utf-8", newline="")
        place = LocalDirectory(Path(folder))
        (shard,) = cut(place.files(""), RowFormat.CSV, 2**20)
        windows = list(TableSource(place, RowFormat.CSV, schema).windows(shard, batch))

    rows = [row for each in windows for row in each.table.to_pylist()]
    messages = [each.faults.get(row) for each in windows for row in range(each.table.num_rows)]
    wanted = [{"a": line[0], "b": line[1]} if len(line) == 2 else {"a": None, "b": None} for line in lines]
    assert rows == wanted
    fields = [None if len(line) == 2 else f"the line has {len(line)} fields, expected 2" for line in lines]
    assert [each and each.split(":")[0] for each in messages] == fields


@pytest.mark.parametrize(
    ("name", "form", "text", "message"),
    [
        (
            "rows.jsonl",
            RowFormat.JSON_LINES,
            b'[{"x": 1}]',
            "has no lines that are JSON objects",
        ),
        ("rows.csv", RowFormat.CSV, "a,b\n1,2\n".encode("utf-16"), "cannot be read: 'utf-8' codec can't decode"),
    ],
)
def test_a_file_of_another_format_is_rejected(
    name: str, form: RowFormat, text: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(text)
    place = LocalDirectory(tmp_path)
    (file,) = place.files("")

    with pytest.raises(JobError, match=f"{name} {message}"):
        find_columns(place, [file], form)


@pytest.mark.parametrize("shard_bytes", [4, 2**20])
def test_a_byte_order_mark_is_not_part_of_a_line(shard_bytes: int, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(BOM_UTF8 + b'{"x":1}\n{"x":2}\n')
    place = LocalDirectory(tmp_path)
    source = TableSource(place, RowFormat.JSON_LINES, pa.schema([("x", pa.int64())]))
    shards = cut(place.files(""), RowFormat.JSON_LINES, shard_bytes)
    windows = [window for shard in shards for window in source.windows(shard, 8)]

    assert [row for each in windows for row in each.table.to_pylist()] == [{"x": 1}, {"x": 2}]
    assert not any(each.faults for each in windows)


def test_a_malformed_first_line_does_not_change_the_header(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\nlonely\n1,2\n")
    place = LocalDirectory(tmp_path)

    assert find_columns(place, place.files(""), RowFormat.CSV).schema == pa.schema(
        [("a", pa.string()), ("b", pa.string())]
    )


def test_highly_compressed_cells_make_small_windows(tmp_path: Path) -> None:
    count, cell = 1500, "x" * 200_000
    parquet.write_table(pa.table({"x": [cell] * count}), tmp_path / "rows.parquet")
    place = LocalDirectory(tmp_path)
    (file,) = place.files("")
    (shard,) = cut([file], RowFormat.PARQUET, 2**20)
    sizes = [
        (each.table.num_rows, each.table.nbytes)
        for each in TableSource(place, RowFormat.PARQUET, pa.schema([("x", pa.string())])).windows(shard, 8)
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
def test_a_cast_cell_keeps_its_value_or_is_an_error(column: pa.Array, kind: pa.DataType, found: list[object]) -> None:
    """Fractions alone are rounded."""
    window = cast_table(pa.table({"x": column}), pa.schema([("x", kind)]))

    assert window.table["x"].to_pylist() == found
    given = column.to_pylist()
    lost = [row for row, cell in enumerate(found) if cell is None and given[row] is not None]
    assert window.faults == {row: f"x is {str(given[row])!r}, expected {kind}" for row in lost}


def test_a_file_with_two_columns_of_one_name_is_rejected(tmp_path: Path) -> None:
    parquet.write_table(pa.table([[1], [2]], names=["x", "x"]), tmp_path / "rows.parquet")
    place = LocalDirectory(tmp_path)
    (shard,) = cut(place.files(""), RowFormat.PARQUET, 2**20)

    with pytest.raises(ShardError, match="two columns called x"):
        list(TableSource(place, RowFormat.PARQUET, pa.schema([("x", pa.int64())])).windows(shard, 1))


@pytest.mark.parametrize(
    ("where", "kept", "faults"),
    [
        ("x == 1", [1, None], {1: "not JSON"}),
        ("x == 2", [None, 2], {0: "not JSON"}),
        ("x == null", [None, None], {0: "not JSON"}),
        ("x == null or x == 1", [1, None, None], {1: "not JSON"}),
        ("x != null", [1, 2], {}),
    ],
)
def test_an_unreadable_row_is_selected_if_the_filter_depends_on_it(
    where: str, kept: list[int | None], faults: dict[int, str]
) -> None:
    table = pa.table({"x": pa.array([1, None, 2, None], pa.int64())})
    meant = compiled(where, table.schema)
    assert meant is not None
    found = filtered(Window(table, {1: "the line is not JSON"}), meant)

    assert found.table["x"].to_pylist() == kept
    assert {row: message.removeprefix("the line is ") for row, message in found.faults.items()} == faults


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


@pytest.mark.parametrize(("kind", "cell", "message"), CASTS)
def test_a_json_cell_keeps_its_value_or_is_an_error(kind: pa.DataType, cell: object, message: str | None) -> None:
    """Types are those of the first lines, and what comes later may be otherwise."""
    lines = [orjson.dumps({"x": cell}) if cell != 2**70 else b'{"x": %d}' % 2**70, b'{"x": null}']
    window = from_lines(lines, pa.schema([("x", kind)]))

    assert window.faults == ({} if message is None else {0: f"x is {message!r}, expected {kind}"})
    found = window.table["x"].to_pylist()
    assert found[1] is None
    assert found[0] == (None if message else {"a": 1, "b": None} if isinstance(cell, dict) else cell)


def test_a_json_column_has_its_most_frequent_type(tmp_path: Path) -> None:
    cells = ['"a"', "5", '"b"', "null", "[1]"]
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"x": {cell}}}\n' for cell in cells))
    place = LocalDirectory(tmp_path)
    schema = find_columns(place, place.files(""), RowFormat.JSON_LINES).schema
    window = from_lines([f'{{"x": {cell}}}'.encode() for cell in cells], schema)

    assert window.table.to_pylist() == [{"x": "a"}, {"x": None}, {"x": "b"}, {"x": None}, {"x": None}]
    assert window.faults == {1: "x is '5', expected string", 4: "x is '[1]', expected string"}


def csv_windows(folder: Path, text: bytes) -> list[Window]:
    (folder / "rows.csv").write_bytes(text)
    place = LocalDirectory(folder)
    files = place.files("")
    schema = find_columns(place, files, RowFormat.CSV).schema
    return [
        each
        for shard in cut(files, RowFormat.CSV, 64)
        for each in TableSource(place, RowFormat.CSV, schema).windows(shard, 8)
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
def test_an_unclosed_quote_is_an_error_with_file_and_line(
    text: bytes, line: int, before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_rows, "BLOCK_BYTES", 512)

    with pytest.raises(ShardError, match=rf"rows\.csv cannot be read: .*line {before + 3 + line} "):
        csv_windows(tmp_path, b"a,b\n" + b"1,fifteen letters\n" * before + b"0,\n" + text)


@pytest.mark.parametrize("at", [0, 1, 100, 510, 600])
@pytest.mark.parametrize("size", [300, 512, 1000, 1024, 1100, 2000])
def test_a_cell_of_any_size_is_whole_or_an_error(
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


def test_an_unclosed_quote_in_the_header_is_an_error_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"rows\.csv cannot be read: .* header .* quote"):
        csv_windows(tmp_path, b'a,"b\n1,2\n3,4\n')
    with pytest.raises(JobError, match=r"rows\.csv cannot be read: .* header .* quote"):
        csv_windows(tmp_path, b'a,"b\n' + b"1,2\n" * 2**22)


@given(
    st.lists(st.tuples(st.text(st.sampled_from('",\r\näx '), max_size=9), CELLS | st.just("NA")), max_size=40),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
)
def test_csv_cells_are_read_as_written_in_blocks_of_any_size(rows: list[tuple[str, str]], end: str, mark: bool) -> None:
    text = io.StringIO()
    csv.writer(
        text, quoting=csv.QUOTE_NOTNULL if hasattr(csv, "QUOTE_NOTNULL") else csv.QUOTE_ALL, lineterminator=end
    ).writerows([["a", "b"], *rows])
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_rows, "BLOCK_BYTES", 256)
        windows = csv_windows(Path(folder), BOM_UTF8 * mark + text.getvalue().encode())

    assert [row for each in windows for row in each.table.to_pylist()] == [{"a": a, "b": b} for a, b in rows]
    assert not any(each.faults for each in windows)


@pytest.mark.parametrize("size_bytes", range(240, 270))
def test_a_line_end_in_a_quoted_cell_may_lie_between_two_blocks(
    size_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_rows, "BLOCK_BYTES", 256)
    cell = "x" * size_bytes + "\r\n\r\r\n"

    windows = csv_windows(tmp_path, f'a,b\n"{cell[200:]}",1\n"{cell}",2\n'.encode())

    assert [row["a"] for each in windows for row in each.table.to_pylist()] == [cell[200:], cell]


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
def test_an_empty_line_is_a_row_in_files_of_one_column_only(
    text: bytes, rows: list[str | None], tmp_path: Path
) -> None:
    windows = csv_windows(tmp_path, text)

    assert [cell for each in windows for cell in each.table["a"].to_pylist()] == rows
    faults = [each.faults.get(row) for each in windows for row in range(each.table.num_rows)]
    assert [fault is not None for fault in faults] == [b"1,2,\n3\n" in text and row is None for row in rows]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (b"a,b\n1,\xff\n", ["a", "b"]),
        (b'\r\n\n"a\n,b",c\r1,2\r', ["a\n,b", "c"]),
        (BOM_UTF8 + 'größe,"x ""y"""'.encode(), ["größe", 'x "y"']),
        (b'5" pipe,\n', ['5" pipe', ""]),
        (b"a\n" + b"x" * 2**18, ["a"]),
    ],
)
def test_a_header_is_read_whatever_the_rows_after_it(text: bytes, names: list[str]) -> None:
    assert csv_rows.csv_names(io.BytesIO(text)) == names


@pytest.mark.parametrize("text", [b"", b"\r\n\n", b'a,"b', b'a,"b" c\n', b"a,\xff\n", b'"' + b"x" * 2**18])
def test_a_file_without_a_header_is_rejected(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"header|utf-8"):
        csv_rows.csv_names(io.BytesIO(text))


def test_csv_in_a_bucket_is_read_from_the_header_on() -> None:
    store = MemoryStore()
    obstore.put(store, "in/rows.csv", b"x,y\n" + b"1,a\n" * 50_000)
    place = BucketDirectory(store, "in", "s3://bucket/in")
    (shard,) = cut(place.files(""), RowFormat.CSV, 64)
    schema = find_columns(place, shard.files, RowFormat.CSV).schema
    windows = list(TableSource(place, RowFormat.CSV, schema).windows(shard, 8))

    assert schema.names == ["x", "y"]
    assert sum(each.table.num_rows for each in windows) == 50_000


def test_text_of_another_encoding_is_ignored_in_columns_that_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"a,b\n1,\xff\n")
    place = LocalDirectory(tmp_path)
    (shard,) = cut(place.files(""), RowFormat.CSV, 64)
    (window,) = TableSource(place, RowFormat.CSV, pa.schema([("a", pa.string())])).windows(shard, 8)

    assert window.table.to_pylist() == [{"a": "1"}]
    with pytest.raises(ShardError, match="UTF8"):
        list(TableSource(place, RowFormat.CSV, pa.schema([("b", pa.string())])).windows(shard, 8))


PACKED = {
    RowFormat.CSV: ("rows.csv.gz", b"x\n", b"%d\n"),
    RowFormat.JSON_LINES: ("rows.jsonl.gz", b"", b'{"x":"%d"}\n'),
}


def packed(form: RowFormat, numbers: range) -> bytes:
    _, header, line = PACKED[form]
    text = header + b"".join(line % number for number in numbers)
    # Two members: gzip files may be joined.
    return gzip.compress(text[: len(text) // 2]) + gzip.compress(text[len(text) // 2 :])


def packed_windows(place: Directory, form: RowFormat) -> list[Window]:
    files = place.files("")
    schema = find_columns(place, files, form).schema
    # A compressed file is one shard, whatever its size.
    (shard,) = cut(files, form, 64)
    return list(TableSource(place, form, schema).windows(shard, 8))


@pytest.mark.parametrize("form", PACKED)
def test_compressed_rows_are_all_read_with_their_share_of_the_file(form: RowFormat, tmp_path: Path) -> None:
    content = packed(form, range(20_000))
    (tmp_path / PACKED[form][0]).write_bytes(content)
    store = MemoryStore()
    obstore.put(store, f"in/{PACKED[form][0]}", content)
    for place in (LocalDirectory(tmp_path), BucketDirectory(store, "in", "s3://bucket/in")):
        windows = packed_windows(place, form)

        assert [cell for each in windows for cell in each.table["x"].to_pylist()] == [*map(str, range(20_000))]
        assert sum(each.share_bytes for each in windows) == len(content)


@pytest.mark.parametrize("form", PACKED)
@pytest.mark.parametrize("damage", [lambda text: text[:-9], lambda text: text[:200] + bytes(50) + text[250:]])
def test_a_damaged_compressed_file_is_an_error_of_its_shard(
    form: RowFormat, damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    (tmp_path / PACKED[form][0]).write_bytes(damage(packed(form, range(20_000))))
    place = LocalDirectory(tmp_path)
    (shard,) = cut(place.files(""), form, 64)

    with pytest.raises(ShardError, match=rf"{PACKED[form][0]} cannot be read"):
        list(TableSource(place, form, pa.schema([("x", pa.string())])).windows(shard, 8))


class Interrupted(io.BytesIO):
    """A file whose store stops responding after the first read."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell():
            raise DirectoryUnavailable("the store does not answer")
        return super().read(size)


def test_an_unavailable_store_is_reported_through_the_decompression() -> None:
    with pytest.raises(DirectoryUnavailable):
        list(decompressed(Interrupted(packed(RowFormat.CSV, range(200_000))), "rows.csv.gz"))


def test_exact_values_survive_projection_and_row_groups(tmp_path: Path) -> None:
    table = pa.table(
        {
            "unread": [0] * 7,
            "whole": [2**53 + 1, -(2**63), 2**63 - 1, None, 0, 1, 2],
            "fraction": pa.array([float("nan"), float("-inf"), -0.0, None, 5e-324, 0.1, 1e300]),
            "text": ["01234", "", None, "NA", "two\nlines", "1e3", "ä"],
            "day": pa.array([0, -1, 2**62, None, 1, 2, 3], pa.timestamp("ns")),
        }
    )
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=2)
    place = LocalDirectory(tmp_path)
    (file,) = place.files("")
    wanted = table.select(["day", "text", "whole", "fraction"])
    for shard_bytes in (file.size_bytes // 4, 2**20):
        shards = cut([file], RowFormat.PARQUET, shard_bytes)
        source = TableSource(place, RowFormat.PARQUET, wanted.schema)
        found = pa.concat_tables(each.table for shard in shards for each in source.windows(shard, 3))

        assert repr(found.to_pylist()) == repr(wanted.to_pylist())
