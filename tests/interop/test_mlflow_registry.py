"""Models of a real MLflow server, logged by its own client; none of MLflow is installed where they are served."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from examples.server import serving
from shoal_runtime.errors import LoadError
from shoal_runtime.readiness import Readiness
from shoal_runtime.storage.fetching import Fetcher, ModelFiles
from tests.interop.environments import HERE, ROOT, python_with
from tests.interop.stores import files_in, running
from tests.ports import free_port

ADDER = ROOT / "examples" / "adder" / "model"

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@dataclass(frozen=True, slots=True)
class Registry:
    """A server, a run that it knows, and the id of the first version of `my iris`."""

    url: str
    run: str
    model: str

    def post(self, route: str, body: Mapping[str, str]) -> None:
        """Change something."""
        httpx.post(f"{self.url}/api/2.0/mlflow/{route}", json=body, trust_env=False).raise_for_status()


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    python, folder, port = python_with("mlflow"), tmp_path_factory.mktemp("mlflow"), free_port()
    url = f"http://127.0.0.1:{port}"
    stores = ["--backend-store-uri", f"sqlite:///{folder}/db", "--artifacts-destination", f"{folder}/artifacts"]
    command = [str(python), "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    environment = {**quiet, "MLFLOW_TRACKING_URI": url, "PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(folder)}
    with running([*command, *stores], f"{url}/health", timeout_s=300, env=environment, cwd=folder):
        log = [str(python), str(HERE / "log_models.py"), str(ADDER)]
        done = subprocess.run(log, env=environment, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr
        yield Registry(url, **json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture
def here(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.url)
    return registry


def fetch(cache: Path, uri: str) -> ModelFiles:
    return Fetcher(cache, Readiness(), pause_s=lambda attempt: 0.0).fetch(uri)


def model_id(found: ModelFiles) -> str:
    """Return which model was brought, as its MLmodel says."""
    lines = (found.directory / "MLmodel").read_text().splitlines()
    return next(line.removeprefix("model_id: ") for line in lines if line.startswith("model_id: "))


@pytest.mark.parametrize("uri", ["models:/my iris/1", "models:/my iris@champion", "models:/{model}"])
def test_a_version_an_alias_and_an_id_bring_the_same_model(here: Registry, uri: str, tmp_path: Path) -> None:
    found = fetch(tmp_path, uri.format(model=here.model))

    assert {"MLmodel", "python_model.pkl"} <= set(files_in(found.directory))
    assert model_id(found) == here.model


def test_an_alias_that_moves_brings_the_other_version(here: Registry, tmp_path: Path) -> None:
    assert model_id(fetch(tmp_path, "models:/my iris/latest")) != here.model
    here.post("registered-models/alias", {"name": "my iris", "alias": "rising", "version": "1"})
    assert model_id(fetch(tmp_path, "models:/my iris@rising")) == here.model

    here.post("registered-models/alias", {"name": "my iris", "alias": "rising", "version": "2"})
    assert model_id(fetch(tmp_path, "models:/my iris@rising")) != here.model


def test_a_run_brings_its_artifacts_one_of_them_and_the_models_that_it_logged(here: Registry, tmp_path: Path) -> None:
    adder, one = (fetch(tmp_path, f"runs:/{here.run}/served/{path}") for path in ("adder", "empty file"))

    assert (adder.stem, files_in(adder.directory)) == ("adder", files_in(ADDER))
    assert (one.file, files_in(one.directory)) == ("empty file", {"empty file": b""})
    assert "MLmodel" in files_in(fetch(tmp_path, f"runs:/{here.run}/model").directory)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        (
            "models:/my iris@gone",
            "the MLflow server does not have models:/my iris@gone: check the name",
        ),
        ("models:/missing/1", "the MLflow server does not have models:/missing/1"),
        ("models:/missing/latest", "the MLflow server does not have models:/missing/latest"),
        ("models:/my iris/99", "the MLflow server does not have models:/my iris/99"),
        ("models:/m-0", "the MLflow server does not have models:/m-0"),
        ("runs:/missing/model", "the MLflow server does not have runs:/missing/model"),
        ("runs:/{run}/nothing", "there are no files at runs:/{run}/nothing"),
    ],
)
def test_what_the_server_does_not_know_is_told(here: Registry, uri: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError) as error:
        fetch(tmp_path, uri.format(run=here.run))

    assert str(error.value).startswith(expected.format(run=here.run))


def test_shoal_serves_what_a_run_logged(here: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_MODEL_CACHE_DIR", str(tmp_path))
    with serving(f"runs:/{here.run}/served/adder") as server:
        answer = httpx.get(f"{server.url}/v2/models/adder", trust_env=False)

    assert answer.json()["name"] == "adder"
