"""Models in buckets, read from stand-ins for the three clouds as from the real ones."""

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPConnection
from pathlib import Path

import obstore
import pytest

from shoal_runtime.errors import LoadError
from shoal_runtime.readiness import Readiness
from shoal_runtime.storage.fetching import Fetcher
from shoal_runtime.storage.listing import tree_digest
from shoal_runtime.storage.unpacking import ArchiveLimits
from tests.interop.stores import Cloud, azure, environment, files_in, fill, gcs, s3, s3_server
from tests.ports import free_port

MODEL = {"model.toml": b"name = 'x'\n", "handler.py": b"", "weights/a.bin": bytes(300_000), "weights/b.bin": b"b"}
TWIN = {f"models/mean-old/{path}": b"old" for path in ("model.toml", "other.py")}


OBJECTS = {**{f"models/mean/{path}": content for path, content in MODEL.items()}, **TWIN, "one.pt2": b"1"}


@pytest.fixture(scope="module", params=[s3, gcs, azure], ids=["s3", "gs", "az"])
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    if request.param is azure and shutil.which("npm") is None:
        pytest.skip("azurite is npm's, which is not installed")
    with request.param() as made:
        made.fill("every-cloud", OBJECTS)
        yield made


@pytest.fixture
def place(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket that holds the model, its neighbour and one file."""
    for name, value in cloud.environment.items():
        monkeypatch.setenv(name, value)
    return f"{cloud.scheme}://every-cloud"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server(free_port()) as url:
        yield url


@pytest.fixture
def bucket(server: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in environment(server).items():
        monkeypatch.setenv(name, value)
    name = f"b-{hashlib.sha256(request.node.name.encode()).hexdigest()[:20]}"
    fill(server, name, OBJECTS)
    return name


def fetcher(cache: Path, *, checksum: str | None = None, limits: ArchiveLimits | None = None) -> Fetcher:
    return Fetcher(cache, Readiness(), checksum=checksum, limits=limits, pause_s=lambda attempt: 0.0)


def digest_of(files: dict[str, bytes]) -> str:
    return tree_digest({path: hashlib.sha256(content).hexdigest() for path, content in files.items()})


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_folder_comes_whole_with_empty_files_and_without_its_neighbour(
    place: str, slash: str, tmp_path: Path
) -> None:
    found = fetcher(tmp_path).fetch(f"{place}/models/mean{slash}")

    assert files_in(found.directory) == MODEL
    assert (found.stem, found.file) == ("mean", None)
    assert found.directory == tmp_path / digest_of(MODEL)


def test_a_key_that_is_one_object_is_that_file(place: str, tmp_path: Path) -> None:
    found = fetcher(tmp_path).fetch(f"{place}/one.pt2")

    assert (found.stem, found.file) == ("one", "one.pt2")
    assert files_in(found.directory) == {"one.pt2": b"1"}


def test_a_tree_has_a_checksum_and_another_one_is_refused(bucket: str, tmp_path: Path) -> None:
    uri = f"s3://{bucket}/models/mean"

    assert fetcher(tmp_path, checksum=f"sha256:{digest_of(MODEL)}").fetch(uri).stem == "mean"
    with pytest.raises(
        LoadError, match=rf"has sha256:{digest_of(MODEL)}, but model.checksum \(SHOAL_MODEL_CHECKSUM\) is sha256:000"
    ):
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
        (
            "{scheme}://no-such-bucket-here/model",
            "the bucket no-such-bucket-here does not exist. Correct its name, or the address of the store",
        ),
        ("{scheme}://every-cloud/models/mea", "there are no files at {scheme}://every-cloud/models/mea"),
        ("{scheme}:///model", "{scheme}://BUCKET/PATH"),
    ],
)
def test_what_is_not_there_is_told(place: str, uri: str, sentence: str, tmp_path: Path) -> None:
    scheme = place.partition(":")[0]
    if "no-such-bucket" in uri and scheme == "gs":
        sentence = (
            "{scheme}://no-such-bucket-here/model cannot be downloaded: the store returned 500 Internal Server Error"
        )
    with pytest.raises(LoadError) as expected:
        fetcher(tmp_path).fetch(uri.format(scheme=scheme))

    assert sentence.format(scheme=scheme) in str(expected.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("limits", "expected"),
    [(ArchiveLimits(max_files=3), "SHOAL_MODEL_MAX_FILES"), (ArchiveLimits(max_bytes=1000), "SHOAL_MODEL_MAX_BYTES")],
)
def test_limits_are_checked_before_the_first_byte(
    bucket: str, limits: ArchiveLimits, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=expected):
        fetcher(tmp_path, limits=limits).fetch(f"s3://{bucket}/models/mean")

    assert not list(tmp_path.iterdir())


WRONG: Mapping[str, Sequence[tuple[Mapping[str, str], str]]] = {
    "az": [
        (
            {"AZURE_STORAGE_ACCOUNT_KEY": "c2VjcmV0LW9mLXJlYWRlcg=="},
            "the credentials do not allow reading {uri}. Check AZURE_STORAGE_ACCOUNT_NAME",
        ),
        (
            {"AZURE_STORAGE_ACCOUNT_KEY": "", "AZURE_STORAGE_SAS_TOKEN": "sv=2020-01-01&sig=secret-of-reader&sr=c"},
            "the credentials do not allow reading {uri}. Check AZURE_STORAGE_ACCOUNT_NAME",
        ),
        (
            {"AZURE_STORAGE_ACCOUNT_KEY": "!secret-of-reader"},
            "{uri} cannot be read: Generic MicrosoftAzure error: Invalid Access Key: Invalid symbol",
        ),
        (
            {"AZURE_STORAGE_ACCOUNT_NAME": ""},
            "{uri} cannot be read: Generic MicrosoftAzure error: Account must be specified. Check AZURE",
        ),
    ],
    "s3": [
        (
            {
                "AWS_ACCESS_KEY_ID": "",
                "AWS_SECRET_ACCESS_KEY": "",
                "AWS_METADATA_ENDPOINT": "http://127.0.0.1:1",
            },
            "{uri} cannot be downloaded: no credentials were found. Set AWS_ACCESS_KEY_ID",
        ),
        (
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
            "{uri} cannot be downloaded: HTTP error: error sending request",
        ),
    ],
    "gs": [
        (
            {"GOOGLE_APPLICATION_CREDENTIALS": "/nowhere", "GOOGLE_SKIP_SIGNATURE": ""},
            "{uri} cannot be read: Generic GCS error: Unable to open service account file from /nowhere",
        ),
        (
            {"GOOGLE_SERVICE_ACCOUNT_KEY": '{"private_key": "secret-of-reader"}', "GOOGLE_SKIP_SIGNATURE": ""},
            "{uri} cannot be read: Generic GCS error: GCP credential error: Unable to decode service account file",
        ),
    ],
}


def test_wrong_credentials_are_told_with_the_remedy_and_are_not_repeated(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for settings, expected in WRONG[place.partition(":")[0]]:
        with monkeypatch.context() as patch:
            for name, value in settings.items():
                patch.setenv(name, value) if value else patch.delenv(name, raising=False)
            with pytest.raises(LoadError) as error:
                fetcher(tmp_path).fetch(f"{place}/models/mean")

        assert str(error.value).startswith(expected.replace("{uri}", f"{place}/models/mean"))
        assert "secret-of-reader" not in str(error.value) + caplog.text
        assert "c2VjcmV0" not in str(error.value) + caplog.text


def test_a_key_that_leads_out_of_the_folder_is_refused(bucket: str, server: str, tmp_path: Path) -> None:
    connection = HTTPConnection(server.removeprefix("http://"))
    connection.request("PUT", f"/{bucket}/models/mean/%2e%2e/up", body=b"1")
    assert connection.getresponse().status == 200
    connection.close()

    with pytest.raises(LoadError, match=r"has a key outside of its directory\. Remove it"):
        fetcher(tmp_path).fetch(f"s3://{bucket}/models/mean")
    assert not list(tmp_path.iterdir())
