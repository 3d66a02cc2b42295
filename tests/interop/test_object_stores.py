"""Models in S3, read from moto's server as from the real one."""

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest

from shoal_runtime.errors import LoadError
from shoal_runtime.fetching import Fetcher
from shoal_runtime.readiness import Readiness
from shoal_runtime.storage.listing import tree_digest
from shoal_runtime.unpacking import Limits
from tests.interop.stores import environment, files_in, fill, s3_server

MODEL = {"model.toml": b"name = 'x'\n", "handler.py": b"", "weights/a.bin": bytes(300_000), "weights/b.bin": b"b"}
TWIN = {f"models/mean-old/{path}": b"old" for path in ("model.toml", "other.py")}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with s3_server(port) as url:
        yield url


@pytest.fixture
def bucket(server: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in environment(server).items():
        monkeypatch.setenv(name, value)
    name = f"b-{hashlib.sha256(request.node.name.encode()).hexdigest()[:20]}"
    fill(server, name, {**{f"models/mean/{path}": content for path, content in MODEL.items()}, **TWIN, "one.pt2": b"1"})
    return name


def fetcher(cache: Path, *, checksum: str | None = None, limits: Limits | None = None) -> Fetcher:
    return Fetcher(cache, Readiness(), checksum=checksum, limits=limits, pause_s=lambda attempt: 0.0)


def digest_of(files: dict[str, bytes]) -> str:
    return tree_digest({path: hashlib.sha256(content).hexdigest() for path, content in files.items()})


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_folder_comes_whole_with_empty_files_and_without_its_neighbour(
    bucket: str, slash: str, tmp_path: Path
) -> None:
    found = fetcher(tmp_path).fetch(f"s3://{bucket}/models/mean{slash}")

    assert files_in(found.directory) == MODEL
    assert (found.stem, found.file) == ("mean", None)
    assert found.directory == tmp_path / digest_of(MODEL)


def test_a_key_that_is_one_object_is_that_file(bucket: str, tmp_path: Path) -> None:
    found = fetcher(tmp_path).fetch(f"s3://{bucket}/one.pt2")

    assert (found.stem, found.file) == ("one", "one.pt2")
    assert files_in(found.directory) == {"one.pt2": b"1"}


def test_a_tree_has_a_checksum_and_another_one_is_refused(bucket: str, tmp_path: Path) -> None:
    uri = f"s3://{bucket}/models/mean"

    assert fetcher(tmp_path, checksum=f"sha256:{digest_of(MODEL)}").fetch(uri).stem == "mean"
    with pytest.raises(LoadError, match=f"has sha256:{digest_of(MODEL)}; SHOAL_MODEL_CHECKSUM is sha256:000"):
        fetcher(tmp_path / "other", checksum="sha256:" + 64 * "0").fetch(uri)


def test_what_is_here_is_not_brought_again_until_it_changes(bucket: str, server: str, tmp_path: Path) -> None:
    uri = f"s3://{bucket}/models/mean"
    first = fetcher(tmp_path).fetch(uri)
    (first.directory / "handler.py").write_bytes(b"mark")

    assert fetcher(tmp_path).fetch(uri).directory == first.directory
    assert (first.directory / "handler.py").read_bytes() == b"mark"
    store = fill(server, bucket + "x", {})
    obstore.put(store, "models/mean/handler.py", b"new")
    assert files_in(fetcher(tmp_path).fetch(f"s3://{bucket}x/models/mean").directory) == {"handler.py": b"new"}


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("s3://no-such-bucket-here/model", "there is nothing at s3://no-such-bucket-here/model"),
        ("s3://{bucket}/models/mea", "there is nothing at s3://{bucket}/models/mea"),
        ("s3:///model", "s3:///model names no bucket: s3://BUCKET/PATH"),
    ],
)
def test_what_is_not_there_is_told(bucket: str, uri: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError) as told:
        fetcher(tmp_path).fetch(uri.format(bucket=bucket))

    assert str(told.value) == sentence.format(bucket=bucket)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("limits", "told"),
    [(Limits(max_files=3), "SHOAL_MODEL_MAX_FILES"), (Limits(max_bytes=1000), "SHOAL_MODEL_MAX_BYTES")],
)
def test_limits_are_checked_before_the_first_byte(bucket: str, limits: Limits, told: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=told):
        fetcher(tmp_path, limits=limits).fetch(f"s3://{bucket}/models/mean")

    assert not list(tmp_path.iterdir())
