"""The columns of all files: common types, partitions, and inputs that are rejected before the first row."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np
import obstore
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore
from pyarrow import dataset, parquet

from shoal_runtime.offline import column_discovery
from shoal_runtime.offline.bucket import BucketDirectory
from shoal_runtime.offline.column_discovery import find_columns
from shoal_runtime.offline.directories import LocalDirectory
from shoal_runtime.offline.errors import DirectoryUnavailable, InvalidSettings, JobError, ShardError
from shoal_runtime.offline.inputs import make_rows
from shoal_runtime.offline.json_lines import chosen, kinds_of
from shoal_runtime.offline.partitions import partition_types, partition_values, partitions_above
from shoal_runtime.offline.schemas import InputSchema, promoted, unified
from shoal_runtime.offline.shards import InputFile, cut, is_hidden
from shoal_runtime.offline.tables import TableSource
from shoal_runtime.offline.windows import Window
from shoal_runtime.signature.spec import TensorSpec
from shoal_schema.resource.offline import RowFormat

PLACES = {RowFormat.PARQUET: "parquet", RowFormat.CSV: "csv", RowFormat.JSON_LINES: "jsonl"}


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (pa.null(), pa.string(), pa.string()),
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.int64(), pa.float32(), pa.float64()),
        (pa.int8(), pa.float32(), pa.float32()),
        (pa.list_(pa.null()), pa.list_(pa.float32()), pa.list_(pa.float32())),
        (pa.null(), pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64())])),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.string()),
        (pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.string(), pa.string_view(), pa.large_string()),
        (pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("ns")),
        (pa.decimal128(5, 2), pa.decimal128(10, 3), pa.decimal128(10, 3)),
        (pa.int64(), pa.string(), None),
        (pa.bool_(), pa.int64(), None),
        (pa.string(), pa.binary(), None),
        (pa.timestamp("us", "UTC"), pa.timestamp("us"), None),
        (pa.list_(pa.int64()), pa.int64(), None),
        (pa.list_(pa.int64()), pa.list_(pa.float32()), pa.list_(pa.float64())),
        (pa.list_(pa.int64(), 2), pa.list_(pa.null(), 2), pa.list_(pa.int64(), 2)),
        (pa.list_(pa.int64(), 2), pa.large_list(pa.int64()), pa.large_list(pa.int64())),
        (pa.list_(pa.string()), pa.list_(pa.int64()), None),
    ],
)
def test_two_types_have_a_common_type_or_none(one: pa.DataType, other: pa.DataType, both: Any) -> None:
    assert [promoted(one, other), promoted(other, one)] == [both, both]


def test_a_conflict_names_the_column_and_both_files() -> None:
    found = unified([(f"{name}.parquet", pa.schema([("n", kind)])) for name, kind in CONFLICT])

    assert all(word in found.conflicts["n"] for word in ("n ", "a.parquet", "c.parquet", "int64", "string"))
    assert found.missing == {}


CONFLICT = [("a", pa.int64()), ("b", pa.int64()), ("c", pa.string())]


def test_the_first_file_without_a_column_is_recorded() -> None:
    found = unified([("a", pa.schema([("x", pa.int8())])), ("b", pa.schema([("y", pa.int8())]))])

    assert found == InputSchema(pa.schema([("x", pa.int8()), ("y", pa.int8())]), {}, {"x": "b", "y": "a"})


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        ([1] * 3 + [2.5], pa.float64()),
        ([None, [], [1], [2.5]], pa.list_(pa.float64())),
        (["a", 1, "b"], pa.string()),
        ([{"a": 1}, {"b": "x"}], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([True, 1, True], pa.bool_()),
        ([2**70, 1], pa.int64()),
        ([None, None], pa.string()),
    ],
)
def test_a_key_of_json_has_the_type_of_most_values_widened(cells: Sequence[Any], kind: pa.DataType) -> None:
    assert chosen(kinds_of([{"x": cell} for cell in cells])).schema == pa.schema([("x", kind)])


@pytest.mark.parametrize(("cell", "word"), [({}, "without keys"), ([{}], "without keys"), (2**70, "without a type")])
def test_a_json_key_without_a_type_is_a_conflict(cell: Any, word: str) -> None:
    found = chosen(kinds_of([{"x": cell}, {"x": None}]))

    assert word in found.conflicts["x"]


def write(path: Path, form: RowFormat, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if form is RowFormat.PARQUET:
        parquet.write_table(table, path)
    elif form is RowFormat.CSV:
        names = ",".join(table.column_names)
        rows = (",".join("" if cell is None else str(cell) for cell in row.values()) for row in table.to_pylist())
        path.write_text("\n".join([names, *rows, ""]))
    else:
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in table.to_pylist()))


def read(folder: Path, form: RowFormat, pattern: str = "") -> list[dict[str, Any]]:
    place = LocalDirectory(folder)
    files = place.files(pattern)
    found = find_columns(place, files, form)
    assert found.conflicts == {}
    source = TableSource(place, form, found.schema, prefix=partitions_above(place.shown, [each.path for each in files]))
    windows = [each for shard in cut(files, form, 2**20) for each in source.windows(shard, 8)]
    assert not any(each.faults for each in windows)
    assert all(each.table.schema == found.schema for each in windows)
    return [row for each in windows for row in each.table.to_pylist()]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([None], ["hi"]),
        ([1], [1.5]),
        ([1], [2**40]),
        ([[]], [[2.0]]),
        ([None], [{"a": 1}]),
        ([1] * 1500 + [1.5], [None]),
        ([{"a": 1}], [{"a": 2.5, "b": "x"}]),
    ],
)
@pytest.mark.parametrize("form", [RowFormat.PARQUET, RowFormat.JSON_LINES])
def test_a_later_file_or_line_widens_the_type(
    first: list[Any], second: list[Any], form: RowFormat, tmp_path: Path
) -> None:
    for number, cells in enumerate((first, second)):
        write(tmp_path / f"{number}.{PLACES[form]}", form, pa.table({"x": pa.array(cells)}))

    rows = [row["x"] for row in read(tmp_path, form)]
    wanted = [{"a": 1, "b": None}] if first == [{"a": 1}] and second != [None] else first
    assert rows == [*wanted, *second]


KINDS = {
    pa.null(): st.none(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**53), 2**53),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
}
TABLES = st.lists(
    st.sampled_from([*KINDS]).flatmap(
        lambda kind: st.tuples(st.just(kind), st.lists(st.none() | KINDS[kind], max_size=5))
    ),
    min_size=1,
    max_size=4,
)


@given(TABLES, st.booleans())
def test_numbers_of_files_of_any_types_are_unchanged(tables: Any, reverse: bool) -> None:
    """As the naive loop reads them, file by file, in the files' own types."""
    with TemporaryDirectory() as folder:
        for number, (kind, cells) in enumerate(tables):
            columns = {"x": pa.array(cells, kind), "row": pa.array(range(len(cells)), pa.int64())}
            table = pa.table(columns).select(["row", "x"] if reverse else ["x", "row"])
            parquet.write_table(table, Path(folder, f"{number}.parquet"))
        naive = [
            row for number in range(len(tables)) for row in parquet.read_table(f"{folder}/{number}.parquet").to_pylist()
        ]

        rows = read(Path(folder), RowFormat.PARQUET)
    assert rows == naive
    column = pa.array([row["x"] for row in rows], pa.float64())
    spec = TensorSpec("x", "FP64", [-1], nullable=True)
    taken = make_rows(Window(pa.table({"x": column})), [spec], {"x": ["x"]})
    np.testing.assert_array_equal(taken.values["x"], [np.nan if row["x"] is None else row["x"] for row in naive])
    assert taken.errors == {}


def test_text_of_csv_stays_and_columns_of_later_files_are_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,größe\n01234,1\n"",1e3\n')
    (tmp_path / "b.csv").write_text("größe,id,more\nNA,+5,x\n")

    assert read(tmp_path, RowFormat.CSV) == [
        {"id": "01234", "größe": "1", "more": None},
        {"id": "", "größe": "1e3", "more": None},
        {"id": "+5", "größe": "NA", "more": "x"},
    ]


def test_a_header_of_five_thousand_columns_is_read_whole(tmp_path: Path) -> None:
    names = [f"a_column_of_a_long_name_{number}" for number in range(5000)]
    (tmp_path / "a.csv").write_text(f"{','.join(names)}\n{','.join(map(str, range(5000)))}\n")

    assert read(tmp_path, RowFormat.CSV) == [{name: str(number) for number, name in enumerate(names)}]


def test_json_beyond_what_is_scanned_has_the_types_of_the_first_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_discovery, "SCANNED_BYTES", 10)
    monkeypatch.setattr(column_discovery, "SCANNED_LINES", 2)
    for name, lines in (("a", "1,1,1.5"), ("b", '1,1,"x"')):
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"x": {cell}}}\n' for cell in lines.split(",")))
    place = LocalDirectory(tmp_path)

    assert find_columns(place, place.files(""), RowFormat.JSON_LINES).schema == pa.schema([("x", pa.int64())])


def test_an_unreadable_file_does_not_change_the_types_of_others(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", RowFormat.PARQUET, pa.table({"x": [1]}))
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    place = LocalDirectory(tmp_path)

    assert find_columns(place, place.files(""), RowFormat.PARQUET).schema == pa.schema([("x", pa.int64())])
    with pytest.raises(JobError, match=r"a\.parquet cannot be read"):
        find_columns(place, place.files("a*"), RowFormat.PARQUET)


@pytest.mark.parametrize("form", [RowFormat.PARQUET, RowFormat.CSV])
def test_a_file_without_a_required_column_is_rejected(form: RowFormat, tmp_path: Path) -> None:
    write(tmp_path / f"a.{PLACES[form]}", form, pa.table({"x": [1]}))
    place = LocalDirectory(tmp_path)
    (shard,) = cut(place.files(""), form, 2**20)

    with pytest.raises(ShardError, match="has no column y"):
        list(
            TableSource(place, form, pa.schema([("x", pa.string()), ("y", pa.string())]), required=["y"]).windows(
                shard, 1
            )
        )


HIVE = pa.table(
    {
        "id": [1, 2, 3, 4],
        "day": ["2024-01-01", "2024-01-01", "2024-01-02", None],
        "month": [1, 1, 12, 12],
        "place": ["a b", "a/b", "ü=1", "%"],
    }
)


@pytest.mark.parametrize("form", PLACES)
def test_hive_partitions_are_columns_as_pyarrow_reads_them(form: RowFormat, tmp_path: Path) -> None:
    names = ["day", "month", "place"]
    kind = {"format": "parquet"} if form is RowFormat.PARQUET else {"format": "csv"}
    dataset.write_dataset(HIVE, tmp_path, partitioning=names, partitioning_flavor="hive", **kind)
    if form is RowFormat.JSON_LINES:
        for path in [*tmp_path.rglob("*.csv")]:
            path.with_suffix(".jsonl").write_text(f'{{"id": {path.read_text().split()[1]}}}\n')
    known = dataset.dataset(tmp_path, format="parquet" if "parquet" in kind.values() else "csv", partitioning="hive",
        exclude_invalid_files=form is RowFormat.JSON_LINES)  # fmt: skip
    wanted = {row["id"]: row for row in known.to_table().to_pylist()}
    rows = {int(row["id"]): {**row, "id": int(row["id"])} for row in read(tmp_path, form, f"**/*.{PLACES[form]}")}

    assert rows == wanted == {row["id"]: row for row in HIVE.to_pylist()}
    (one,) = read(tmp_path / "day=2024-01-02", form, f"**/*.{PLACES[form]}")
    assert {**one, "id": int(one["id"])} == wanted[3]


def test_files_as_rows_have_the_partitions_of_their_directories(tmp_path: Path) -> None:
    for name in ("label=cat/1.jpg", "label=dog/2.jpg", "3.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")

    rows = read(tmp_path, RowFormat.FILES)
    assert {row["path"]: row["label"] for row in rows} == {
        "3.jpg": None,
        "label=cat/1.jpg": "cat",
        "label=dog/2.jpg": "dog",
    }


def test_a_cell_that_differs_from_its_partition_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "n=01" / "a.parquet", RowFormat.PARQUET, pa.table({"x": [1, 2, 3], "n": [1.0, 2.0, None]}))
    place = LocalDirectory(tmp_path)
    files = place.files("")
    schema = find_columns(place, files, RowFormat.PARQUET).schema
    (shard,) = cut(files, RowFormat.PARQUET, 2**20)
    (window,) = TableSource(place, RowFormat.PARQUET, schema).windows(shard, 8)

    assert window.table["n"].to_pylist() == [1, 1, 1]
    assert set(window.faults) == {1}


@pytest.mark.parametrize(
    ("paths", "kinds"),
    [
        (["n=1/a", "n=-20/a", "n=__HIVE_DEFAULT_PARTITION__/a"], {"n": pa.int64()}),
        (["n=1/a", "n=x/a"], {"n": pa.string()}),
        (["n=1/m=1.5/a", "a"], {"n": pa.int64(), "m": pa.string()}),
        ([f"n={2**63}/a"], {"n": pa.string()}),
        (["n=__HIVE_DEFAULT_PARTITION__/a"], {"n": pa.string()}),
        (["=1/a", "x/n=1.csv"], {}),
    ],
)
def test_a_partition_is_int64_if_all_values_are_integers(paths: list[str], kinds: dict[str, pa.DataType]) -> None:
    assert partition_types(paths) == kinds


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=3))
def test_partition_values_are_percent_decoded(values: dict[str, str]) -> None:
    from urllib.parse import quote

    path = "/".join(
        [*(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in values.items()), "rows.csv"]
    )

    assert dict(partition_values(path)) == values


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("name=a%2Fb/x", {"name": "a/b"}),
        ("key=/x", {"key": ""}),
        ("key=__HIVE_DEFAULT_PARTITION__/x", {"key": None}),
        ("a%3Db=c=d/x", {"a=b": "c=d"}),
        ("day=%zz/x", {"day": "%zz"}),
        ("day=1/n=2/day=1/x", {"day": "1", "n": "2"}),
    ],
)
def test_a_partition_value_is_read_from_its_directory(path: str, values: dict[str, str | None]) -> None:
    assert partition_values(path) == values


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("day=%ff/a", "'day=%ff'"),
        ("d%ffy=1/a", "UTF-8"),
        ("day=\udcff/a", "UTF-8"),
        ("day=1/day=2/a", "two values of the column day"),
        ("day=/day=__HIVE_DEFAULT_PARTITION__/a", "two values"),
    ],
)
def test_an_invalid_or_contradictory_partition_is_rejected(path: str, message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        partition_values(path)


def test_a_partition_that_is_not_utf8_is_rejected_before_the_first_row(tmp_path: Path) -> None:
    write(tmp_path / "day=%ff" / "a.parquet", RowFormat.PARQUET, pa.table({"x": [1]}))
    place = LocalDirectory(tmp_path)

    with pytest.raises(InvalidSettings, match="day=%ff"):
        find_columns(place, place.files(""), RowFormat.PARQUET)


@pytest.mark.parametrize(
    ("folder", "paths", "above"),
    [
        ("/in/day=1/hour=2", ["a", "b"], "day=1/hour=2"),
        ("/in/day=1/x", ["a"], ""),
        ("/in/day=1/a.csv", ["a.csv"], "day=1"),
        ("s3://bucket/in/day=1/", ["a", "b"], "day=1"),
        ("/in/n=1.csv", ["n=1.csv"], ""),
    ],
)
def test_partitions_of_the_input_directory_are_found(folder: str, paths: list[str], above: str) -> None:
    assert partitions_above(folder, paths) == above


def test_a_column_of_the_files_takes_precedence_over_a_partition_above(tmp_path: Path) -> None:
    write(tmp_path / "lr=0.1" / "a.parquet", RowFormat.PARQUET, pa.table({"lr": [0.5]}))

    assert read(tmp_path / "lr=0.1", RowFormat.PARQUET) == [{"lr": 0.5}]


def test_a_partition_whose_column_begins_with_a_line_is_not_hidden() -> None:
    assert [is_hidden(path) for path in ("_day=1/a", "_log/a", ".day=1/a", "day=1/_a")] == [False, True, True, True]


def test_partitions_of_a_bucket_are_columns_too(tmp_path: Path) -> None:
    store = MemoryStore()
    for number, day in enumerate(("a%20b", "__HIVE_DEFAULT_PARTITION__")):
        write(tmp_path / "a.parquet", RowFormat.PARQUET, pa.table({"x": [number]}))
        obstore.put(store, f"in/day={day}/a.parquet", tmp_path / "a.parquet")
    place = BucketDirectory(store, "in", "s3://bucket/in")
    files = place.files("")
    source = TableSource(place, RowFormat.PARQUET, find_columns(place, files, RowFormat.PARQUET).schema)
    windows = [each for shard in cut(files, RowFormat.PARQUET, 2**20) for each in source.windows(shard, 8)]

    assert [row for each in windows for row in each.table.to_pylist()] == [
        {"x": 1, "day": None},
        {"x": 0, "day": "a b"},
    ]


class Unavailable(LocalDirectory):
    """A directory of which one file cannot be reached."""

    def open(self, file: InputFile, ahead_bytes: int = 0) -> BinaryIO:
        if file.path == "b.parquet":
            raise DirectoryUnavailable("the store does not answer")
        return super().open(file, ahead_bytes)


def test_an_unavailable_store_is_not_an_unreadable_file(tmp_path: Path) -> None:
    """Without the types of that file the schema would differ in the next run."""
    for name in ("a", "b", "c"):
        write(tmp_path / f"{name}.parquet", RowFormat.PARQUET, pa.table({"x": [1]}))
    place = Unavailable(tmp_path)

    with pytest.raises(DirectoryUnavailable):
        find_columns(place, place.files(""), RowFormat.PARQUET)
