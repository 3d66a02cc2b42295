from typing import Any

import pytest

from shoal.serving.fields import FieldError
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
        "batching.allowedBatchSizes": [1, 8],
    }
    assert service.ignored == ()


def test_what_only_a_cluster_acts_on_is_named() -> None:
    spec = {
        "model": {"uri": "m"},
        "runtime": {"device": "cpu", "resources": {"limits": {}}},
        "scaling": {"maxReplicas": 8},
        "route": {},
    }

    service = find_service([manifest(spec)])

    assert service is not None
    assert service.ignored == ("runtime.resources", "scaling", "route")


def test_documents_of_other_kinds_are_no_service() -> None:
    assert find_service([{"kind": "ConfigMap"}, "text", None]) is None
    assert find_service([]) is None


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        pytest.param([manifest({})] * 2, "2 documents of kind InferenceService", id="two"),
        pytest.param(
            [manifest({}, apiVersion="serving.kserve.io/v1beta1")],
            "apiVersion must be serving.shoal.dev/v1alpha1, not serving.kserve.io/v1beta1",
            id="KServe's",
        ),
        pytest.param([manifest(None)], "no spec", id="no spec"),
        pytest.param([manifest([])], "no spec", id="a list"),
        pytest.param(
            [manifest({"batching": {"maxBatchsize": 1}})],
            r"no field batching.maxBatchsize; did you mean batching.maxBatchSize\?",
            id="a misspelt field",
        ),
        pytest.param([manifest({"mdl": {"uri": "x"}})], "no field mdl", id="a misspelt branch"),
        pytest.param([manifest({"model": "x"})], "no field model", id="text for a branch"),
        pytest.param(
            [manifest({"batching": {"maxBatchSize": "8"}})],
            "takes a whole number, not '8'",
            id="type",
        ),
        pytest.param([manifest({}, metadata={"name": 7})], "metadata.name takes text", id="name"),
        pytest.param([manifest({1: 2})], "no field 1", id="a number as a key"),
    ],
)
def test_a_manifest_that_cannot_be_meant_is_refused(documents: list[Any], message: str) -> None:
    with pytest.raises(FieldError, match=message):
        find_service(documents)
