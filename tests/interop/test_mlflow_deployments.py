"""MLflow's deployments plugin, found by its entry point, against an API server that holds our definition."""

import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes.client
import kubernetes.config
import pytest
import yaml

from shoal_local.apiserver.server import running_server
from shoal_schema.resource import GROUP, PLURAL, VERSION
from tests.calls import row
from tests.fakes import RunningProxy
from tests.interop.conftest import ForeignClient, ForeignError, foreign_client
from tests.interop.environments import ROOT, python_with

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
client: Any = kubernetes.client
config: Any = kubernetes.config
WHERE = {"group": GROUP, "version": VERSION, "namespace": "default", "plural": PLURAL}


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run an API server that knows InferenceServices."""
    path = tmp_path_factory.mktemp("cluster") / "kubeconfig"
    with running_server() as running:
        path.write_text(running.kubeconfig)
        definition = yaml.safe_load((ROOT / "crds" / f"{GROUP}_{PLURAL}.yaml").read_text())
        with config.new_client_from_config_dict(yaml.safe_load(running.kubeconfig)) as api:
            client.CustomObjectsApi(api).create_cluster_custom_object(
                "apiextensions.k8s.io", "v1", "customresourcedefinitions", definition
            )
        yield path


@pytest.fixture
def services(kubeconfig: Path) -> Iterator[Any]:
    """Return what is in the cluster, with nothing in it."""
    with config.new_client_from_config(str(kubeconfig)) as api:
        found = client.CustomObjectsApi(api)
        yield found
        for each in found.list_namespaced_custom_object(**WHERE)["items"]:
            found.delete_namespaced_custom_object(**WHERE, name=each["metadata"]["name"])


@pytest.fixture(scope="module")
def mlflow(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignClient]:
    """Run MLflow with the plugin beside it as an installed distribution: its metadata, and the sources."""
    site = tmp_path_factory.mktemp("site")
    metadata = site / "shoal-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shoal\nVersion: 0\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    path = f"{site}:{ROOT / 'client'}:{ROOT / 'schema'}"
    with foreign_client(python_with("callers"), "mlflow_calls", PYTHONPATH=path, KUBECONFIG=str(kubeconfig)) as found:
        yield found


def is_ready(services: Any, name: str, url: str | None = None, **more: Any) -> None:
    """Say of a service what the operator would."""
    generation = services.get_namespaced_custom_object(**WHERE, name=name)["metadata"]["generation"]
    ready_fields = {"type": "Ready", "status": "True", "reason": "Ready", "message": "1 of 1 pods answer", **more}
    condition = {**ready_fields, "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    services.patch_namespaced_custom_object_status(
        **WHERE,
        name=name,
        body={"status": {"url": url, "conditions": [condition]}},
        _content_type="application/merge-patch+json",
    )


NOW = {"timeoutSeconds": 0}


def test_a_deployment_is_made_listed_changed_and_deleted(mlflow: ForeignClient, services: Any) -> None:
    fields = {"batching.maxBatchSize": "64", "model.handler": "handler.py:Cat", **NOW}
    made = mlflow.call(
        "deployments", "shoal", "create_deployment", name="cat", model_uri="https://m/cat.zip", config=fields
    )
    assert (made["name"], made["namespace"], made["ready"]) == ("cat", "default", False)
    spec = services.get_namespaced_custom_object(**WHERE, name="cat")["spec"]
    assert (spec["model"]["uri"], spec["model"]["handler"]) == ("https://m/cat.zip", "handler.py:Cat")
    assert spec["batching"]["maxBatchSize"] == 64

    is_ready(services, "cat", url="http://cat.example.com")
    (listed,) = mlflow.call("deployments", "shoal", "list_deployments")
    assert listed == mlflow.call("deployments", "shoal", "get_deployment", name="cat")
    assert (listed["ready"], listed["url"], listed["model_uri"]) == (
        True,
        "http://cat.example.com",
        "https://m/cat.zip",
    )

    mlflow.call("deployments", "shoal", "update_deployment", name="cat", model_uri="https://m/dog.zip", config=NOW)
    changed = services.get_namespaced_custom_object(**WHERE, name="cat")["spec"]
    assert (changed["model"]["uri"], changed["batching"]["maxBatchSize"]) == ("https://m/dog.zip", 64)
    assert not mlflow.call("deployments", "shoal", "get_deployment", name="cat")["ready"], (
        "the operator has not seen it"
    )

    for _ in range(2):
        mlflow.call("deployments", "shoal", "delete_deployment", name="cat")
    assert mlflow.call("deployments", "shoal:/default", "list_deployments") == []


def test_creating_waits_until_it_is_ready(mlflow: ForeignClient, services: Any) -> None:
    def operate() -> None:
        for event in kubernetes.watch.Watch().stream(
            services.list_namespaced_custom_object, **WHERE, timeout_seconds=20
        ):
            is_ready(services, event["object"]["metadata"]["name"], url="http://x")
            return

    operator = threading.Thread(target=operate)
    operator.start()
    made = mlflow.call("deployments", "shoal", "create_deployment", name="cat", model_uri="https://m/cat.zip")
    operator.join()
    assert (made["ready"], made["url"]) == (True, "http://x")


def test_a_deployment_that_does_not_get_ready_says_why(mlflow: ForeignClient, services: Any) -> None:
    options = {"name": "cat", "model_uri": "https://m/cat.zip"}
    with pytest.raises(ForeignError, match=r"cat is not ready after 0\.1 s: the operator has not reported a status"):
        mlflow.call("deployments", "shoal", "create_deployment", **options, config={"timeoutSeconds": 0.1})


@pytest.mark.parametrize(
    ("method", "arguments", "words"),
    [
        ("get_deployment", {"name": "missing"}, r'"missing" not found'),
        ("update_deployment", {"name": "missing", "model_uri": "https://m/x"}, r'"missing" not found'),
        ("create_deployment", {"name": "Cat", "model_uri": "https://m/x"}, "Cat"),
        ("create_deployment", {"name": "a", "model_uri": "ftp://m/x"}, r"spec\.model\.uri"),
        (
            "create_deployment",
            {"name": "a", "model_uri": "https://m/x", "config": {"batching.maxBatchSize": 0}},
            "maxBatchSize",
        ),
    ],
)
def test_the_clusters_words_reach_the_caller(
    mlflow: ForeignClient, services: Any, method: str, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ForeignError, match=words) as raised:
        mlflow.call("deployments", "shoal", method, **arguments)
    assert raised.value.kind == "MlflowException"


def test_a_name_is_taken_once(mlflow: ForeignClient, services: Any) -> None:
    options = {"name": "cat", "model_uri": "https://m/cat.zip", "config": NOW}
    mlflow.call("deployments", "shoal", "create_deployment", **options)
    with pytest.raises(ForeignError, match="already exists"):
        mlflow.call("deployments", "shoal", "create_deployment", **options)


def test_predictions_come_from_the_deployments_address(
    mlflow: ForeignClient, services: Any, running: RunningProxy
) -> None:
    rows, doubled = [row(1), row(2)], [[2 * value for value in one] for one in (row(1), row(2))]
    options = {"name": "cat", "model_uri": "https://m/cat.zip", "config": NOW}
    mlflow.call("deployments", "shoal", "create_deployment", **options)
    with pytest.raises(ForeignError, match="'cat' has no address yet"):
        mlflow.call("deployments", "shoal", "predict", deployment_name="cat", frame=rows)
    is_ready(services, "cat", url=running.url)
    assert mlflow.call("deployments", "shoal", "predict", deployment_name="cat", frame=rows) == doubled
    assert mlflow.call("deployments", "shoal", "predict", deployment_name="cat", inputs={"x": rows}) == doubled
    elsewhere = f"shoal:/default?url={running.url}"
    assert mlflow.call("deployments", elsewhere, "predict", deployment_name="any", frame=rows) == doubled
    with pytest.raises(ForeignError, match="BAD_REQUEST"):
        mlflow.call("deployments", elsewhere, "predict", deployment_name="any", frame=[[1]])
    with pytest.raises(ForeignError, match="kubectl port-forward service/cat 8080:80"):
        mlflow.call(
            "deployments", "shoal:/default?url=http://127.0.0.1:9", "predict", deployment_name="cat", frame=rows
        )


def test_help_says_what_a_target_may_be(mlflow: ForeignClient) -> None:
    assert "shoal:/NAMESPACE" in mlflow.call("target_help")


def test_running_locally_is_shoal_serve(mlflow: ForeignClient, tmp_path: Path) -> None:
    with pytest.raises(ForeignError, match="shoal serve ended with status 2"):
        mlflow.call("run_local", name="cat", model_uri=str(tmp_path / "nothing"), config={"port": 0})
