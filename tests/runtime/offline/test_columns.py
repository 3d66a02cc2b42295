"""Whole jobs over columns: names, nulls, extra columns, partitions, types of several files, resumed jobs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.runtime.offline.jobs import Ended, environment, records, results, run, run_in

ROWS = [{"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 4.0, "b": 5.0, "c": 6.0}]


def write(path: Path, rows: list[dict[str, Any]], order: str) -> None:
    if path.suffix == ".csv":
        lines = [order, *(",".join(str(row[name]) for name in order.split(",")) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({name: row[name] for name in order.split(",")}) + "\n" for row in rows))
    else:
        parquet.write_table(pa.table({name: [row[name] for row in rows] for name in order.split(",")}), path)


def run_columns(given: Path | str, output: Path, policy: str = "", **settings: Any) -> Ended:
    known = environment(given, output, engine_takes="columns", **settings)
    return run_in({**known, "SHOAL_MODEL_EXTRA_COLUMNS": policy})


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("columns", [None, '{"input-0": "c,b,a"}'])
def test_columns_in_any_order_give_the_same_responses(tmp_path: Path, suffix: str, columns: str | None) -> None:
    for number, order in enumerate(("a,b,c", "c,b,a", "b,c,a")):
        write(tmp_path / f"{number}.{suffix}", ROWS, order)
    ended = run_columns(f"{tmp_path}/*.{suffix}", tmp_path / "out", **({"columns": columns} if columns else {}))

    assert ended.status == 0, ended.output
    assert [row["y"] for row in results(tmp_path / "out")] == [321.0, 654.0] * 3


def test_columns_with_other_names_must_be_listed(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", [{"x": 1, "y": 2, "z": 3}], "z,y,x")
    refused = run_columns(tmp_path / "a.csv", tmp_path / "none")
    ended = run_columns(tmp_path / "a.csv", tmp_path / "out", columns='{"input-0": "x,y,z"}', keep="-")

    assert refused.status == 2
    assert "no column a" in refused.output
    assert not (tmp_path / "none").exists()
    assert ended.status == 0, ended.output
    assert [row["y"] for row in results(tmp_path / "out")] == [321.0]


@pytest.mark.parametrize(
    ("policy", "settings", "status"),
    [
        ("", {}, 0),
        ("Ignore", {}, 0),
        ("Reject", {}, 2),
        ("Reject", {"keep": "id", "where": "label != 'x'"}, 0),
    ],
)
def test_extra_columns_are_ignored_unless_the_policy_is_reject(
    tmp_path: Path, policy: str, settings: Any, status: int
) -> None:
    write(tmp_path / "a.csv", [{**row, "id": 7, "label": "dog"} for row in ROWS], "id,a,b,c,label")
    ended = run_columns(tmp_path / "a.csv", tmp_path / "out", policy, **settings)

    assert ended.status == status, ended.output
    assert ("id, label" in ended.output) == (status == 2)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_null_is_nan_for_a_nullable_input(tmp_path: Path, suffix: str) -> None:
    empty: Any = "" if suffix == "csv" else None
    write(tmp_path / f"a.{suffix}", [ROWS[0], {"a": 1.0, "b": empty, "c": 2.0}], "c,b,a")
    ended = run_columns(tmp_path / f"a.{suffix}", tmp_path / "out", keep="-")

    assert ended.status == 0, ended.output
    assert [row["y"] for row in results(tmp_path / "out")] == [321.0, pytest.approx(np.nan, nan_ok=True)]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (pa.table({"x": [1.0], "n": [1]}), pa.table({"x": [1.0], "n": ["a"]}), "the column n is int64 in 0.parquet"),
        (pa.table({"x": [1.0]}), pa.table({"n": [1]}), "1.parquet has no column x"),
        (pa.table({"x": [True]}), pa.table({"x": [True]}), "takes numbers, but the column x holds bool"),
        (pa.table({"x": ["1"]}), pa.table({"x": ["2"]}), "takes numbers, but the column x holds string"),
    ],
)
def test_files_that_do_not_fit_each_other_are_rejected_before_the_first_row(
    tmp_path: Path, first: pa.Table, second: pa.Table, message: str
) -> None:
    for number, table in enumerate((first, second)):
        parquet.write_table(table, tmp_path / f"{number}.parquet")
    ended = run(f"{tmp_path}/*.parquet", tmp_path / "out")

    assert ended.status == 2
    assert message in ended.output
    assert not list((tmp_path / "out").glob("part-*"))


def test_a_conflict_in_an_unused_column_is_ignored(tmp_path: Path) -> None:
    for number, cell in enumerate((1, "a")):
        parquet.write_table(pa.table({"x": [1.0], "n": [cell]}), tmp_path / f"{number}.parquet")
    ended = run(f"{tmp_path}/*.parquet", tmp_path / "out", keep="x")

    assert ended.status == 0, ended.output
    assert [row["y"] for row in results(tmp_path / "out")] == [2.0, 2.0]


def test_a_resumed_job_keeps_its_types(tmp_path: Path) -> None:
    for number, column in enumerate((pa.nulls(2), pa.array([1, 2], pa.int32()), pa.array([1.5, None]))):
        folder = tmp_path / "in" / f"day=2024-01-0{number + 1}"
        folder.mkdir(parents=True)
        parquet.write_table(pa.table({"x": [1.0, 2.0], "note": column}), folder / "a.parquet")
    for name in ("whole", "out"):
        ended = run(tmp_path / "in", tmp_path / name, where="day != '2024-01-02'")
        assert ended.status == 0, ended.output
    for name in ("part-00002.parquet", "_shoal/part-00002.json"):
        (tmp_path / "out" / name).unlink()
    assert run(tmp_path / "in", tmp_path / "out", where="day != '2024-01-02'").status == 0

    whole, again = ({p.name: p.read_bytes() for p in (tmp_path / each).rglob("*.*")} for each in ("whole", "out"))
    assert whole == again
    assert len(records(tmp_path / "out")) == 4
    assert [(row["day"], row["note"]) for row in results(tmp_path / "out")] == [
        *[("2024-01-01", None)] * 2,
        ("2024-01-03", 1.5),
        ("2024-01-03", None),
    ]


def test_columns_of_every_storage_form_are_kept(tmp_path: Path) -> None:
    columns = {
        "x": pa.array([1.0, 2.0]),
        "kind": pa.array(["a", "b"]).dictionary_encode(),
        "view": pa.array(["a", None], pa.string_view()),
        "lists": pa.array([[1, 2], None], pa.list_view(pa.int64())),
        "half": pa.array([1.5, None], pa.float16()),
        "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(2, 2, 3)),
        "größe": pa.array([1, 2], pa.decimal128(5, 2)),
    }
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    for form in ("parquet", "jsonlines"):
        ended = run(tmp_path / "a.parquet", tmp_path / form, output_format=form)
        assert ended.status == 0, ended.output

    found = parquet.read_table(tmp_path / "parquet" / "part-00000.parquet")
    assert {name: found[name].to_pylist() for name in columns} == {name: c.to_pylist() for name, c in columns.items()}
    lines = [json.loads(line) for line in (tmp_path / "jsonlines" / "part-00000.jsonl").read_text().splitlines()]
    assert lines[0] == {
        "x": 1.0, "kind": "a", "view": "a", "lists": [1, 2], "half": 1.5, "tensor": [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]],
        "größe": "1.00", "y": 2.0, "shoal_error": None,
    }  # fmt: skip
