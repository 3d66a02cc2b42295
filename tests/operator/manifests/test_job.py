"""The Job, and the RayJob, of a BatchInference."""

import os
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from shoal_operator.manifests.job import QUEUE_LABEL, batch_target, make_job
from shoal_operator.policy.allowed import not_allowed
from shoal_schema.decoding import parse_batch_spec
from shoal_schema.fields.declaring import Json
from shoal_schema.process.settings.operator import OperatorProcess
from shoal_schema.resource.policy import Policy
from tests.operator.samples import DEFAULTS, UID

GOLDEN = Path(__file__).parents[1] / "golden"
MINIMAL: Json = {
    "model": {"uri": "file:///models/cat"},
    "input": {"uri": "s3://bucket/in/"},
    "output": {"uri": "s3://bucket/out/"},
}
EVERYTHING: Json = {
    **MINIMAL,
    "model": {
        "uri": "s3://models/cat",
        "secretName": "models",
        "caBundle": {"secretName": "authorities", "key": "bundle.pem"},
        "parameters": {"top": 5},
    },
    "runtime": {"image": "example/runtime:1", "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "8Gi"}}},
    "secretName": "buckets",
    "parallelism": 8,
    "batchSize": 16,
    "activeDeadlineSeconds": 3600,
    "ttlSecondsAfterFinished": 60,
    "pod": {"labels": {"team": "cats"}, "serviceAccountName": "cats", "nodeSelector": {"pool": "gpu"}},
}
RAY: Json = {**EVERYTHING, "engine": "Ray"}


def batch(spec: Json | None = None, **metadata: Any) -> Json:
    return {
        "apiVersion": "serving.shoal.dev/v1alpha1",
        "kind": "BatchInference",
        "metadata": {"name": "score", "namespace": "default", "uid": UID, "generation": 1, **metadata},
        "spec": spec or MINIMAL,
    }


def made(spec: Json, *, queue: str = "") -> Json:
    resource = batch(spec)
    parsed = parse_batch_spec(resource)
    target = batch_target(resource, parsed, DEFAULTS, "", {})
    assert target.batch is not None
    return make_job(target, target.batch, queue)


def container(job: Json) -> Json:
    found: Json = job["spec"]["template"]["spec"]["containers"][0]
    return found


@pytest.mark.parametrize(("name", "spec"), [("batch", MINIMAL), ("batch-everything", EVERYTHING), ("batch-ray", RAY)])
def test_a_job_is_the_golden_one(name: str, spec: Json) -> None:
    path, job = GOLDEN / f"{name}.yaml", made(spec)
    if os.environ.get("SHOAL_WRITE_GOLDEN"):
        path.write_text(yaml.safe_dump(job, sort_keys=False, width=100))
    assert job == yaml.safe_load(path.read_text())


@pytest.mark.parametrize("version", ["1.33", "1.37"])
@pytest.mark.parametrize("spec", [MINIMAL, EVERYTHING])
def test_a_job_passes_the_strict_schema_of_kubernetes(spec: Json, version: str) -> None:
    kubernetes_validate.validate(made(spec), version, strict=True)


def test_only_the_batch_container_has_the_stores_credentials() -> None:
    pod = made(EVERYTHING)["spec"]["template"]["spec"]
    assert [each.get("envFrom") for each in pod["containers"]] == [[{"secretRef": {"name": "buckets"}}]]
    assert [each.get("envFrom") for each in pod["initContainers"]] == [[{"secretRef": {"name": "models"}}]]


def test_init_container_trusts_the_authorities_of_the_spec() -> None:
    pod = made(EVERYTHING)["spec"]["template"]["spec"]
    items = [{"key": "bundle.pem", "path": "ca.crt"}]
    assert {
        "name": "ca-bundle",
        "secret": {"secretName": "authorities", "items": items, "defaultMode": 0o444},
    } in pod["volumes"]
    for each in (*pod["initContainers"], *pod["containers"]):
        assert {"name": "ca-bundle", "mountPath": "/etc/shoal/ca", "readOnly": True} in each["volumeMounts"]
        assert {"name": "SHOAL_MODEL_CA_BUNDLE", "value": "/etc/shoal/ca/ca.crt"} in each["env"]


def test_no_service_of_the_same_name_leads_to_the_pods_of_a_job() -> None:
    labels = made(MINIMAL)["spec"]["template"]["metadata"]["labels"]
    assert labels["serving.shoal.dev/batchinference"] == "score"
    assert "serving.shoal.dev/inferenceservice" not in labels


def test_each_pod_is_reported_its_number_and_what_they_have_in_common() -> None:
    env = {each["name"]: each for each in container(made(EVERYTHING))["env"]}
    assert "job-completion-index" in env["SHOAL_BATCH_WORKER"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert env["SHOAL_BATCH_WORKERS"]["value"] == "8"
    assert env["SHOAL_BATCH_RUN"]["value"] == UID
    assert env["SHOAL_BATCH_INPUT"]["value"] == "s3://bucket/in/"


def test_queued_job_starts_when_kueue_admits_it() -> None:
    job = made(MINIMAL, queue="cats")
    assert (job["spec"]["suspend"], job["metadata"]["labels"][QUEUE_LABEL]) == (True, "cats")
    assert made(MINIMAL)["spec"]["suspend"] is False


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({**MINIMAL, "secretName": "others"}, "spec.secretName"),
        ({**MINIMAL, "runtime": {"image": "evil:1"}}, "spec.runtime.image"),
        ({**MINIMAL, "runtime": {"securityContext": {"privileged": True}}}, "spec.runtime.securityContext.privileged"),
        ({**MINIMAL, "pod": {"serviceAccountName": "admin"}}, "spec.pod.serviceAccountName"),
        ({**MINIMAL, "pod": {"volumes": [{"name": "node", "hostPath": {"path": "/"}}]}}, "spec.pod.volumes[node]"),
    ],
)
def test_a_job_may_have_what_a_service_may(spec: Json, path: str) -> None:
    strict = OperatorProcess(policy=Policy(images=("shoal/*",), secrets=(), service_accounts=(), volumes=()))
    for engine in ("Job", "Ray"):
        resource = batch({**spec, "runtime": {"image": "ray:1", **spec.get("runtime", {})}, "engine": engine})
        reported = not_allowed(batch_target(resource, parse_batch_spec(resource), strict, "", {}))
        assert path in reported, reported
    plain = batch(MINIMAL)
    assert not_allowed(batch_target(plain, parse_batch_spec(plain), strict, "", {})) == ""
