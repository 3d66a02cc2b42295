"""A batch job on a cluster of Ray with two nodes: its workers share the shards, and each row comes out once."""

import json
from pathlib import Path

import pytest

from tests.interop.environments import HERE, python_with
from tests.interop.test_ray import of_ray
from tests.runtime.offline.jobs import ENGINE, records, results, write_numbers

pytestmark = [pytest.mark.integration, pytest.mark.timeout(500)]

ROWS = 1000


def test_workers_on_two_nodes_share_the_shards_and_each_row_comes_out_once(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(ROWS)], row_groups=100)
    place = tmp_path / "place"
    place.mkdir()
    job = {
        "SHOAL_BATCH_INPUT": str(tmp_path / "a.parquet"),
        "SHOAL_BATCH_OUTPUT": str(tmp_path / "out"),
        "SHOAL_BATCH_SHARD_BYTES": "1024",
        "SHOAL_BATCH_WORKERS": "2",
        "SHOAL_BATCH_ENGINE": f"{python_with('ray')} {ENGINE}",
        # So that both find something to do, whichever comes first.
        "ENGINES_MEET": "2",
        "ENGINES_PLACE": str(place),
    }
    with of_ray(tmp_path, str(HERE / "clients" / "ray_batch.py"), **job) as process:
        out, err = process.communicate(timeout=450)

    assert process.returncode == 0, err[-6000:]
    assert json.loads(out.splitlines()[-1]) == {"status": 0, "nodes": 2}, err[-6000:]
    assert [row["y"] for row in results(tmp_path / "out")] == [2.0 * each for each in range(ROWS)]
    parts = [each for name, each in records(tmp_path / "out").items() if name != "plan"]
    assert sum(each["rows"] for each in parts) == ROWS
    leases = list(tmp_path.glob("out/_shoal/leases/*/*"))
    # More than one worker reads ahead.
    assert len(leases) == len(parts) > 20
    assert {each.read_text() for each in leases} == {"0", "1"}
