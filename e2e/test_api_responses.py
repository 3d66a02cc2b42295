"""Answers of the API server that clients rely on: the embedded one gives them in the words of a real one."""

from typing import Any

import pytest
import yaml

from e2e.clusters.cluster import Cluster

NOT_CHECKED = (
    "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation"
)
APPLY = ("apply", "--filename", "-")
APPLY_ON_SERVER = (*APPLY, "--server-side")


def service(name: str = "adder", **spec: Any) -> str:
    body = {"apiVersion": "serving.shoal.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": name}}
    # No pod is wanted: only what the API server says.
    return yaml.safe_dump({**body, "spec": {"model": {"uri": "file:///models/adder"}, "replicas": 0, **spec}})


def config_map(**data: str) -> str:
    return yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "words"}, "data": data})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            service(scaling={"minReplicas": 3, "maxReplicas": 2}),
            'The InferenceService "adder" is invalid: '
            "spec.scaling.minReplicas: Invalid value: minReplicas must not exceed maxReplicas",
        ),
        (
            service(batching={"maxBatchSize": "many"}),
            'The InferenceService "adder" is invalid: \n* spec.batching.maxBatchSize: Invalid value: "string": '
            'spec.batching.maxBatchSize in body must be of type integer: "string"\n* ' + NOT_CHECKED,
        ),
        (
            service(batching={"maxBatchSise": 8}),
            'Error from server (BadRequest): error when creating "STDIN": InferenceService in version '
            '"v1alpha1" cannot be handled as a InferenceService: strict decoding error: '
            'unknown field "spec.batching.maxBatchSise"',
        ),
        (
            service("a" * 64),
            f'The InferenceService "{"a" * 64}" is invalid: \n'
            f"* metadata.name: Too long: may not be more than 63 bytes\n* {NOT_CHECKED}",
        ),
    ],
    ids=["rule", "type", "unknown-field", "long-name"],
)
def test_a_wrong_service_is_refused_in_these_words(namespace: Cluster, text: str, said: str) -> None:
    done = namespace.kubectl(*APPLY, text=text, check=False)

    assert done.returncode == 1
    assert done.stderr.strip() == said


def test_an_unknown_field_is_refused_by_server_side_apply(namespace: Cluster) -> None:
    done = namespace.kubectl(*APPLY_ON_SERVER, text=service(nope=1), check=False)

    known = f"{namespace.namespace}/adder; serving.shoal.dev/v1alpha1, Kind=InferenceService"
    said = f"failed to create typed patch object ({known}): .spec.nope: field not declared in schema"
    assert done.stderr.strip() == f"Error from server: {said}"


def test_null_is_nothing_for_a_field_that_may_not_be_null(namespace: Cluster) -> None:
    namespace.kubectl(*APPLY, text=service(runtime={"image": None, "device": None}, scaling=None))

    spec = namespace.get("infsvc", "adder")["spec"]
    assert "image" not in spec["runtime"]
    assert spec["runtime"]["device"] == "Auto"
    assert "scaling" not in spec


def test_a_field_of_another_manager_is_a_conflict(namespace: Cluster) -> None:
    namespace.kubectl(*APPLY_ON_SERVER, "--field-manager=first", text=config_map(greeting="hello"))

    done = namespace.kubectl(*APPLY_ON_SERVER, "--field-manager=second", text=config_map(greeting="bye"), check=False)

    assert done.stderr.startswith('error: Apply failed with 1 conflict: conflict with "first": .data.greeting\n')
    namespace.kubectl(*APPLY_ON_SERVER, "--field-manager=second", "--force-conflicts", text=config_map(greeting="bye"))
    assert namespace.get("configmap", "words")["data"] == {"greeting": "bye"}


def test_the_scale_of_a_service_is_a_scale(namespace: Cluster) -> None:
    namespace.kubectl(*APPLY, text=service())

    done = namespace.kubectl("scale", "infsvc/adder", "--replicas=1", "--current-replicas=7", check=False)
    assert done.stderr.strip() == "error: Expected replicas to be 7, was 0"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("pods?watch=1&resourceVersion=x", 'resourceVersion: Invalid value: "x": strconv.ParseUint: parsing "x"'),
        ("pods?resourceVersion=x", 'resourceVersion: Invalid value: "x": strconv.ParseUint: parsing "x"'),
        (
            "pods?watch=1&sendInitialEvents=true",
            "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
        ("pods?fieldSelector=spec.nope%3Db", "field label not supported: spec.nope"),
    ],
    ids=["watch-version", "list-version", "initial-events", "field-selector"],
)
def test_options_that_cannot_be_are_refused_before_the_answer(namespace: Cluster, path: str, said: str) -> None:
    url = f"/api/v1/namespaces/{namespace.namespace}/{path}"

    done = namespace.kubectl("get", "--raw", url, check=False)

    assert done.returncode == 1
    assert said in done.stderr


def test_the_operator_may_do_what_the_chart_says_and_no_more(cluster: Cluster) -> None:
    account = "--as=system:serviceaccount:shoal-system:shoal-operator"

    assert cluster.kubectl("auth", "can-i", "list", "pods", account, check=False).stdout == "yes\n"
    assert cluster.kubectl("auth", "can-i", "create", "pods", account, check=False).stdout == "no\n"
    done = cluster.kubectl("get", "secrets", account, check=False)
    assert 'cannot list resource "secrets" in API group "" in the namespace "default"' in done.stderr
