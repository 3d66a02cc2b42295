"""Validation of Jobs, with the messages of the Kubernetes API server."""

from typing import Any

import pytest

from shoal_local.apiserver.errors import ApiError
from tests.local.apiserver.cluster import PODS, Cluster, Object

JOBS = "/apis/batch/v1/namespaces/default/jobs"
SUMS = f"{JOBS}/sums"
INDEXED: Object = {"completionMode": "Indexed", "completions": 2}


def job(name: str = "sums", policy: str = "Never", **spec: Any) -> Object:
    containers = [{"name": "main", "image": "python:3"}]
    template = {"spec": {"restartPolicy": policy, "containers": containers}}
    metadata = {"name": name}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template, **spec}}


def denial(cluster: Cluster, body: Object) -> str:
    with pytest.raises(ApiError) as raised:
        cluster.post(JOBS, body)
    assert raised.value.code == 422
    return raised.value.message.split(" is invalid: ")[1]


def test_a_job_gets_what_a_real_server_gives_it(cluster: Cluster) -> None:
    made = cluster.post(JOBS, job())
    uid, spec = made["metadata"]["uid"], made["spec"]
    labels = {"controller-uid": uid, "job-name": "sums"}
    labels |= {f"batch.kubernetes.io/{key}": value for key, value in labels.items()}
    template = spec.pop("template")
    assert spec == {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": 6,
        "completionMode": "NonIndexed",
        "suspend": False,
        "manualSelector": False,
        "podReplacementPolicy": "TerminatingOrFailed",
        "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}},
    }
    assert template["metadata"]["labels"] == made["metadata"]["labels"] == labels
    assert template["spec"]["terminationGracePeriodSeconds"] == 30
    assert "status" not in made
    assert made["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"parallelism": 3}, "completions", None),
        ({"completions": 3}, "parallelism", 1),
        ({**INDEXED, "backoffLimitPerIndex": 1}, "backoffLimit", 2**31 - 1),
        ({"completionMode": "Indexed"}, "completions", 1),
    ],
)
def test_defaults_depend_on_what_is_given(cluster: Cluster, given: Object, field: str, value: int | None) -> None:
    assert cluster.post(JOBS, job(**given))["spec"].get(field) == value


def test_a_selector_of_ones_own_is_kept(cluster: Cluster) -> None:
    body = job(manualSelector=True, selector={"matchLabels": {"app": "a"}})
    body["spec"]["template"]["metadata"] = {"labels": {"app": "a"}}
    made = cluster.post(JOBS, body)
    assert made["spec"]["selector"] == {"matchLabels": {"app": "a"}}
    assert made["metadata"]["labels"] == made["spec"]["template"]["metadata"]["labels"] == {"app": "a"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (job(policy="Always"), 'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'),
        (
            job(policy="Often"),
            'spec.template.spec.restartPolicy: Unsupported value: "Often": supported values: "OnFailure", "Never"',
        ),
        (
            job(completions=-2, ttlSecondsAfterFinished=-1),
            "[spec.completions: Invalid value: -2: must be greater than or equal to 0, "
            "spec.ttlSecondsAfterFinished: Invalid value: -1: must be greater than or equal to 0]",
        ),
        (
            job(completionMode="Odd"),
            'spec.completionMode: Unsupported value: "Odd": supported values: "NonIndexed", "Indexed"',
        ),
        (
            job(completionMode="Indexed", parallelism=2),
            "spec.completions: Required value: when completion mode is Indexed",
        ),
        (job(backoffLimitPerIndex=1), "spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode"),
        (
            job(**INDEXED, maxFailedIndexes=1),
            "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
        ),
        (
            job(**INDEXED, backoffLimitPerIndex=1, maxFailedIndexes=3),
            "spec.maxFailedIndexes: Invalid value: 3: must be less than or equal to completions",
        ),
        (job("a" * 64), f'spec.template.labels: Invalid value: "{"a" * 64}": must be no more than 63 bytes'),
        (
            job("a.b", **INDEXED),
            'metadata.name: Invalid value: "a.b": will not able to create pod with invalid DNS label: a.b-1',
        ),
        (
            job(podFailurePolicy={"rules": [{"action": "Count", "onPodConditions": [{"type": "Odd"}]}]}),
            "spec.podFailurePolicy.rules[0]: Forbidden",
        ),
    ],
)
def test_what_cannot_be_a_job_is_refused(cluster: Cluster, body: Object, said: str) -> None:
    assert said in denial(cluster, body)


def patched(**spec: Any) -> Object:
    return {"spec": spec}


TOLERATION = {"template": {"spec": {"nodeSelector": {"disk": "fast"}}}}


@pytest.mark.parametrize(
    ("given", "change", "field"),
    [
        ({}, {"parallelism": 5}, ""),
        ({}, {"completions": 5}, "spec.completions"),
        (INDEXED, {"completions": 5}, "spec.completions"),
        (INDEXED, {"completions": 5, "parallelism": 5}, ""),
        (INDEXED, {"completionMode": "NonIndexed"}, "spec.completionMode"),
        ({**INDEXED, "backoffLimitPerIndex": 1}, {"backoffLimitPerIndex": 2}, "spec.backoffLimitPerIndex"),
        ({}, {"backoffLimit": 1, "suspend": True, "activeDeadlineSeconds": 5, "ttlSecondsAfterFinished": 5}, ""),
        ({}, TOLERATION, "spec.template"),
        ({"suspend": True}, TOLERATION, ""),
        ({"suspend": True}, {"template": {"spec": {"restartPolicy": "OnFailure"}}}, "spec.template"),
    ],
)
def test_what_pods_are_made_from_is_fixed(cluster: Cluster, given: Object, change: Object, field: str) -> None:
    cluster.post(JOBS, job(**given))
    if not field:
        assert cluster.patch(SUMS, patched(**change))["metadata"]["generation"] == 2
        return
    with pytest.raises(ApiError) as raised:
        cluster.patch(SUMS, patched(**change))
    assert [cause["field"] for cause in raised.value.details["causes"]] == [field]


def test_a_job_that_was_started_and_suspended_keeps_its_template(cluster: Cluster) -> None:
    cluster.post(JOBS, job(suspend=True))
    cluster.patch(f"{SUMS}/status", {"status": {"startTime": "2026-01-02T03:04:05Z"}})
    with pytest.raises(ApiError, match="field is immutable"):
        cluster.patch(SUMS, patched(**TOLERATION))


def test_a_job_is_applied_again_and_sent_back_as_it_is(cluster: Cluster) -> None:
    made = cluster.apply(SUMS, job(**INDEXED))
    assert cluster.apply(SUMS, job(**INDEXED)) == made
    assert cluster.request("PUT", SUMS, made).body == made
    assert cluster.apply(SUMS, job(**INDEXED, suspend=True))["spec"]["suspend"] is True


def test_jobs_are_found_by_labels_and_fields(cluster: Cluster) -> None:
    for name in ("one", "two"):
        cluster.post(JOBS, job(name))
    for query in ({"labelSelector": "job-name=two"}, {"fieldSelector": "metadata.name=two"}):
        assert [each["metadata"]["name"] for each in cluster.request("GET", JOBS, **query).body["items"]] == ["two"]


def test_pods_go_after_their_job_once_they_are_let_go(cluster: Cluster, pod: Object) -> None:
    made = cluster.post(JOBS, job())
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "sums", "uid": made["metadata"]["uid"]}
    finalizers = ["batch.kubernetes.io/job-tracking"]
    cluster.post(PODS, {**pod, "metadata": {"name": "p", "ownerReferences": [owner], "finalizers": finalizers}})
    cluster.delete(SUMS, propagationPolicy="Background")
    cluster.collect()
    assert cluster.get(f"{PODS}/p")["metadata"]["deletionGracePeriodSeconds"] == 0
    cluster.patch(f"{PODS}/p", {"metadata": {"finalizers": None}})
    assert cluster.get(PODS)["items"] == []
