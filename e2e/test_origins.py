"""Where models come from: a registry whose names move, with credentials; a claim; an image."""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.clients import EXPECTED, background_clients, metadata, predict
from e2e.clusters.cluster import MODELS, Cluster
from e2e.registry import OPERATOR, PODS, Registry, registry
from e2e.waiting import eventually

SYSTEM = "shoal-system"
MOVING = {"uri": "models:/adder@champion", "secretName": "shoal-mlflow"}


@pytest.fixture(scope="module")
def mlflow(cluster: Cluster) -> Iterator[Registry]:
    """Run a registry and set it at the operator, once per file, as each change restarts the operator."""
    with registry() as running:
        log = (
            f"MLFLOW_TRACKING_URI={running.url}",
            f"MLFLOW_TRACKING_TOKEN={OPERATOR}",
            "SHOAL_OPERATOR_FOLLOW_INTERVAL_S=1",
        )
        set_operator_environment(cluster, *log)
        yield running
        set_operator_environment(cluster, *(f"{each.partition('=')[0]}-" for each in log))


def set_operator_environment(cluster: Cluster, *variables: str) -> None:
    """Set variables of the operator (NAME=VALUE) or remove them (NAME-), and wait for the one that has them."""
    system = cluster.within(SYSTEM)
    system.kubectl("set", "env", "deployment/shoal-operator", *variables)
    system.kubectl("rollout", "status", "deployment/shoal-operator", "--timeout=60s")


def make_secret(cluster: Cluster, **data: str) -> None:
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "shoal-mlflow"}, "stringData": data}
    cluster.kubectl("apply", "--filename", "-", text=yaml.safe_dump(body))


def resolved(cluster: Cluster) -> str:
    found = cluster.get("infsvc", "adder")["status"].get("model", {}).get("resolved", "")
    return str(found)


def pod_uris(cluster: Cluster) -> set[str]:
    pod = cluster.get("deployment", "adder")["spec"]["template"]["spec"]
    variables = (each for container in (*pod["initContainers"], *pod["containers"]) for each in container["env"])
    return {each["value"] for each in variables if each["name"] == "SHOAL_MODEL_URI"}


def describe_everything(cluster: Cluster) -> str:
    """Return all that may be read without being allowed to read Secrets: objects, Events and logs."""
    kinds = "infsvc,events,deployments,replicasets,pods"
    texts = [cluster.kubectl("get", kinds, "--output", "yaml").stdout]
    selector = ("--selector", "serving.shoal.dev/inferenceservice=adder", "--all-containers", "--prefix")
    texts.append(cluster.kubectl("logs", *selector, "--tail=-1", check=False).stdout)  # a pod may just have gone
    texts.append(cluster.within(SYSTEM).kubectl("logs", "deployment/shoal-operator").stdout)
    return "\n".join(texts)


def test_an_alias_is_served_by_its_version_and_followed_without_a_lost_request(
    namespace: Cluster, mlflow: Registry
) -> None:
    rollout = {"drainDelaySeconds": 1}
    namespace.apply(model=MOVING, rollout=rollout)
    missing = "ContainerConfigInvalid"
    eventually(lambda: namespace.condition("adder").get("reason") == missing, lambda: describe_everything(namespace))
    assert "shoal-mlflow" in namespace.condition("adder")["message"]

    make_secret(namespace, MLFLOW_TRACKING_TOKEN=PODS, MLFLOW_TRACKING_URI=mlflow.url)
    namespace.until_ready()
    assert predict(namespace) == EXPECTED
    assert resolved(namespace) == "models:/adder/1"
    assert "models:/adder/1" in namespace.kubectl("get", "infsvc", "--output", "wide").stdout

    mlflow.champion = "2"
    namespace.kubectl("annotate", "infsvc", "adder", "look=again")
    assert pod_uris(namespace) == {"models:/adder/1"}
    with background_clients(namespace, keeping=2, fresh=1) as seen:
        eventually(lambda: seen.answered > 0)
        namespace.apply(model={**MOVING, "follow": "Rollout"}, rollout=rollout)
        eventually(lambda: resolved(namespace) == "models:/adder/2", lambda: describe_everything(namespace))
        namespace.until_ready()
        assert metadata(namespace)["outputs"][0]["name"] == "z"
    assert seen.failures == []

    log = describe_everything(namespace)
    assert pod_uris(namespace) == {"models:/adder/2"}
    assert "event=model_fetched" in log
    assert PODS not in log


def test_a_followed_version_is_a_candidate_and_another_signature_needs_permission(
    namespace: Cluster, mlflow: Registry
) -> None:
    make_secret(namespace, MLFLOW_TRACKING_TOKEN=PODS, MLFLOW_TRACKING_URI=mlflow.url)
    mlflow.champion = "1"
    model = {**MOVING, "follow": "Rollout"}
    rollout: dict[str, Any] = {"strategy": "Shadow", "drainDelaySeconds": 1, "steps": [{"shadow": 100, "rows": 100}]}
    namespace.apply(model=model, rollout=rollout)
    namespace.until_ready()
    with background_clients(namespace) as seen:
        mlflow.champion = "2"
        eventually(
            lambda: namespace.condition("adder", "CandidateJudged").get("reason") == "SignatureChanged",
            lambda: describe_everything(namespace),
            within_s=120,
        )
        message = namespace.condition("adder", "CandidateJudged")["message"]
        assert "`y`" in message
        assert "compare.allowSignatureChange" in message
        assert pod_uris(namespace) == {"models:/adder/1"}
        assert metadata(namespace)["outputs"][0]["name"] == "y"

        namespace.apply(model=model, rollout={**rollout, "compare": {"allowSignatureChange": True}})
        eventually(
            lambda: pod_uris(namespace) == {"models:/adder/2"},
            lambda: describe_everything(namespace),
            within_s=120,
        )
        namespace.until_ready()
    assert seen.failures == []
    assert namespace.condition("adder", "CandidateJudged")["reason"] == "NoCandidate"
    assert metadata(namespace)["outputs"][0]["name"] == "z"


def test_unresolvable_name_is_reported_and_the_last_version_keeps_serving(namespace: Cluster, mlflow: Registry) -> None:
    make_secret(namespace, MLFLOW_TRACKING_TOKEN="wr0ng", MLFLOW_TRACKING_URI=mlflow.url)
    namespace.apply(model={**MOVING, "uri": "models:/adder/1"})
    eventually(lambda: namespace.condition("adder").get("reason") == "ModelDownloadFailed")
    assert "MLFLOW_TRACKING_TOKEN" in namespace.condition("adder")["message"]
    assert "wr0ng" not in describe_everything(namespace)
    namespace.kubectl("delete", "infsvc", "adder")
    eventually(lambda: not namespace.get("pods"))

    make_secret(namespace, MLFLOW_TRACKING_TOKEN=PODS, MLFLOW_TRACKING_URI=mlflow.url)
    mlflow.champion = "1"
    namespace.apply(model={**MOVING, "uri": "models:/adder@missing"})
    eventually(lambda: namespace.condition("adder").get("reason") == "ModelUnresolved")
    assert "models:/adder@missing" in namespace.condition("adder")["message"]
    assert not namespace.get("pods")

    namespace.apply(model={**MOVING, "follow": "Rollout"})
    namespace.until_ready()
    mlflow.away = True
    eventually(lambda: namespace.condition("adder", "ModelResolved").get("status") == "False")
    assert namespace.condition("adder", "ModelResolved")["message"].endswith("(pods keep models:/adder/1)")
    assert namespace.condition("adder")["status"] == "True"
    assert predict(namespace) == EXPECTED

    mlflow.away = False
    eventually(lambda: namespace.condition("adder", "ModelResolved").get("status") == "True")


def add_image(cluster: Cluster, name: str, folder: Path) -> None:
    """Give this machine's node an image that holds the adder and nothing else, as `FROM scratch` makes one."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(content: bytes) -> dict[str, str]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}"}

    with io.BytesIO() as raw:
        with tarfile.open(fileobj=raw, mode="w:gz") as archive:
            for path in MODELS["adder"].glob("*.*"):
                archive.add(path, path.name)
        manifest = blob(json.dumps({"layers": [blob(raw.getvalue())]}).encode())
    (folder / "index.json").write_text(json.dumps({"manifests": [manifest]}))
    (cluster.folder / "images.yaml").write_text(yaml.safe_dump({name: {"layout": str(folder)}}))


def test_an_image_whose_files_are_the_model_is_mounted(namespace: Cluster, tmp_path: Path) -> None:
    namespace.apply(model={"uri": "oci://registry.example/team/adder:1"})
    eventually(
        lambda: namespace.condition("adder").get("reason") == "ImagePullFailed", lambda: str(namespace.get("pods"))
    )
    assert "registry.example/team/adder:1" in namespace.condition("adder")["message"]

    add_image(namespace, "adder", tmp_path / "layout")
    namespace.until_ready()
    assert predict(namespace) == EXPECTED
