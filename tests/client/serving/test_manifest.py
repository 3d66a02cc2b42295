from typing import Any

import pytest

from shoal.serving.errors import FieldError
from shoal.serving.manifest import find_service


def manifest(spec: Any, **changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.shoal.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "cat", "labels": {"a": "b"}},
        "spec": spec,
    } | changes


def test_a_manifest_becomes_fields() -> None:
    spec = {
        "model": {"uri": "model", "parameters": {"deep": {"er": 1}}},
        "batching": {"maxBatchSize": 8, "allowedBatchSizes": [1, 8]},
        "runtime": {"device": None},
    }

    service = find_service([{"kind": "ConfigMap"}, None, manifest(spec)])

    assert service is not None
    assert service.fields == {
        "metadata.name": "cat",
        "model.uri": "model",
        "model.parameters": {"deep": {"er": 1}},
        "batching.maxBatchSize": 8,
        "batching.allowedBatchSizes": (1, 8),
    }
    assert service.ignored == ()


def test_what_only_a_cluster_acts_on_is_named() -> None:
    spec = {
        "model": {"uri": "m"},
        "runtime": {"device": "CPU", "image": "r", "resources": {"limits": {}}},
        "scaling": {"maxReplicas": 8},
        "route": {"ingress": {"host": "a.example"}},
        "replicas": 3,
        "pod": {"labels": {"team": "vision"}},
        "proxy": {"image": "p"},
    }

    service = find_service([manifest(spec)])

    assert service is not None
    assert service.ignored == (
        "runtime.image",
        "runtime.resources",
        "scaling.maxReplicas",
        "route.ingress.host",
        "replicas",
        "pod.labels",
        "proxy.image",
    )


def test_field_without_effect_is_reported_once_as_written() -> None:
    spec = {"model": {"uri": "m"}, "scaling": {"minReplicas": 1, "maxReplicas": 8}, "runtime": {"resources": {}}}
    service = find_service([manifest(spec)])

    assert service is not None
    assigned = [
        "scaling.maxReplicas",
        "scaling.maxReplicas",
        "runtime.resources.limits.cpu",
        "pod.labels",
        "pod.labels",
    ]
    assert service.without_effect(assigned) == [
        "scaling.minReplicas",
        "scaling.maxReplicas",
        "runtime.resources",
        "pod.labels",
    ]


def test_documents_of_other_kinds_are_no_service() -> None:
    assert find_service([{"kind": "ConfigMap"}, "text", None]) is None
    assert find_service([]) is None


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        pytest.param([manifest({})] * 2, "one document of kind InferenceService, .* not 2", id="two"),
        pytest.param(
            [manifest({}), {"kind": "InferenceGraf"}, manifest({})],
            "not 2, and InferenceGraf",
            id="two and what is no graph",
        ),
        pytest.param(
            [manifest({}), {"kind": "InferenceGraph"}, manifest({})],
            "`shoal serve FILE`",
            id="a graph",
        ),
        pytest.param(
            [manifest({}, apiVersion="serving.kserve.io/v1beta1")],
            "apiVersion must be serving.shoal.dev/v1alpha1, not serving.kserve.io/v1beta1",
            id="KServe's",
        ),
        pytest.param([manifest(None)], "no spec", id="no spec"),
        pytest.param([manifest([])], "no spec", id="a list"),
        pytest.param(
            [manifest({"model": {}, "batching": {"maxBatchsize": 1}})],
            r"no field spec.batching.maxBatchsize; did you mean maxBatchSize\?",
            id="a misspelt field",
        ),
        pytest.param([manifest({"mdl": {}})], "no field spec.mdl; did you mean model", id="a misspelt branch"),
        pytest.param([manifest({"model": "x"})], "spec.model must be of type object, not 'x'", id="text for a branch"),
        pytest.param(
            [manifest({"model": {}, "batching": {"maxBatchSize": "8"}})],
            "spec.batching.maxBatchSize must be of type int, not '8'",
            id="type",
        ),
        pytest.param(
            [manifest({"model": {"uri": "m"}}, metadata={"name": 7})],
            "metadata.name must be of type str, not 7",
            id="name",
        ),
        pytest.param([manifest({"model": {}, 1: 2})], "every name must be of type str", id="a number as a key"),
    ],
)
def test_a_manifest_that_cannot_be_meant_is_refused(documents: list[Any], message: str) -> None:
    with pytest.raises(FieldError, match=message):
        find_service(documents)
