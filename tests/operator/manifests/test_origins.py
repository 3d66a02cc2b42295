"""Where a model comes from: who gets credentials, what a name stands for, and what is mounted."""

import asyncio
import json
import logging
from typing import Any

import kubernetes_validate
import pytest

from shoal_operator.children.observation import Key
from shoal_operator.errors import ApiError
from shoal_operator.loop.workqueue import Outcome
from shoal_operator.manifests.deployment import make_deployment
from shoal_operator.manifests.desired import DEPLOYMENT, SERVICE, Child
from shoal_operator.manifests.origin import registry, with_source
from shoal_operator.manifests.target import Target
from shoal_operator.models.resolution import ModelResolution
from shoal_operator.reconciliation.reconciler import Reconciler
from shoal_schema.decoding import parse_spec
from shoal_schema.fields.declaring import Json
from tests.operator.fakes import FakeCluster, NoNames, reconciler_of
from tests.operator.samples import DEFAULTS, MINIMAL, UID, service, with_fields
from tests.operator.worlds import healthy, pod, running, unschedulable, waiting

CAT = Key("default", "cat")
NAME = "models:/cat@best"
MLFLOW = {"MLFLOW_TRACKING_URI": "http://someb0dy:s3cret@mlflow:5000/", "MLFLOW_TRACKING_TOKEN": "t0ken"}


def spec_of(uri: str, **model: Any) -> Json:
    return with_fields(MINIMAL, model={"uri": uri, **model})


def pod_of(spec: Json, *, known: Json | None = None, resolved: str = "") -> Json:
    """Return the pod that is made for a spec."""
    parsed = with_source(parse_spec(service(spec)), resolved)
    target = Target(name="cat", namespace="default", uid=UID, spec=parsed, defaults=DEFAULTS, registry=known or {})
    deployment = make_deployment(target)
    kubernetes_validate.validate(deployment, "1.35", strict=True)
    made: Json = deployment["spec"]["template"]["spec"]
    return made


def variables(container: Json) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container.get("env", [])}


def reconcile(
    cluster: FakeCluster, resolution: ModelResolution | None = None, reconciler: Reconciler | None = None
) -> Outcome:
    made = reconciler or reconciler_of(cluster, names=NoNames(resolution))
    return asyncio.run(made.reconcile(CAT))


def cluster_with(spec: Json, **more: Any) -> FakeCluster:
    cluster = FakeCluster(**more)
    cluster.services[CAT] = service(spec)
    return cluster


def condition(cluster: FakeCluster, kind: str = "Ready") -> Json:
    conditions = cluster.services[CAT]["status"]["conditions"]
    found: Json = next(item for item in conditions if item["type"] == kind)
    return found


def uri_of_pods(cluster: FakeCluster) -> str:
    (runtime, _) = cluster.children[CAT, DEPLOYMENT]["spec"]["template"]["spec"]["containers"]
    return variables(runtime)["SHOAL_MODEL_URI"]


@pytest.mark.parametrize("uri", ["s3://bucket/cat", "gs://b/cat", "hf://team/cat", "runs:/r/cat", "https://host/cat"])
def test_a_secret_is_the_environment_of_the_init_container_and_of_no_other(uri: str) -> None:
    made = pod_of(spec_of(uri, secretName="keys"))
    (model,) = made["initContainers"]

    assert model["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert "keys" not in json.dumps([made["containers"], made["volumes"]])
    assert variables(made["containers"][0])["SHOAL_MODEL_FETCHED"] == "true"


def test_authorities_are_mounted_where_the_model_is_fetched_and_nowhere_else() -> None:
    made = pod_of(spec_of("s3://bucket/cat", caBundle={"configMapName": "authorities"}))
    (model,) = made["initContainers"]

    items = [{"key": "ca.crt", "path": "ca.crt"}]
    volume = {"name": "ca-bundle", "configMap": {"name": "authorities", "items": items, "defaultMode": 0o444}}
    assert volume in made["volumes"]
    assert {"name": "ca-bundle", "mountPath": "/etc/shoal/ca", "readOnly": True} in model["volumeMounts"]
    assert variables(model)["SHOAL_MODEL_CA_BUNDLE"] == "/etc/shoal/ca/ca.crt"
    assert "ca-bundle" not in json.dumps(made["containers"])
    assert "ca-bundle" not in json.dumps(pod_of(spec_of("file:///cat", caBundle={"configMapName": "authorities"})))


def test_what_the_operator_sets_wins_over_a_key_of_the_secret() -> None:
    (model,) = pod_of(spec_of("s3://bucket/cat", secretName="keys"))["initContainers"]

    # Kubernetes: of one name, env goes before envFrom.
    assert {"SHOAL_MODEL_URI", "SHOAL_MODEL_CACHE_DIR", "HOME"} <= variables(model).keys()


def test_pods_receive_the_version_of_a_name() -> None:
    made = pod_of(spec_of(NAME), resolved="models:/cat/3")

    assert {variables(each)["SHOAL_MODEL_URI"] for each in (*made["initContainers"], made["containers"][0])} == {
        "models:/cat/3"
    }


def test_without_a_secret_the_init_container_is_reported_where_the_operators_registry_is_and_no_credentials() -> None:
    known = registry(NAME, MLFLOW)
    (model,) = pod_of(spec_of("models:/cat/3"), known=known)["initContainers"]
    assert variables(model)["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"
    assert "s3cret" not in json.dumps(model)
    assert "t0ken" not in json.dumps(model)

    (model,) = pod_of(spec_of("models:/cat/3", secretName="keys"), known=known)["initContainers"]
    assert "MLFLOW_TRACKING_URI" not in variables(model)
    assert registry("hf://team/cat", {"HF_ENDPOINT": "http://hub", "HF_TOKEN": "t0ken"}) == {
        "HF_ENDPOINT": "http://hub"
    }
    assert registry(NAME, {"MLFLOW_TRACKING_URI": "http://someb0dy:s3cret/x@mlflow"}) == {}
    assert registry("hf://team/cat", {}) == registry(NAME, {}) == registry("s3://b/c", MLFLOW) == {}


def test_a_claim_is_mounted_read_only_and_its_path_is_the_model() -> None:
    made = pod_of(spec_of("pvc://models/team/cat"))

    assert "initContainers" not in made
    (volume,) = [each for each in made["volumes"] if each["name"] == "model"]
    assert volume["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
    runtime = made["containers"][0]
    assert {"name": "model", "mountPath": "/mnt/models", "readOnly": True} in runtime["volumeMounts"]
    assert variables(runtime)["SHOAL_MODEL_URI"] == "file:///mnt/models/team/cat"


def test_a_path_in_a_claim_is_reported_as_it_was_meant() -> None:
    runtime = pod_of(spec_of("pvc://models/a%20b#1"))["containers"][0]
    assert variables(runtime)["SHOAL_MODEL_URI"] == "file:///mnt/models/a%20b%231"


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        ('persistentvolumeclaim "models" not found', "model.uri or model.volume names this claim: create it in"),
        (
            "pod has unbound immediate PersistentVolumeClaims",
            "kubectl describe persistentvolumeclaim models --namespace",
        ),
        ('persistentvolumeclaim "other" not found', 'persistentvolumeclaim "other" not found.'),
    ],
)
def test_a_claim_that_is_absent_or_unbound_is_reported_with_what_to_do(words: str, reported: str) -> None:
    cluster = cluster_with(spec_of("pvc://models/team/cat"))
    reconcile(cluster)
    cluster.children[CAT, DEPLOYMENT]["status"] = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1}
    cluster.pods[CAT] = [pod_now(cluster, conditions=unschedulable(f"0/1 nodes are available: {words}."))]
    reconcile(cluster)
    assert condition(cluster)["reason"] == "Unschedulable"
    assert reported in condition(cluster)["message"]
    assert ("model.uri" in condition(cluster)["message"]) is ("other" not in words)


@pytest.mark.parametrize("image", ["registry:5000/team/cat:1", "ghcr.io/team/cat@sha256:" + "0" * 64])
def test_the_files_of_an_image_are_the_model(image: str) -> None:
    made = pod_of(spec_of(f"oci://{image}"))

    assert "initContainers" not in made
    (volume,) = [each for each in made["volumes"] if each["name"] == "model"]
    assert volume["image"] == {"reference": image}
    assert variables(made["containers"][0])["SHOAL_MODEL_URI"] == "file:///mnt/models"


def test_there_are_no_pods_before_the_version_is_known_and_everything_else_is() -> None:
    cluster = cluster_with(spec_of(NAME))
    assert reconcile(cluster, ModelResolution(NAME)) is Outcome.DONE
    assert (CAT, DEPLOYMENT) not in cluster.children
    assert (CAT, SERVICE) in cluster.children
    assert {condition(cluster, kind)["reason"] for kind in ("Ready", "Progressing", "ModelLoaded")} == {
        "ModelResolving"
    }
    assert "model" not in cluster.services[CAT]["status"]
    assert [event["reason"] for event in cluster.events] == ["ModelResolving"]

    reconcile(cluster, ModelResolution(NAME, "models:/cat/1"))
    assert uri_of_pods(cluster) == "models:/cat/1"
    assert cluster.services[CAT]["status"]["model"] == {"uri": NAME, "resolved": "models:/cat/1"}
    assert condition(cluster, "ModelResolved")["message"].startswith(f"{NAME} resolved to models:/cat/1")
    cluster.writes.clear()
    reconcile(cluster, ModelResolution(NAME, "models:/cat/1"))
    assert cluster.writes == []


def test_an_operator_that_dies_before_its_status_is_written_has_noted_the_version_that_pods_were_told() -> None:
    written: list[str] = []

    def killed(verb: str, what: str) -> Exception | None:
        written.append(verb)
        return ConnectionResetError("the operator is killed") if written.count("status") == 2 else None

    cluster = cluster_with(spec_of(NAME), refuse=killed)
    with pytest.raises(ConnectionResetError):
        reconcile(cluster, ModelResolution(NAME, "models:/cat/1"))
    assert uri_of_pods(cluster) == "models:/cat/1"
    assert cluster.services[CAT]["status"]["model"] == {"uri": NAME, "resolved": "models:/cat/1"}


def test_a_name_that_cannot_be_resolved_is_reported_once_and_what_runs_is_left_as_it_is() -> None:
    cluster = cluster_with(spec_of(NAME))
    reconcile(cluster, ModelResolution(NAME, "models:/cat/1"))
    cluster.children[CAT, DEPLOYMENT]["status"] = {"observedGeneration": 1, **healthy()}
    other = "models:/cat@missing"
    cluster.services[CAT]["spec"] = spec_of(other)
    for _ in range(2):
        reconcile(cluster, ModelResolution(other, problem="the registry knows no models:/cat@missing"))

    assert uri_of_pods(cluster) == "models:/cat/1"
    assert (condition(cluster)["status"], condition(cluster)["reason"]) == ("False", "ModelUnresolved")
    assert condition(cluster)["message"] == "the registry knows no models:/cat@missing (pods keep models:/cat/1)"
    assert cluster.services[CAT]["status"]["model"] == {"uri": NAME, "resolved": "models:/cat/1"}
    assert condition(cluster, "Available")["status"] == "True"
    assert [event["reason"] for event in cluster.events].count("ModelUnresolved") == 1


def test_while_a_new_name_is_not_resolved_replicas_follow_and_nothing_else_of_the_pods_does() -> None:
    cluster = cluster_with(spec_of(NAME))
    reconcile(cluster, ModelResolution(NAME, "models:/cat/1"))
    before = cluster.children[CAT, DEPLOYMENT]["spec"]
    other = "models:/cat@missing"
    cluster.services[CAT]["spec"] = {**spec_of(other, format="ONNX"), "replicas": 2}
    reconcile(cluster, ModelResolution(other))
    assert cluster.children[CAT, DEPLOYMENT]["spec"] == {**before, "replicas": 2}

    cluster.writes.clear()
    reconcile(cluster, ModelResolution(other))
    assert cluster.writes == []


def test_replicas_of_an_unresolved_model_that_somebody_undoes_are_not_written_for_ever() -> None:
    cluster = cluster_with(spec_of(NAME))
    reconciler = reconciler_of(cluster, names=NoNames(ModelResolution("models:/cat@missing")))
    reconcile(cluster, ModelResolution(NAME, "models:/cat/1"))
    cluster.services[CAT]["spec"] = {**spec_of("models:/cat@missing"), "replicas": 2}
    for _ in range(20):
        reconcile(cluster, reconciler=reconciler)
        cluster.children[CAT, DEPLOYMENT]["spec"]["replicas"] = 1
    assert 1 <= cluster.writes.count(("merge", "Deployment")) < 10


def test_a_registry_that_is_away_changes_neither_pods_nor_readiness() -> None:
    cluster = cluster_with(spec_of(NAME, follow="Rollout"))
    reconcile(cluster, ModelResolution(NAME, "models:/cat/1"))
    cluster.children[CAT, DEPLOYMENT]["status"] = {"observedGeneration": 1, **healthy()}
    cluster.pods[CAT] = [pod_now(cluster)]
    reconcile(cluster, ModelResolution(NAME, "models:/cat/1", "the registry is away"))

    assert uri_of_pods(cluster) == "models:/cat/1"
    assert condition(cluster)["status"] == "True"
    assert condition(cluster, "ModelResolved")["reason"] == "ModelUnresolved"
    assert condition(cluster, "ModelResolved")["message"] == "the registry is away (pods keep models:/cat/1)"
    assert cluster.services[CAT]["status"]["model"]["resolved"] == "models:/cat/1"


def pod_now(cluster: FakeCluster, **status: Any) -> Json:
    """Return a pod of the Deployment's newest template."""
    template = cluster.children[CAT, DEPLOYMENT]["spec"]["template"]
    made = pod(ready=not status, **status)
    return {
        **made,
        "metadata": {**made["metadata"], **template["metadata"], "namespace": "default"},
        "spec": template["spec"],
    }


def test_a_spec_that_cannot_be_read_keeps_the_version_in_the_status() -> None:
    cluster = cluster_with(spec_of(NAME))
    reconcile(cluster, ModelResolution(NAME, "models:/cat/1"))
    cluster.services[CAT]["spec"] = {"model": {"uri": NAME, "follow": "Always"}}
    reconcile(cluster)

    assert condition(cluster)["reason"] == "InvalidSpec"
    assert cluster.services[CAT]["status"]["model"]["resolved"] == "models:/cat/1"


def test_a_missing_secret_is_named_with_the_command_that_makes_it() -> None:
    cluster = cluster_with(spec_of("s3://bucket/cat", secretName="keys"))
    reconcile(cluster)
    cluster.children[CAT, DEPLOYMENT]["status"] = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1}
    missing = waiting("model", "CreateContainerConfigError", 'secret "keys" not found')
    other = waiting("model", "CreateContainerConfigError", 'secret "of-runtime-env" not found')
    cluster.pods[CAT] = [pod_now(cluster, initContainerStatuses=[other])]
    reconcile(cluster)
    assert "model.secretName" not in condition(cluster)["message"]

    cluster.pods[CAT] = [pod_now(cluster, initContainerStatuses=[missing])]
    reconcile(cluster)
    assert condition(cluster)["reason"] == "ContainerConfigInvalid"
    assert "kubectl create secret generic keys --namespace default" in condition(cluster)["message"]


def test_a_model_that_is_being_fetched_is_reported_from_one_that_is_being_loaded() -> None:
    cluster = cluster_with(spec_of("s3://bucket/cat"))
    reconcile(cluster)
    cluster.children[CAT, DEPLOYMENT]["status"] = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1}
    cluster.pods[CAT] = [pod_now(cluster, initContainerStatuses=[running("model")])]
    reconcile(cluster)
    assert condition(cluster, "ModelLoaded")["reason"] == "ModelDownloading"
    assert "--container model shows the progress" in condition(cluster, "ModelLoaded")["message"]

    cluster.pods[CAT] = [pod_now(cluster, containerStatuses=[running("runtime")])]
    reconcile(cluster)
    assert condition(cluster, "ModelLoaded")["reason"] == "ModelLoading"


@pytest.mark.parametrize(
    "said",
    [
        "there is nothing at s3://bucket/cat",
        "HF_TOKEN",
        "the MLflow server does not have models:/cat/3",
    ],
)
def test_why_a_model_could_not_be_fetched_reaches_the_status(said: str) -> None:
    cluster = cluster_with(spec_of("s3://bucket/cat"))
    reconcile(cluster)
    cluster.children[CAT, DEPLOYMENT]["status"] = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1}
    line = f"2026-01-01T00:00:00Z CRITICAL shoal_runtime.command_line {said}\n"
    ended = waiting("model", "CrashLoopBackOff", exitCode=3, message=line)
    cluster.pods[CAT] = [pod_now(cluster, initContainerStatuses=[ended])]
    reconcile(cluster)

    assert condition(cluster)["reason"] == "ModelDownloadFailed"
    assert condition(cluster)["message"] == f"the model cannot be downloaded: {said}"


def without_images(kind: Child, child: Json) -> None:
    """Store as an API server does that knows no image volumes: the volume is an empty one."""
    if kind == DEPLOYMENT:
        for volume in child["spec"]["template"]["spec"]["volumes"]:
            if volume.pop("image", None):
                volume["emptyDir"] = {}


def test_an_api_server_that_drops_image_volumes_is_reported() -> None:
    cluster = cluster_with(spec_of("oci://registry/cat:1"), mutate=without_images)
    reconcile(cluster)

    assert condition(cluster)["reason"] == "ChangedAtAdmission"
    assert "drops image volumes" in condition(cluster)["message"]
    assert "pvc://" in condition(cluster)["message"]


def test_an_api_server_that_does_not_know_image_volumes_is_reported() -> None:
    words = 'strict decoding error: unknown field "spec.template.spec.volumes[4].image"'
    cluster = cluster_with(
        spec_of("oci://registry/cat:1"),
        refuse=lambda verb, what: ApiError(400, words) if what == "Deployment" else None,
    )
    reconcile(cluster)

    assert condition(cluster)["reason"] == "InvalidSpec"
    assert "oci:// and model.volume.image require Kubernetes" in condition(cluster)["message"]


def test_an_image_that_cannot_be_mounted_is_named_in_the_place_of_the_containers_own() -> None:
    cluster = cluster_with(spec_of("oci://registry/cat:1"))
    reconcile(cluster)
    cluster.children[CAT, DEPLOYMENT]["status"] = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1}
    reported = 'Back-off pulling image "registry/cat:1": ErrImagePull: not found'
    cluster.pods[CAT] = [pod_now(cluster, containerStatuses=[waiting("runtime", "ImagePullBackOff", reported)])]
    reconcile(cluster)

    assert condition(cluster)["message"] == "the image registry/cat:1 of model.uri cannot be pulled: not found"


SECRETS = ("s3cret", "someb0dy", "s1gnature", "t0ken")
REJECTED = "https://someb0dy:s3cret@host/cat?sig=s1gnature"


@pytest.mark.parametrize(
    "uri",
    [
        REJECTED,
        f"https://someb0dy:s3cret{'x' * 300}@host/cat?sig=s1gnature",
        f"https://someb0dy:s3cret@host/cat?sig={'s1gnature' * 150}",
        "https://someb0dy:s3cret@host:99999/cat?sig=s1gnature",
        "ftp://someb0dy:s3cret@host/cat?sig=s1gnature",
        "s3://someb0dy:s3cret@bucket/cat?sig=s1gnature",
        "models:/cat@best?token=t0ken&x=someb0dys3crets1gnature",
        f"{REJECTED}\n",
        REJECTED + "/" + "x" * 2048,
    ],
)
def test_no_secret_of_an_address_is_reported_in_status_events_or_logs(
    uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    refusals: list[Exception | None] = [None, ApiError(422, f"Invalid value: {uri!r}"), ApiError(403, f"denied: {uri}")]
    for refusal in refusals:
        cluster = cluster_with(
            spec_of(uri), refuse=lambda verb, what, why=refusal: why if what == "Deployment" else None
        )
        reconcile(cluster)
        if (CAT, DEPLOYMENT) in cluster.children:
            cluster.children[CAT, DEPLOYMENT]["status"] = {"observedGeneration": 1, "replicas": 1}
            said = f"{uri} cannot be downloaded: the server answered 403"
            ended = waiting("model", "CrashLoopBackOff", exitCode=3, message=said)
            cluster.pods[CAT] = [pod_now(cluster, initContainerStatuses=[ended])]
            reconcile(cluster)
        reported = json.dumps([cluster.services[CAT]["status"], cluster.events]) + caplog.text
        assert not [secret for secret in SECRETS if secret in reported], reported
