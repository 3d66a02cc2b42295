"""Rows in buckets, and answers put beside them: stand-ins for the clouds, written to as to the real ones.

Google's takes no objects in the way in which clients write them, so of it rows are only read.
"""

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import orjson
import pytest
from obstore.store import from_url
from pyarrow import parquet

from tests.interop.stores import Cloud, azure, gcs, s3
from tests.runtime.offline.jobs import answers, begin, run, write_numbers

ROWS = 300


@pytest.fixture(scope="module", params=[s3, azure], ids=["s3", "az"])
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    if request.param is azure and shutil.which("npm") is None:
        pytest.skip("azurite is npm's, which is not installed")
    folder = tmp_path_factory.mktemp("rows")
    write_numbers(folder / "a.parquet", [float(each) for each in range(ROWS)], row_groups=30)
    texts = {f"texts/{name}.txt": name.encode() for name in ("b", "a", "c")}
    with request.param() as made:
        made.fill("rows", {"in/a.parquet": (folder / "a.parquet").read_bytes(), "in/_SUCCESS": b"", **texts})
        yield made


@pytest.fixture
def bucket(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in cloud.environment.items():
        monkeypatch.setenv(name, value)
    return from_url(f"{cloud.scheme}://rows", client_options={"allow_http": True})


def parts(bucket: Any, prefix: str) -> dict[str, bytes]:
    keys = sorted(each["path"] for chunk in obstore.list(bucket, prefix=prefix) for each in chunk)
    return {key.removeprefix(f"{prefix}/"): bytes(obstore.get(bucket, key).bytes()) for key in keys}


def rows(bucket: Any, prefix: str) -> list[dict[str, Any]]:
    tables = [
        parquet.read_table(io.BytesIO(text)) for key, text in parts(bucket, prefix).items() if key.startswith("part-")
    ]
    return [row for table in tables for row in table.to_pylist()]


def test_answers_are_put_beside_their_records_and_a_second_run_finds_them_done(cloud: Cloud, bucket: Any) -> None:
    given, output = f"{cloud.scheme}://rows/in", f"{cloud.scheme}://rows/out"
    ended = run(given, output, shard_bytes=4096)

    assert ended.status == 0, ended.said
    assert [row["y"] for row in rows(bucket, "out")] == [2.0 * each for each in range(ROWS)]
    before = parts(bucket, "out")
    again = run(given, output, shard_bytes=4096)
    assert again.status == 0, again.said
    assert f"({ROWS} before)" in again.said
    assert parts(bucket, "out") == before


def test_each_object_is_a_row(cloud: Cloud, bucket: Any) -> None:
    ended = run(f"{cloud.scheme}://rows/texts/*.txt", f"{cloud.scheme}://rows/said", engine_takes="texts")

    assert ended.status == 0, ended.said
    assert [(row["path"], row["upper"]) for row in rows(bucket, "said")] == [
        ("a.txt", "A"),
        ("b.txt", "B"),
        ("c.txt", "C"),
    ]


def test_rows_are_read_from_google_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_numbers(tmp_path / "a.parquet", [1.0, 2.0])
    with gcs() as cloud:
        cloud.fill("rows", {"in/a.parquet": (tmp_path / "a.parquet").read_bytes()})
        for name, value in cloud.environment.items():
            monkeypatch.setenv(name, value)
        ended = run("gs://rows/in/*.parquet", tmp_path / "out")

    assert ended.status == 0, ended.said
    assert [row["y"] for row in answers(tmp_path / "out")] == [2.0, 4.0]


def test_workers_at_once_do_each_shard_once(cloud: Cloud, bucket: Any, tmp_path: Path) -> None:
    given, output = f"{cloud.scheme}://rows/in/a.parquet", f"{cloud.scheme}://rows/shared"
    settings: dict[str, Any] = {"shard_bytes": 1024, "workers": 3, "run": "r", "engine_pause_s": 0.01}
    workers = [begin(given, output, worker=number, **settings) for number in range(3)]

    assert [worker.wait(120) for worker in workers] == [0, 0, 0]
    assert [row["y"] for row in rows(bucket, "shared")] == [2.0 * each for each in range(ROWS)]
    there = parts(bucket, "shared")
    records = [orjson.loads(text) for key, text in there.items() if key.startswith("_shoal/part-")]
    leases = [key for key in there if key.startswith("_shoal/leases/r/")]
    assert sum(record["rows"] for record in records) == ROWS
    assert len(leases) == len(records)


def test_what_may_not_be_read_is_a_sentence(cloud: Cloud, bucket: Any) -> None:
    ended = run(f"{cloud.scheme}://nowhere/in/*.parquet", f"{cloud.scheme}://rows/none")

    assert ended.status in {1, 2}
    assert "Traceback" not in ended.said
    assert len(ended.said.strip().splitlines()) == 1, ended.said
