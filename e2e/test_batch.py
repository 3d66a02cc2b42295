"""The pods of a Job score the rows of files, and the status reports their progress."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import yaml
from pyarrow import parquet

from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually


@pytest.fixture
def rows() -> Iterator[Path]:
    """Write four files of ten rows, where pods see them: each has a folder ``/tmp`` of its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o777)
        yield write_rows(Path(name) / "in")


def write_rows(folder: Path) -> Path:
    """Write the files."""
    folder.mkdir()
    for part in range(4):
        values = pyarrow.array([[float(part), float(row)] for row in range(10)])
        parquet.write_table(pyarrow.table({"x": values, "id": list(range(10))}), folder / f"part-{part}.parquet")
    return folder


def body(rows: Path, **spec: Any) -> dict[str, Any]:
    """Return a job that scores the rows; the model is ``examples/adder``."""
    whole = {
        "model": {"uri": "file:///models/adder", "parameters": {"columns": 2}},
        "input": {"uri": f"file://{rows}"},
        "output": {"uri": f"file://{rows.parent / 'out'}"},
        "shardBytes": 1024,
        "parallelism": 2,
        **spec,
    }
    return {
        "apiVersion": "serving.shoal.dev/v1alpha1",
        "kind": "BatchInference",
        "metadata": {"name": "score"},
        "spec": whole,
    }


def status(cluster: Cluster) -> dict[str, Any]:
    """Return the status of the job."""
    return dict((cluster.get("batchinf", "score") or {}).get("status", {}))


def ended(cluster: Cluster) -> dict[str, Any]:
    """Return the status once the job has ended."""
    ends = ("Complete", "JobFailed")
    eventually(
        lambda: status(cluster).get("reason") in ends, lambda: json.dumps(status(cluster), indent=1), within_s=180
    )
    return status(cluster)


def test_rows_are_scored_and_nothing_is_run_again_when_the_job_has_gone(namespace: Cluster, rows: Path) -> None:
    namespace.kubectl("apply", "--filename", "-", text=yaml.safe_dump(body(rows, ttlSecondsAfterFinished=0)))
    result = ended(namespace)

    assert result["reason"] == "Complete", result["message"]
    assert result["shards"]["text"] == "4/4"
    assert (result["rows"], result["failedRows"]) == (40, 0)
    assert parquet.read_table(rows.parent / "out").num_rows == 40
    eventually(lambda: namespace.get("job", "score") is None)
    assert status(namespace)["reason"] == "Complete"
    refused = namespace.kubectl(
        "patch", "batchinf", "score", "--type=merge", "--patch", '{"spec":{"model":{"uri":"file:///x"}}}', check=False
    )
    assert "model cannot be changed" in refused.stderr
    namespace.kubectl("delete", "batchinf", "score")


def test_a_suspended_job_waits_and_goes_with_its_owner(namespace: Cluster, rows: Path) -> None:
    namespace.kubectl("apply", "--filename", "-", text=yaml.safe_dump(body(rows, suspend=True)))
    eventually(lambda: status(namespace).get("reason") == "Suspended", lambda: json.dumps(status(namespace)))
    namespace.kubectl("delete", "batchinf", "score")

    eventually(lambda: namespace.get("job", "score") is None)
