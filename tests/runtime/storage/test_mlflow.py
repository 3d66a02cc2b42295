"""What an MLflow server may answer that the real one in tests/interop does not."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal_runtime.errors import LoadError
from shoal_runtime.readiness import Readiness
from shoal_runtime.storage.fetching import Fetcher
from shoal_runtime.storage.unpacking import ArchiveLimits
from tests.runtime.storage.stand_in import StandIn, serving

MODEL = {"": [{"path": "a", "file_size": "1"}, {"path": "sub", "is_dir": True}], "sub": [{"path": "b", "file_size": 2}]}
CONTENT = {"a": b"1", "sub/b": b"22"}
WHERE = "mlflow-artifacts:/0/models/m-1/artifacts"


class Registry(StandIn):
    """Version 1 of `iris` lies in the server's own store; what else is answered, each test says."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.sends_on: dict[str, str] = {}
        super().__init__()
        self.says("/mlflow/model-versions/get-download-uri?name=iris&version=1", {"artifact_uri": WHERE})
        self.store("0/models/m-1/artifacts")

    def says(self, route: str, answer: object, status: int = 200) -> None:
        """Answer a route with JSON."""
        self.answers[f"/api/2.0{route}"] = (status, json.dumps(answer).encode())

    def store(self, root: str) -> None:
        """Keep the model below a path."""
        for folder, files in MODEL.items():
            path = f"{root}/{folder}".strip("/").replace("/", "%2F")
            self.says(f"/mlflow-artifacts/artifacts?path={path}", {"files": files})
        for path, content in CONTENT.items():
            self.answers[f"/api/2.0/mlflow-artifacts/artifacts/{root}/{path}"] = (200, content)

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Say what the test has laid down."""
        if path in self.sends_on:
            return 302, b"", {"location": self.sends_on[path]}
        status, body = self.answers.get(path, (404, b"{}"))
        return status, body, {}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    made = Registry()
    with serving(made):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", made.url)
        yield made


def fetch(cache: Path, uri: str, limits: ArchiveLimits | None = None) -> dict[str, bytes]:
    found = Fetcher(cache, Readiness(), limits=limits, pause_s=lambda attempt: 0.0).fetch(uri)
    files = (path for path in found.directory.rglob("*") if path.is_file())
    return {str(path.relative_to(found.directory)): path.read_bytes() for path in files}


def test_a_version_comes_whole_with_the_token_on_each_request(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "s3cret-token")

    assert fetch(tmp_path, "models:/iris/1") == CONTENT
    assert {header for _, header in registry.asked} == {"Bearer s3cret-token"}


def test_a_store_on_the_servers_own_address_is_its_store_too(registry: Registry, tmp_path: Path) -> None:
    place = f"{registry.url}/api/2.0/mlflow-artifacts/artifacts/0/models/m-1/artifacts"
    registry.says("/mlflow/model-versions/get-download-uri?name=iris&version=1", {"artifact_uri": place})

    assert fetch(tmp_path, "models:/iris/1") == CONTENT


def test_a_version_of_the_same_sizes_is_not_mistaken_for_the_last_one(registry: Registry, tmp_path: Path) -> None:
    route = "/mlflow/registered-models/alias?name=iris&alias=champion"
    registry.says(route, {"model_version": {"version": "1"}})
    assert fetch(tmp_path, "models:/iris@champion") == CONTENT

    registry.says(route, {"model_version": {"version": "2"}})
    there = {"artifact_uri": "mlflow-artifacts:/0/models/m-2/artifacts"}
    registry.says("/mlflow/model-versions/get-download-uri?name=iris&version=2", there)
    registry.store("0/models/m-2/artifacts")
    registry.answers["/api/2.0/mlflow-artifacts/artifacts/0/models/m-2/artifacts/a"] = (200, b"2")

    assert fetch(tmp_path, "models:/iris@champion") == {**CONTENT, "a": b"2"}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"artifact_uri": "file:///mlruns/1"}, "keeps models:/iris/1 at file:///mlruns/1"),
        ({"artifact_uri": "/mlruns/1"}, "keeps models:/iris/1 at /mlruns/1"),
        ({"artifact_uri": "dbfs:/x"}, "keeps models:/iris/1 at dbfs:/x"),
        ({"artifact_uri": "mlflow-artifacts://other:1/x"}, "keeps models:/iris/1 at mlflow-artifacts://other:1/x"),
        ({"artifact_uri": "ftp://me:s3cret@host/x?s3cret"}, "keeps models:/iris/1 at ftp://host/x,"),
        ({"artifact_uri": "hf://stranger/model"}, "keeps models:/iris/1 at hf://stranger/model,"),
        *(
            ({"artifact_uri": place}, "outside its own store")
            for place in ("mlflow-artifacts:/../../x", "mlflow-artifacts:/0/../../x/..", "mlflow-artifacts://HOST/..")
        ),
        ({"artifact_uri": "models:/.."}, "models:/.. does not name a model"),
        ({"artifact_uri": "models:/iris/1"}, "models:/iris/1 refers to other models in a cycle"),
        ({}, "has no artifact_uri"),
        ([], "MLFLOW_TRACKING_URI"),
    ],
)
def test_an_unusable_location_is_reported(registry: Registry, answer: object, expected: str, tmp_path: Path) -> None:
    registry.says("/mlflow/model-versions/get-download-uri?name=iris&version=1", answer)

    with pytest.raises(LoadError) as error:
        fetch(tmp_path, "models:/iris/1")

    assert expected in str(error.value)
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (401, "Check MLFLOW_TRACKING_TOKEN"),
        (404, "the MLflow server does not have models:/iris/1"),
        (302, "models:/iris/1 cannot be resolved: the MLflow server returned 302"),
        (503, "models:/iris/1 cannot be downloaded: the MLflow server returned 503"),
    ],
)
def test_a_rejection_is_reported_with_its_remedy_and_without_the_password(
    registry: Registry, status: int, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.url.replace("://", "://me:s3cret-word@"))
    registry.says("/mlflow/model-versions/get-download-uri?name=iris&version=1", {"message": "s3cret-word"}, status)

    with pytest.raises(LoadError) as error:
        fetch(tmp_path, "models:/iris/1")

    assert expected in str(error.value)
    assert "s3cret" not in str(error.value)


def test_a_server_that_is_gone_is_reported_and_the_last_model_is_used(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fetch(tmp_path, "models:/iris/1") == CONTENT
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")

    assert fetch(tmp_path, "models:/iris/1") == CONTENT
    with pytest.raises(LoadError, match="models:/iris/1 cannot be downloaded: ConnectError"):
        fetch(tmp_path / "other", "models:/iris/1")


def test_a_redirect_is_followed_on_the_same_server_alone(registry: Registry, tmp_path: Path) -> None:
    route = "/api/2.0/mlflow/model-versions/get-download-uri?name=iris&version=1"
    known = registry.answers.pop(route)
    registry.answers["/moved"] = known
    registry.sends_on[route] = "/moved"
    assert fetch(tmp_path, "models:/iris/1") == CONTENT

    registry.sends_on[route] = "http://me:s3cret@127.0.0.1:9/moved"
    expected = f"{registry.url} redirects to http://127.0.0.1:9"
    with pytest.raises(LoadError, match=re.escape(expected)):
        fetch(tmp_path / "other", "models:/iris/1")


def test_without_a_server_a_model_of_mlflow_states_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    with pytest.raises(LoadError, match="require MLFLOW_TRACKING_URI"):
        fetch(tmp_path, "runs:/12/model")


def test_a_folder_that_holds_itself_ends_at_the_limit(registry: Registry, tmp_path: Path) -> None:
    for depth in range(9):
        path = "0/models/m-1/artifacts" + depth * "/sub"
        files = [{"path": "sub", "is_dir": True}, {"path": "a", "file_size": 1}]
        registry.says(f"/mlflow-artifacts/artifacts?path={path.replace('/', '%2F')}", {"files": files})

    with pytest.raises(LoadError, match="SHOAL_MODEL_MAX_FILES"):
        fetch(tmp_path, "models:/iris/1", ArchiveLimits(max_files=3))


def test_a_name_that_leads_out_of_the_folder_is_rejected(registry: Registry, tmp_path: Path) -> None:
    files = {"files": [{"path": "..", "file_size": 1}]}
    registry.says("/mlflow-artifacts/artifacts?path=0%2Fmodels%2Fm-1%2Fartifacts", files)

    with pytest.raises(LoadError, match="outside its directory"):
        fetch(tmp_path, "models:/iris/1")
