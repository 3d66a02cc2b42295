"""Whole jobs, each in a process as `shoal batch` starts it: every row has one outcome."""

import gzip
import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.runtime.offline.jobs import begin, kill, records, results, run, write_numbers


def written(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_results_are_in_order_with_kept_columns_and_one_record_per_shard(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(100)], row_groups=7)
    ended = run(tmp_path / "a.parquet", tmp_path / "out", shard_bytes=1024)

    assert ended.status == 0, ended.output
    assert [(row["id"], row["x"], row["y"], row["shoal_error"]) for row in results(tmp_path / "out")] == [
        (number, [number], 2 * number, None) for number in range(100)
    ]
    known = records(tmp_path / "out")
    parts = [name for name in known if name != "plan"]
    assert len(parts) > 2
    assert sum(known[name]["rows"] for name in parts) == 100
    assert "rows        100" in ended.output


def test_a_failing_row_fails_alone(tmp_path: Path) -> None:
    numbers = [float(each) for each in range(60)]
    numbers[7], numbers[20], numbers[21], numbers[50] = -1, -2, -3, -3
    write_numbers(tmp_path / "a.parquet", numbers)
    ended = run(tmp_path / "a.parquet", tmp_path / "out")

    assert ended.status == 0, ended.output
    rows = results(tmp_path / "out")
    errors = {row["id"]: row["shoal_error"] for row in rows if row["shoal_error"]}
    assert list(errors) == [7, 20, 21, 50]
    assert errors[7] == "minus one is no good"
    assert errors[20] == "forward raised ValueError: minus two"
    assert "SIGKILL" in errors[21]
    assert errors[50] == errors[21]
    assert [row["y"] for row in rows if not row["shoal_error"]] == [2 * each for each in numbers if each >= 0]
    assert records(tmp_path / "out")["part-00000"]["failed"] == 4


def test_batches_shrink_when_memory_runs_out(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(50)])
    ended = run(tmp_path / "a.parquet", tmp_path / "out", engine_memory=3)

    assert ended.status == 0, ended.output
    assert [row["y"] for row in results(tmp_path / "out")] == [2.0 * each for each in range(50)]
    assert records(tmp_path / "out")["part-00000"]["batch_size"] <= 4


def test_failed_rows_are_written_to_the_errors_directory(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [1.0, -1.0, 2.0])
    ended = run(tmp_path / "a.parquet", tmp_path / "out", errors=tmp_path / "bad", keep="id")

    assert ended.status == 0, ended.output
    assert results(tmp_path / "out") == [{"id": 0, "y": 2.0}, {"id": 2, "y": 4.0}]
    assert results(tmp_path / "bad") == [{"id": 1, "y": None, "shoal_error": "minus one is no good"}]


def test_two_jobs_cannot_share_an_output_directory(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [1.0, -1.0])
    assert run(tmp_path / "a.parquet", tmp_path / "out", errors=tmp_path / "bad").status == 0
    before = written(tmp_path / "out") | written(tmp_path / "bad")
    ended = [
        run(tmp_path / "a.parquet", tmp_path / "new", errors=tmp_path / "x" / ".." / "new"),
        run(tmp_path / "a.parquet", tmp_path / "new", errors=tmp_path / "bad"),
        run(tmp_path / "a.parquet", tmp_path / "new", errors=tmp_path / "out"),
        run(tmp_path / "a.parquet", tmp_path / "bad"),
    ]

    assert [each.status for each in ended] == [2, 2, 2, 2]
    assert "is the directory of the results" in ended[0].output
    assert "bad belongs to another job" in ended[1].output
    assert "out belongs to another job" in ended[2].output
    assert f"bad holds failed rows of {tmp_path / 'out'}" in ended[3].output
    assert written(tmp_path / "out") | written(tmp_path / "bad") == before
    assert run(tmp_path / "a.parquet", tmp_path / "out", errors=tmp_path / "bad").status == 0


def test_an_interrupted_job_resumes_without_repeating_finished_shards(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(90)], row_groups=9)
    whole = run(tmp_path / "a.parquet", tmp_path / "whole", shard_bytes=1024)
    assert whole.status == 0, whole.output

    process = begin(tmp_path / "a.parquet", tmp_path / "out", shard_bytes=1024, engine_pause_s=0.3)
    while not list((tmp_path / "out").glob("_shoal/part-*.json")):
        assert process.poll() is None
    kill(process)
    before = {name: text for name, text in written(tmp_path / "out").items() if "part" in name and ".begun" not in name}
    (tmp_path / "out" / ".begun-part-00099.parquet-of-one-long-gone").touch()
    again = run(tmp_path / "a.parquet", tmp_path / "out", shard_bytes=1024)

    assert again.status == 0, again.output
    assert "before)" in again.output
    after = written(tmp_path / "out")
    assert {name: after[name] for name in before} == before
    assert after == written(tmp_path / "whole")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine_model": "sha256:2"}, "model was sha256:1 and is sha256:2"),
        ({"shard_bytes": 4096}, "shard size (shardBytes) was 67108864 and is 4096"),
        ({"keep": "id"}, '--keep was ["id","x"] and is ["id"]'),
        ({"where": "id < 5"}, "--where was null and is id < 5"),
        ({"size": 3}, "--batch-size was 8 and is 3"),
    ],
)
def test_a_job_with_other_settings_is_rejected(tmp_path: Path, settings: Any, message: str) -> None:
    write_numbers(tmp_path / "a.parquet", [1.0, 2.0])
    assert run(tmp_path / "a.parquet", tmp_path / "out").status == 0
    before = written(tmp_path / "out")
    ended = run(tmp_path / "a.parquet", tmp_path / "out", **settings)

    assert ended.status == 2
    assert f"another job: {message}." in ended.output
    assert written(tmp_path / "out") == before


def test_a_job_does_not_resume_with_more_files(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [1.0, 2.0])
    assert run(f"{tmp_path}/*.parquet", tmp_path / "out").status == 0
    write_numbers(tmp_path / "b.parquet", [1.0, 2.0, 3.0])
    ended = run(f"{tmp_path}/*.parquet", tmp_path / "out")

    assert ended.status == 2
    assert "another job: set of the input's files was 1, named " in ended.output


def test_two_concurrent_runs_of_one_job_succeed(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(60)], row_groups=6)
    assert run(tmp_path / "a.parquet", tmp_path / "whole", shard_bytes=1024).status == 0
    other = begin(tmp_path / "a.parquet", tmp_path / "out", shard_bytes=1024, engine_pause_s=0.01)
    ended = run(tmp_path / "a.parquet", tmp_path / "out", shard_bytes=1024, engine_pause_s=0.01)

    assert ended.status == 0, ended.output
    assert other.wait(60) == 0
    assert written(tmp_path / "out") == written(tmp_path / "whole")


def test_workers_share_shards_and_a_restarted_worker_resumes(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(120)], row_groups=12)
    settings: dict[str, Any] = {"shard_bytes": 1024, "workers": 2, "run": "r1", "engine_pause_s": 0.02}
    first = begin(tmp_path / "a.parquet", tmp_path / "out", worker=0, **settings)
    second = begin(tmp_path / "a.parquet", tmp_path / "out", worker=1, **settings)
    while not list((tmp_path / "out").glob("_shoal/leases/r1/*")):
        assert first.poll() is None
    kill(first)
    assert second.wait(60) == 0
    assert run(tmp_path / "a.parquet", tmp_path / "out", worker=0, **settings).status == 0

    assert [row["y"] for row in results(tmp_path / "out")] == [2.0 * each for each in range(120)]
    plan = records(tmp_path / "out")
    assert sum(each["rows"] for name, each in plan.items() if name != "plan") == 120


def test_several_engines_give_the_same_results(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(200)])
    ended = run(tmp_path / "a.parquet", tmp_path / "out", engines=3)

    assert ended.status == 0, ended.output
    assert [row["y"] for row in results(tmp_path / "out")] == [2.0 * each for each in range(200)]


def test_a_malformed_csv_cell_is_an_error_of_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,x,note\n1,1.5,"two\nlines"\n2,abc,b\n3,,c\n4,2,\n')
    (tmp_path / "b.csv").write_text('id,x,note\n1,1.5,"two\nlines"\n4,2,\n')
    ended = run(tmp_path / "b.csv", tmp_path / "out", columns='{"x": "x"}')

    assert ended.status == 0, ended.output
    assert results(tmp_path / "out") == [
        {"id": "1", "x": "1.5", "note": "two\nlines", "y": 3.0, "shoal_error": None},
        {"id": "4", "x": "2", "note": None, "y": 4.0, "shoal_error": None},
    ]
    (tmp_path / "c.csv").write_text("id,x,note\n1,NA,NA\n2,abc,nan\n")
    both = run(f"{tmp_path}/[ac].csv", tmp_path / "both")
    assert both.status == 0, both.output
    assert results(tmp_path / "both")[1:] == [
        {"id": "2", "x": "abc", "note": "b", "y": None, "shoal_error": "x is 'abc', which is not a number"},
        {"id": "3", "x": None, "note": "c", "y": None, "shoal_error": "input 'x' does not accept null"},
        {"id": "4", "x": "2", "note": None, "y": 4.0, "shoal_error": None},
        {"id": "1", "x": "NA", "note": "NA", "y": None, "shoal_error": "x is 'NA', which is not a number"},
        {"id": "2", "x": "abc", "note": "nan", "y": None, "shoal_error": "x is 'abc', which is not a number"},
    ]


def test_a_malformed_json_line_is_an_error_of_its_row(tmp_path: Path) -> None:
    lines = [
        '{"text": "a", "n": 1}',
        "",
        "no json",
        "[1]",
        '{"text": "b", "n": "x"}',
        '{"text": null}',
        '{"text": "c"}',
    ]
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write("\n".join(lines))
    ended = run(tmp_path / "a.jsonl.gz", tmp_path / "out", engine_takes="texts", output_format="jsonlines")

    assert ended.status == 0, ended.output
    rows = [json.loads(line) for line in (tmp_path / "out" / "part-00000.jsonl").read_text().splitlines()]
    assert [(row["text"], row["n"], row["upper"]) for row in rows] == [
        ("a", 1, "A"),
        (None, None, None),
        (None, None, None),
        ("b", None, None),
        (None, None, None),
        ("c", None, "C"),
    ]
    assert [(row["shoal_error"] or "")[:12] for row in rows] == [
        "",
        "the line is ",
        "the line is ",
        "n is 'x', ex",
        "input 'text'",
        "",
    ]


def test_each_file_of_a_directory_is_a_row(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.txt", ".hidden"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(f"text of {name}")
    ended = run(tmp_path / "in", tmp_path / "out", engine_takes="texts")

    assert ended.status == 0, ended.output
    assert [(row["path"], row["upper"]) for row in results(tmp_path / "out")] == [
        ("a.txt", "TEXT OF A.TXT"),
        ("b.txt", "TEXT OF B.TXT"),
        ("sub/c.txt", "TEXT OF SUB/C.TXT"),
    ]


def test_outputs_are_not_inputs_and_cyclic_links_end(tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / "a.txt").write_text("a")
    (tmp_path / "in" / "sub" / os.fsdecode(b"\xff.txt")).write_text("b")
    (tmp_path / "in" / "sub" / "up").symlink_to(tmp_path / "in")
    for _ in range(2):
        ended = run(tmp_path / "in", tmp_path / "in" / "out", engine_takes="texts", output_format="jsonlines")
        assert ended.status == 0, ended.output

    lines = (tmp_path / "in" / "out" / "part-00000.jsonl").read_text().splitlines()
    assert [json.loads(line)["path"] for line in lines] == ["sub/a.txt", "sub/\\xff.txt"]


@pytest.mark.parametrize(
    ("name", "text", "status", "message"),
    [
        ("a.csv", "x,x\n1,2\n", 1, "a.csv has two columns called x"),
        (
            "a.jsonl",
            '{"x": 1, "n": 123456789012345678901234567890}\n',
            2,
            "the column n holds only values without a type",
        ),
        ("a.parquet", "no parquet", 1, "a.parquet cannot be read: Parquet magic bytes not found"),
        ("a.csv", "", 1, "a.csv cannot be read: it is empty"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, status: int, message: str) -> None:
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    ended = run(tmp_path / name, tmp_path / "out")

    assert ended.status == status
    assert message in ended.output
    assert "Traceback" not in ended.output


def test_an_empty_input_has_results_of_the_same_schema(tmp_path: Path) -> None:
    write_numbers(tmp_path / "none.parquet", [])
    write_numbers(tmp_path / "some.parquet", [1.0])
    assert run(tmp_path / "none.parquet", tmp_path / "none").status == 0
    assert run(tmp_path / "some.parquet", tmp_path / "some").status == 0

    schemas = [parquet.read_schema(tmp_path / name / "part-00000.parquet") for name in ("none", "some")]
    assert schemas[0] == schemas[1]
    assert results(tmp_path / "none") == []


def test_only_selected_rows_are_scored(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(20)])
    ended = run(tmp_path / "a.parquet", tmp_path / "out", where="id >= 5 and id < 8 or id == 19", keep="id")

    assert ended.status == 0, ended.output
    assert [row["id"] for row in results(tmp_path / "out")] == [5, 6, 7, 19]


def test_too_many_errors_end_the_job_which_may_resume(tmp_path: Path) -> None:
    numbers = [float(each) for each in range(40)]
    numbers[:12] = [-1.0] * 12
    write_numbers(tmp_path / "a.parquet", numbers)
    ended = run(tmp_path / "a.parquet", tmp_path / "out")

    assert ended.status == 1
    assert "12 of 40 rows failed" in ended.output
    assert "minus one is no good (12)" in ended.output
    again = run(tmp_path / "a.parquet", tmp_path / "out", max_error_share="0.5")
    assert again.status == 0, again.output


def test_a_job_fails_if_all_its_rows_fail(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [-1.0, -1.0])

    assert run(tmp_path / "a.parquet", tmp_path / "out").status == 1
    assert run(tmp_path / "a.parquet", tmp_path / "out", max_error_share="1").status == 0


def test_a_corrupt_file_loses_its_own_rows_until_it_is_restored(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_numbers(tmp_path / f"{name}.parquet", [1.0, 2.0])
    good = (tmp_path / "b.parquet").read_bytes()
    (tmp_path / "b.parquet").write_bytes(good[: len(good) // 2] + b"\0" * (len(good) - len(good) // 2))
    ended = run(f"{tmp_path}/*.parquet", tmp_path / "out")

    assert ended.status == 1
    assert "b.parquet cannot be read" in ended.output
    assert len(results(tmp_path / "out")) == 4
    (tmp_path / "b.parquet").write_bytes(good)
    again = run(f"{tmp_path}/*.parquet", tmp_path / "out")
    assert again.status == 0, again.output
    assert len(results(tmp_path / "out")) == 6
    write_numbers(tmp_path / "b.parquet", [3.0])
    changed = run(f"{tmp_path}/*.parquet", tmp_path / "out")
    assert changed.status == 2
    assert "b.parquet has changed" in changed.output


@pytest.mark.parametrize(
    ("given", "settings", "status", "message"),
    [
        ("none/*.parquet", {}, 2, "there are no files at"),
        ("a.parquet", {"columns": '{"x": "absent"}'}, 2, "no column absent"),
        ("a.parquet", {"where": "absent > 1"}, 2, "--where names the column absent"),
        ("a.parquet", {"keep": "absent"}, 2, "no column absent to keep"),
        ("a.parquet", {"engine_refuses": "no weights"}, 1, "no weights"),
        ("a.parquet", {"max_error_share": "2"}, 2, "SHOAL_BATCH_MAX_ERROR_SHARE"),
        (
            "a.parquet",
            {"engine": "false"},
            1,
            "ended with exit status 1 before it was ready, 3 times",
        ),
        ("http://example.com/a.parquet", {}, 2, "is not an address"),
    ],
)
def test_invalid_settings_are_reported_before_anything_is_written(
    tmp_path: Path, given: str, settings: Any, status: int, message: str
) -> None:
    write_numbers(tmp_path / "a.parquet", [1.0])
    ended = run(given if "://" in given else tmp_path / given, tmp_path / "out", **settings)

    assert (ended.status, message in ended.output) == (status, True), ended.output
    assert "Traceback" not in ended.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["plan", "part-00000"])
def test_a_corrupt_plan_or_record_is_named(tmp_path: Path, name: str) -> None:
    write_numbers(tmp_path / "a.parquet", [1.0])
    assert run(tmp_path / "a.parquet", tmp_path / "out").status == 0
    (tmp_path / "out" / "_shoal" / f"{name}.json").write_text("{}")
    ended = run(tmp_path / "a.parquet", tmp_path / "out")

    assert ended.status == 2
    assert f"_shoal/{name}.json of " in ended.output
    assert "Traceback" not in ended.output


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [1.0])
    (tmp_path / "out").write_text("a file")
    ended = run(tmp_path / "a.parquet", tmp_path / "out")

    assert ended.status == 2
    assert "out is a file" in ended.output
    ended = run(tmp_path / "a.parquet", tmp_path / "out" / "below")
    assert ended.status == 1
    assert "failed-rows-of cannot be read: Not a directory" in ended.output
    assert "Traceback" not in ended.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_job_without_partial_files_or_engines(tmp_path: Path, number: signal.Signals) -> None:
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(90)], row_groups=9)
    process = begin(tmp_path / "a.parquet", tmp_path / "out", shard_bytes=1024, engine_pause_s=0.3)
    while not list((tmp_path / "out").glob("_shoal/part-*.json")):
        assert process.poll() is None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(number)

    assert process.wait(10) == 130
    assert not [name for name in written(tmp_path / "out") if ".begun" in name]
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_an_engine_ends_with_its_batch_program(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(90)], row_groups=9)
    process = begin(tmp_path / "a.parquet", tmp_path / "out", shard_bytes=1024, engine_pause_s=0.3)
    while not list((tmp_path / "out").glob("_shoal/part-*.json")):
        assert process.poll() is None
    (child,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    watched = os.pidfd_open(child)
    kill(process)

    import select

    assert select.select([watched], [], [], 20)[0]
    os.close(watched)


def test_a_kept_column_may_be_renamed_beside_an_output(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"id": [1, 2], "x": [1.5, 2.0], "y": [3.0, 5.0]}), tmp_path / "a.parquet")
    ended = run(tmp_path / "a.parquet", tmp_path / "out", keep="id,truth=y")

    assert ended.status == 0, ended.output
    assert results(tmp_path / "out") == [
        {"id": 1, "truth": 3.0, "y": 3.0, "shoal_error": None},
        {"id": 2, "truth": 5.0, "y": 4.0, "shoal_error": None},
    ]
    assert records(tmp_path / "out")["plan"]["keep"] == ["id", "truth=y"]
    assert run(tmp_path / "a.parquet", tmp_path / "out", keep="id,truth=y").status == 0


def test_kept_columns_are_unchanged(tmp_path: Path) -> None:
    table = pa.table(
        {
            "x": pa.array([1.0, 2.0]),
            "when": pa.array([0, 1], pa.timestamp("us", "UTC")),
            "tags": pa.array([["a"], None], pa.list_(pa.string())),
            "kind": pa.array(["a", "b"]).dictionary_encode(),
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    ended = run(tmp_path / "a.parquet", tmp_path / "out")

    assert ended.status == 0, ended.output
    found = parquet.read_table(tmp_path / "out" / "part-00000.parquet")
    assert found.select(table.column_names).cast(table.schema).equals(table)


def test_nan_and_infinity_are_null_in_json_and_kept_in_parquet(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [1.0, math.nan, math.inf, -math.inf])
    for form in ("jsonlines", "parquet"):
        ended = run(tmp_path / "a.parquet", tmp_path / form, output_format=form)
        assert ended.status == 0, ended.output

    lines = (tmp_path / "jsonlines" / "part-00000.jsonl").read_text().splitlines()
    assert [json.loads(line)["y"] for line in lines] == [2.0, None, None, None]
    assert {json.loads(line)["shoal_error"] for line in lines} == {None}
    assert [str(row["y"]) for row in results(tmp_path / "parquet")] == ["2.0", "nan", "inf", "-inf"]


def test_hugging_face_files_are_read_and_not_kept(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    cells = [{"bytes": b"a", "path": "a.txt"}, {"bytes": None, "path": "b.txt"}, {"bytes": b"c", "path": None}]
    parquet.write_table(pa.table({"id": [1, 2, 3], "image": pa.array(cells, kind)}), tmp_path / "a.parquet")
    ended = run(tmp_path / "a.parquet", tmp_path / "out", engine_takes="texts")

    assert ended.status == 0, ended.output
    assert results(tmp_path / "out") == [
        {"id": 1, "length": 1, "upper": "A", "shoal_error": None},
        {"id": 2, "length": None, "upper": None, "shoal_error": "input 'text' does not accept null (column 'image')"},
        {"id": 3, "length": 1, "upper": "C", "shoal_error": None},
    ]
