"""Whole jobs, each a process, as `shoal batch` starts them: every row comes out once, whatever happens."""

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

from tests.runtime.offline.jobs import answers, begin, kill, records, run, write_numbers


def written(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_rows_come_out_in_order_with_what_was_kept_and_one_record_a_shard(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(100)], row_groups=7)
    ended = run(tmp_path / "a.parquet", tmp_path / "out", shard_bytes=1024)

    assert ended.status == 0, ended.said
    assert [(row["id"], row["x"], row["y"], row["shoal_error"]) for row in answers(tmp_path / "out")] == [
        (number, [number], 2 * number, None) for number in range(100)
    ]
    known = records(tmp_path / "out")
    parts = [name for name in known if name != "plan"]
    assert len(parts) > 2
    assert sum(known[name]["rows"] for name in parts) == 100
    assert "rows        100" in ended.said


def test_one_that_fails_fails_alone_whatever_it_does(tmp_path: Path) -> None:
    numbers = [float(each) for each in range(60)]
    numbers[7], numbers[20], numbers[21], numbers[50] = -1, -2, -3, -3
    write_numbers(tmp_path / "a.parquet", numbers)
    ended = run(tmp_path / "a.parquet", tmp_path / "out")

    assert ended.status == 0, ended.said
    rows = answers(tmp_path / "out")
    killed = "the model's process was ended by SIGKILL (memory may have run out) while it ran this row"
    assert {row["id"]: row["shoal_error"] for row in rows if row["shoal_error"]} == {
        7: "minus one is no good",
        20: "forward raised ValueError: minus two",
        21: killed,
        50: killed,
    }
    assert [row["y"] for row in rows if not row["shoal_error"]] == [2 * each for each in numbers if each >= 0]
    assert records(tmp_path / "out")["part-00000"]["failed"] == 4


def test_where_memory_runs_out_batches_are_smaller_and_nothing_is_lost(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(50)])
    ended = run(tmp_path / "a.parquet", tmp_path / "out", engine_memory=3)

    assert ended.status == 0, ended.said
    assert [row["y"] for row in answers(tmp_path / "out")] == [2.0 * each for each in range(50)]
    assert records(tmp_path / "out")["part-00000"]["batch_size"] <= 4


def test_rows_that_fail_go_to_a_folder_of_their_own(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [1.0, -1.0, 2.0])
    ended = run(tmp_path / "a.parquet", tmp_path / "out", errors=tmp_path / "bad", keep="id")

    assert ended.status == 0, ended.said
    assert answers(tmp_path / "out") == [{"id": 0, "y": 2.0}, {"id": 2, "y": 4.0}]
    assert answers(tmp_path / "bad") == [{"id": 1, "y": None, "shoal_error": "minus one is no good"}]


def test_no_two_jobs_write_into_one_folder(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [1.0, -1.0])
    assert run(tmp_path / "a.parquet", tmp_path / "out", errors=tmp_path / "bad").status == 0
    before = written(tmp_path / "out") | written(tmp_path / "bad")
    said = [
        run(tmp_path / "a.parquet", tmp_path / "new", errors=tmp_path / "x" / ".." / "new"),
        run(tmp_path / "a.parquet", tmp_path / "new", errors=tmp_path / "bad"),
        run(tmp_path / "a.parquet", tmp_path / "new", errors=tmp_path / "out"),
        run(tmp_path / "a.parquet", tmp_path / "bad"),
    ]

    assert [each.status for each in said] == [2, 2, 2, 2]
    assert "new holds the answers: name another folder for the rows that failed" in said[0].said
    assert "bad belongs to another job" in said[1].said
    assert "out belongs to another job" in said[2].said
    assert f"bad holds rows that failed of {tmp_path / 'out'}: name another --output" in said[3].said
    assert written(tmp_path / "out") | written(tmp_path / "bad") == before
    assert run(tmp_path / "a.parquet", tmp_path / "out", errors=tmp_path / "bad").status == 0


def test_what_was_begun_is_gone_on_with_and_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(90)], row_groups=9)
    whole = run(tmp_path / "a.parquet", tmp_path / "whole", shard_bytes=1024)
    assert whole.status == 0, whole.said

    process = begin(tmp_path / "a.parquet", tmp_path / "out", shard_bytes=1024, engine_pause_s=0.3)
    while not list((tmp_path / "out").glob("_shoal/part-*.json")):
        assert process.poll() is None
    kill(process)
    before = {name: text for name, text in written(tmp_path / "out").items() if "part" in name and ".begun" not in name}
    (tmp_path / "out" / ".begun-part-00099.parquet-of-one-long-gone").touch()
    again = run(tmp_path / "a.parquet", tmp_path / "out", shard_bytes=1024)

    assert again.status == 0, again.said
    assert "before)" in again.said
    after = written(tmp_path / "out")
    assert {name: after[name] for name in before} == before
    assert after == written(tmp_path / "whole")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"engine_model": "sha256:2"}, "model was sha256:1 and is sha256:2"),
        ({"shard_bytes": 4096}, "shard size (shardBytes) was 67108864 and is 4096"),
        ({"keep": "id"}, '--keep was ["id","x"] and is ["id"]'),
        ({"where": "id < 5"}, "--where was null and is id < 5"),
        ({"size": 3}, "--batch-size was 8 and is 3"),
    ],
)
def test_another_job_is_not_mixed_with_what_was_begun(tmp_path: Path, settings: Any, said: str) -> None:
    write_numbers(tmp_path / "a.parquet", [1.0, 2.0])
    assert run(tmp_path / "a.parquet", tmp_path / "out").status == 0
    before = written(tmp_path / "out")
    ended = run(tmp_path / "a.parquet", tmp_path / "out", **settings)

    assert ended.status == 2
    assert f"holds answers of another job: {said}. Give this one another --output" in ended.said
    assert written(tmp_path / "out") == before


def test_an_input_that_has_more_files_is_not_gone_on_with(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [1.0, 2.0])
    assert run(f"{tmp_path}/*.parquet", tmp_path / "out").status == 0
    write_numbers(tmp_path / "b.parquet", [1.0, 2.0, 3.0])
    ended = run(f"{tmp_path}/*.parquet", tmp_path / "out")

    assert ended.status == 2
    assert "another job: set of the input's files was 1, named " in ended.said


def test_two_attempts_at_once_end_well(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(60)], row_groups=6)
    assert run(tmp_path / "a.parquet", tmp_path / "whole", shard_bytes=1024).status == 0
    other = begin(tmp_path / "a.parquet", tmp_path / "out", shard_bytes=1024, engine_pause_s=0.01)
    ended = run(tmp_path / "a.parquet", tmp_path / "out", shard_bytes=1024, engine_pause_s=0.01)

    assert ended.status == 0, ended.said
    assert other.wait(60) == 0
    assert written(tmp_path / "out") == written(tmp_path / "whole")


def test_workers_share_the_shards_and_one_that_died_is_followed_by_another(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(120)], row_groups=12)
    settings: dict[str, Any] = {"shard_bytes": 1024, "workers": 2, "run": "r1", "engine_pause_s": 0.02}
    first = begin(tmp_path / "a.parquet", tmp_path / "out", worker=0, **settings)
    second = begin(tmp_path / "a.parquet", tmp_path / "out", worker=1, **settings)
    while not list((tmp_path / "out").glob("_shoal/leases/r1/*")):
        assert first.poll() is None
    kill(first)
    assert second.wait(60) == 0
    assert run(tmp_path / "a.parquet", tmp_path / "out", worker=0, **settings).status == 0

    assert [row["y"] for row in answers(tmp_path / "out")] == [2.0 * each for each in range(120)]
    plan = records(tmp_path / "out")
    assert sum(each["rows"] for name, each in plan.items() if name != "plan") == 120


def test_several_engines_answer_alike(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(200)])
    ended = run(tmp_path / "a.parquet", tmp_path / "out", engines=3)

    assert ended.status == 0, ended.said
    assert [row["y"] for row in answers(tmp_path / "out")] == [2.0 * each for each in range(200)]


def test_lines_of_csv_are_rows_and_a_bad_cell_is_its_rows_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,x,note\n1,1.5,"two\nlines"\n2,abc,b\n3,,c\n4,2,\n')
    (tmp_path / "b.csv").write_text('id,x,note\n1,1.5,"two\nlines"\n4,2,\n')
    ended = run(tmp_path / "b.csv", tmp_path / "out", columns='{"x": "x"}')

    assert ended.status == 0, ended.said
    assert answers(tmp_path / "out") == [
        {"id": "1", "x": "1.5", "note": "two\nlines", "y": 3.0, "shoal_error": None},
        {"id": "4", "x": "2", "note": None, "y": 4.0, "shoal_error": None},
    ]
    (tmp_path / "c.csv").write_text("id,x,note\n1,NA,NA\n2,abc,nan\n")
    both = run(f"{tmp_path}/[ac].csv", tmp_path / "both")
    assert both.status == 0, both.said
    assert answers(tmp_path / "both")[1:] == [
        {"id": "2", "x": "abc", "note": "b", "y": None, "shoal_error": "x is 'abc', which is no number"},
        {"id": "3", "x": None, "note": "c", "y": None, "shoal_error": "input 'x' does not accept null"},
        {"id": "4", "x": "2", "note": None, "y": 4.0, "shoal_error": None},
        {"id": "1", "x": "NA", "note": "NA", "y": None, "shoal_error": "x is 'NA', which is no number"},
        {"id": "2", "x": "abc", "note": "nan", "y": None, "shoal_error": "x is 'abc', which is no number"},
    ]


def test_lines_of_json_are_rows_and_a_bad_line_is_an_error(tmp_path: Path) -> None:
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

    assert ended.status == 0, ended.said
    rows = [json.loads(line) for line in (tmp_path / "out" / "part-00000.jsonl").read_text().splitlines()]
    assert [(row["text"], row["n"], row["upper"]) for row in rows] == [
        ("a", 1, "A"),
        (None, None, None),
        (None, None, None),
        ("b", None, None),
        (None, None, None),
        ("c", None, "C"),
    ]
    assert [(row["shoal_error"] or "")[:21] for row in rows] == [
        "",
        "the line is no JSON: ",
        "the line is JSON, but",
        "n is 'x', which is no",
        "input 'text' does not",
        "",
    ]


def test_each_file_of_a_folder_is_a_row(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.txt", ".hidden"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(f"text of {name}")
    ended = run(tmp_path / "in", tmp_path / "out", engine_takes="texts")

    assert ended.status == 0, ended.said
    assert [(row["path"], row["upper"]) for row in answers(tmp_path / "out")] == [
        ("a.txt", "TEXT OF A.TXT"),
        ("b.txt", "TEXT OF B.TXT"),
        ("sub/c.txt", "TEXT OF SUB/C.TXT"),
    ]


def test_what_the_job_wrote_is_none_of_its_rows_and_links_in_circles_end(tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / "a.txt").write_text("a")
    (tmp_path / "in" / "sub" / os.fsdecode(b"\xff.txt")).write_text("b")
    (tmp_path / "in" / "sub" / "up").symlink_to(tmp_path / "in")
    for _ in range(2):
        ended = run(tmp_path / "in", tmp_path / "in" / "out", engine_takes="texts", output_format="jsonlines")
        assert ended.status == 0, ended.said

    lines = (tmp_path / "in" / "out" / "part-00000.jsonl").read_text().splitlines()
    assert [json.loads(line)["path"] for line in lines] == ["sub/a.txt", "sub/\\xff.txt"]


@pytest.mark.parametrize(
    ("name", "text", "status", "said"),
    [
        ("a.csv", "x,x\n1,2\n", 1, "a.csv has two columns called x"),
        (
            "a.jsonl",
            '{"x": 1, "n": 123456789012345678901234567890}\n',
            2,
            "the column n holds nothing but what is of no type",
        ),
        ("a.parquet", "no parquet", 1, "a.parquet cannot be read: Parquet magic bytes not found"),
        ("a.csv", "", 1, "a.csv cannot be read: it is empty"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, status: int, said: str) -> None:
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    ended = run(tmp_path / name, tmp_path / "out")

    assert ended.status == status
    assert said in ended.said
    assert "Traceback" not in ended.said


def test_an_input_without_rows_has_answers_of_the_same_schema(tmp_path: Path) -> None:
    write_numbers(tmp_path / "none.parquet", [])
    write_numbers(tmp_path / "some.parquet", [1.0])
    assert run(tmp_path / "none.parquet", tmp_path / "none").status == 0
    assert run(tmp_path / "some.parquet", tmp_path / "some").status == 0

    schemas = [parquet.read_schema(tmp_path / name / "part-00000.parquet") for name in ("none", "some")]
    assert schemas[0] == schemas[1]
    assert answers(tmp_path / "none") == []


def test_only_the_rows_that_are_meant_are_scored(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(20)])
    ended = run(tmp_path / "a.parquet", tmp_path / "out", where="id >= 5 and id < 8 or id == 19", keep="id")

    assert ended.status == 0, ended.said
    assert [row["id"] for row in answers(tmp_path / "out")] == [5, 6, 7, 19]


def test_too_many_errors_end_the_job_with_their_reasons_and_it_may_be_gone_on_with(tmp_path: Path) -> None:
    numbers = [float(each) for each in range(40)]
    numbers[:12] = [-1.0] * 12
    write_numbers(tmp_path / "a.parquet", numbers)
    ended = run(tmp_path / "a.parquet", tmp_path / "out")

    assert ended.status == 1
    assert (
        "12 of 40 rows failed, more than --max-error-share 0.01 allows. They say: minus one is no good (12)."
        in ended.said
    )
    again = run(tmp_path / "a.parquet", tmp_path / "out", max_error_share="0.5")
    assert again.status == 0, again.said


def test_a_job_whose_rows_all_fail_has_failed_however_few_they_are(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [-1.0, -1.0])

    assert run(tmp_path / "a.parquet", tmp_path / "out").status == 1
    assert run(tmp_path / "a.parquet", tmp_path / "out", max_error_share="1").status == 0


def test_a_corrupt_file_costs_its_own_rows_until_it_is_put_right(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_numbers(tmp_path / f"{name}.parquet", [1.0, 2.0])
    good = (tmp_path / "b.parquet").read_bytes()
    (tmp_path / "b.parquet").write_bytes(good[: len(good) // 2] + b"\0" * (len(good) - len(good) // 2))
    ended = run(f"{tmp_path}/*.parquet", tmp_path / "out")

    assert ended.status == 1
    assert "1 of 3 shards could not be done, first: b.parquet cannot be read" in ended.said
    assert len(answers(tmp_path / "out")) == 4
    (tmp_path / "b.parquet").write_bytes(good)
    again = run(f"{tmp_path}/*.parquet", tmp_path / "out")
    assert again.status == 0, again.said
    assert len(answers(tmp_path / "out")) == 6
    write_numbers(tmp_path / "b.parquet", [3.0])
    changed = run(f"{tmp_path}/*.parquet", tmp_path / "out")
    assert changed.status == 2
    assert "b.parquet has changed since its rows were scored (part-00001 of" in changed.said


@pytest.mark.parametrize(
    ("given", "settings", "status", "said"),
    [
        ("none/*.parquet", {}, 2, "there are no files at"),
        ("a.parquet", {"columns": '{"x": "absent"}'}, 2, "there is no column absent"),
        ("a.parquet", {"where": "absent > 1"}, 2, "--where names absent"),
        ("a.parquet", {"keep": "absent"}, 2, "there is no column absent to keep"),
        ("a.parquet", {"engine_refuses": "no weights"}, 1, "the model cannot be had: no weights"),
        ("a.parquet", {"max_error_share": "2"}, 2, "SHOAL_BATCH_MAX_ERROR_SHARE must be 0 to 1, not '2'"),
        (
            "a.parquet",
            {"engine": "false"},
            1,
            "the model's process ended with exit status 1 before it was ready, 3 times",
        ),
        ("http://example.com/a.parquet", {}, 2, "must be a path, or begin with one of file://"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_begun(
    tmp_path: Path, given: str, settings: Any, status: int, said: str
) -> None:
    write_numbers(tmp_path / "a.parquet", [1.0])
    ended = run(given if "://" in given else tmp_path / given, tmp_path / "out", **settings)

    assert (ended.status, said in ended.said) == (status, True), ended.said
    assert "Traceback" not in ended.said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["plan", "part-00000"])
def test_what_was_written_down_and_is_spoilt_is_named(tmp_path: Path, name: str) -> None:
    write_numbers(tmp_path / "a.parquet", [1.0])
    assert run(tmp_path / "a.parquet", tmp_path / "out").status == 0
    (tmp_path / "out" / "_shoal" / f"{name}.json").write_text("{}")
    ended = run(tmp_path / "a.parquet", tmp_path / "out")

    assert ended.status == 2
    assert f"_shoal/{name}.json of " in ended.said
    assert "Traceback" not in ended.said


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [1.0])
    (tmp_path / "out").write_text("a file")
    ended = run(tmp_path / "a.parquet", tmp_path / "out")

    assert ended.status == 2
    assert "out is a file: name a folder for the answers" in ended.said
    ended = run(tmp_path / "a.parquet", tmp_path / "out" / "below")
    assert ended.status == 1
    assert "failed-rows-of cannot be read: Not a directory" in ended.said
    assert "Traceback" not in ended.said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_nothing_half_written_and_no_engine_left(tmp_path: Path, number: signal.Signals) -> None:
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(90)], row_groups=9)
    process = begin(tmp_path / "a.parquet", tmp_path / "out", shard_bytes=1024, engine_pause_s=0.3)
    while not list((tmp_path / "out").glob("_shoal/part-*.json")):
        assert process.poll() is None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(number)

    assert process.wait(10) == 130
    assert not [name for name in written(tmp_path / "out") if ".begun" in name]
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_an_engine_whose_program_was_killed_ends(tmp_path: Path) -> None:
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


def test_what_is_known_stands_beside_what_the_model_says(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"id": [1, 2], "x": [1.5, 2.0], "y": [3.0, 5.0]}), tmp_path / "a.parquet")
    ended = run(tmp_path / "a.parquet", tmp_path / "out", keep="id,truth=y")

    assert ended.status == 0, ended.said
    assert answers(tmp_path / "out") == [
        {"id": 1, "truth": 3.0, "y": 3.0, "shoal_error": None},
        {"id": 2, "truth": 5.0, "y": 4.0, "shoal_error": None},
    ]
    assert records(tmp_path / "out")["plan"]["keep"] == ["id", "truth=y"]
    assert run(tmp_path / "a.parquet", tmp_path / "out", keep="id,truth=y").status == 0


def test_a_table_of_the_kept_columns_is_what_it_was(tmp_path: Path) -> None:
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

    assert ended.status == 0, ended.said
    found = parquet.read_table(tmp_path / "out" / "part-00000.parquet")
    assert found.select(table.column_names).cast(table.schema).equals(table)


def test_what_json_does_not_know_is_null_in_its_lines_and_itself_in_parquet(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [1.0, math.nan, math.inf, -math.inf])
    for form in ("jsonlines", "parquet"):
        ended = run(tmp_path / "a.parquet", tmp_path / form, output_format=form)
        assert ended.status == 0, ended.said

    lines = (tmp_path / "jsonlines" / "part-00000.jsonl").read_text().splitlines()
    assert [json.loads(line)["y"] for line in lines] == [2.0, None, None, None]
    assert {json.loads(line)["shoal_error"] for line in lines} == {None}
    assert [str(row["y"]) for row in answers(tmp_path / "parquet")] == ["2.0", "nan", "inf", "-inf"]


def test_files_beside_their_paths_are_read_and_not_kept(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    cells = [{"bytes": b"a", "path": "a.txt"}, {"bytes": None, "path": "b.txt"}, {"bytes": b"c", "path": None}]
    parquet.write_table(pa.table({"id": [1, 2, 3], "image": pa.array(cells, kind)}), tmp_path / "a.parquet")
    ended = run(tmp_path / "a.parquet", tmp_path / "out", engine_takes="texts")

    assert ended.status == 0, ended.said
    assert answers(tmp_path / "out") == [
        {"id": 1, "length": 1, "upper": "A", "shoal_error": None},
        {"id": 2, "length": None, "upper": None, "shoal_error": "input 'text' does not accept null (column 'image')"},
        {"id": 3, "length": 1, "upper": "C", "shoal_error": None},
    ]
