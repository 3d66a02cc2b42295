"""Rows in buckets, and answers put beside them: stand-ins for the clouds, written to as to the real ones.

Google's takes no objects in the way in which clients write them, so of it rows are only read.
"""

import io
import itertools
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import obstore
import orjson
import pytest
from obstore.store import from_url
from pyarrow import parquet

from tests.interop.stores import Cloud, azure, gcs, s3
from tests.runtime.offline.jobs import begin, records, results, run, write_numbers

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

    assert ended.status == 0, ended.output
    assert [row["y"] for row in rows(bucket, "out")] == [2.0 * each for each in range(ROWS)]
    before = parts(bucket, "out")
    again = run(given, output, shard_bytes=4096)
    assert again.status == 0, again.output
    assert f"({ROWS} before)" in again.output
    assert parts(bucket, "out") == before


def test_each_object_is_a_row(cloud: Cloud, bucket: Any) -> None:
    ended = run(f"{cloud.scheme}://rows/texts/*.txt", f"{cloud.scheme}://rows/said", engine_takes="texts")

    assert ended.status == 0, ended.output
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

    assert ended.status == 0, ended.output
    assert [row["y"] for row in results(tmp_path / "out")] == [2.0, 4.0]


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
    assert "Traceback" not in ended.output
    assert len(ended.output.strip().splitlines()) == 1, ended.output


class Door(BaseHTTPRequestHandler):
    """Stands before a store; what it lets pass, the server says."""

    server: "Doorway"
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if "list-type" not in self.path and next(self.server.asked) >= self.server.good:
            self._tell(403, {"content-length": "0"})
            return
        self._pass()

    def do_HEAD(self) -> None:
        self._pass()

    def _pass(self) -> None:
        sent = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        came = httpx.request(self.command, f"{self.server.url}{self.path}", headers=sent, trust_env=False)
        hop = {"connection", "transfer-encoding"}
        self._tell(came.status_code, {n: v for n, v in came.headers.items() if n.lower() not in hop}, came.content)

    def _tell(self, status: int, headers: Mapping[str, str], content: bytes = b"") -> None:
        self.send_response_only(status)
        for name, value in {"content-length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Doorway(ThreadingHTTPServer):
    """A store whose credentials are good for so many reads of objects; lists and heads go on."""

    def __init__(self, url: str, good: int) -> None:
        super().__init__(("127.0.0.1", 0), Door)
        self.url = url
        self.good = good
        self.asked = itertools.count()


@contextmanager
def expiring(url: str, good: int) -> Iterator[str]:
    with Doorway(url, good) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_credentials_that_expire_amid_the_job_fail_no_row_and_it_goes_on_with_good_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {f"texts/{number:02}.txt": b"text" * 256 for number in range(24)}
    settings: dict[str, Any] = {"engine_takes": "texts", "shard_bytes": 1024}
    with s3() as cloud:
        cloud.fill("rows", texts)
        for name, value in cloud.environment.items():
            monkeypatch.setenv(name, value)
        with expiring(cloud.environment["AWS_ENDPOINT_URL"], 20) as door:
            monkeypatch.setenv("AWS_ENDPOINT_URL", door)
            ended = run("s3://rows/texts/*.txt", tmp_path / "out", **settings)
        assert ended.status == 1, ended.output
        assert "AWS_" in ended.output
        assert "Run the job again" in ended.output
        assert "Traceback" not in ended.output
        done = {name: each for name, each in records(tmp_path / "out").items() if name != "plan"}
        assert 0 < len(done) < len(texts)
        assert sum(each["failed"] for each in done.values()) == 0

        monkeypatch.setenv("AWS_ENDPOINT_URL", cloud.environment["AWS_ENDPOINT_URL"])
        again = run("s3://rows/texts/*.txt", tmp_path / "out", **settings)
    assert again.status == 0, again.output
    assert [row["upper"] for row in results(tmp_path / "out")] == ["TEXT" * 256] * len(texts)
