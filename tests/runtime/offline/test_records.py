"""Plan and records of a job, and the difference of two plans."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal_runtime.offline.directories import LocalDirectory
from shoal_runtime.offline.errors import InvalidSettings
from shoal_runtime.offline.job import agree_on_plan
from shoal_runtime.offline.records import PLAN as PLAN_NAME
from shoal_runtime.offline.records import JobPlan, ShardRecord, difference, lease_name, record_name

PLAN = JobPlan(
    input="/in",
    files="f1",
    format="Parquet",
    columns={"x": ["a", "b"]},
    where=None,
    keep=["id"],
    errors="Column",
    output_format="Parquet",
    shard_bytes=64,
    model="sha256:1",
    settings={"dtype": "Auto", "parameters": {"k": 1}},
    schema="c2NoZW1h",
    batch_size=8,
)


def test_a_plan_is_read_as_it_was_written() -> None:
    assert JobPlan.decoded(PLAN.encoded()) == PLAN
    assert difference(JobPlan.decoded(PLAN.encoded()), PLAN) is None


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"unknown": 1}', b"no json"])
def test_invalid_plans_are_rejected(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        JobPlan.decoded(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "sha256:2"}, "model was sha256:1 and is sha256:2"),
        ({"columns": {"x": ["a"]}}, '--columns (x) was ["a","b"] and is ["a"]'),
        ({"settings": {"dtype": "Float16"}}, "settings of the model (dtype) was Auto and is Float16"),
        ({"where": "a > 1"}, "--where was null and is a > 1"),
        ({"files": "f2"}, "set of the input's files was f1 and is f2"),
        ({"batch_size": 9}, "--batch-size was 8 and is 9"),
        ({"input": "x" * 200}, f"input was /in and is {'x' * 77}..."),
    ],
)
def test_the_first_difference_of_two_plans_is_named(change: Any, message: str) -> None:
    assert difference(PLAN, replace(PLAN, **change)) == message


def test_all_workers_use_the_first_recorded_batch_size(tmp_path: Path) -> None:
    output, planned = LocalDirectory(tmp_path), replace(PLAN, batch_size=0)

    assert agree_on_plan(output, None, planned, lambda: 16) == replace(PLAN, batch_size=16)
    assert agree_on_plan(output, None, planned, lambda: 32) == replace(PLAN, batch_size=16)
    assert agree_on_plan(output, output.read(PLAN_NAME), planned, lambda: 64) == replace(PLAN, batch_size=16)
    with pytest.raises(InvalidSettings, match="--batch-size was 16 and is 8"):
        agree_on_plan(output, None, PLAN, lambda: 8)


def test_a_record_is_read_as_it_was_written() -> None:
    record = ShardRecord("part-00001", {"files": ["a"], "start": 0, "stop": 9}, "v", 10, 2, ["bad"], "sha256:1", 8)

    assert ShardRecord.decoded(record.encoded()) == record
    assert record.name == record_name("part-00001") == "_shoal/part-00001.json"


def test_leases_differ_between_runs() -> None:
    assert len({lease_name("part-00001", run) for run in ("", "a", "b")}) == 3
    assert lease_name("part-00001", "a") == "_shoal/leases/a/part-00001"
