"""Revisions and hashes of specs: the same for a spec as it was written and as an API server completes it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal_operator.manifests.revisions import pod_spec_text, revision_of
from shoal_schema.decoding import convert
from shoal_schema.fields.declaring import as_json
from shoal_schema.resource.comparison import CompareSpec, LatencyToleranceSpec
from shoal_schema.resource.graph import InferenceGraphSpec
from shoal_schema.resource.service import InferenceServiceSpec

CRD = Path(__file__).parents[3] / "crds" / "serving.shoal.dev_inferenceservices.yaml"
WRITTEN = {"model": {"uri": "file:///models/adder"}}


def completed(given: Any, schema: dict[str, Any]) -> Any:
    """Return an object with the defaults of its schema, as an API server stores it."""
    if not isinstance(given, dict):
        return given
    whole = dict(given)
    for name, field in schema.get("properties", {}).items():
        if name not in whole and "default" in field:
            whole[name] = field["default"]
        if name in whole:
            whole[name] = completed(whole[name], field)
    return whole


def test_defaults_that_the_api_server_adds_are_no_change_of_the_spec() -> None:
    schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    stored = completed(WRITTEN, schema)
    assert stored != WRITTEN

    older, newer = (convert(InferenceServiceSpec, each, "spec") for each in (WRITTEN, stored))
    assert as_json(newer) == as_json(older) == WRITTEN
    assert revision_of(newer) == revision_of(older)
    assert pod_spec_text(newer) == pod_spec_text(older)


@pytest.mark.parametrize("more", [{"asynchronous": {}}, {"runtime": {"precision": {"maxRelError": "0.1"}}}])
def test_a_section_that_changes_the_pods_is_a_change(more: dict[str, Any]) -> None:
    changed = convert(InferenceServiceSpec, WRITTEN | more, "spec")

    assert as_json(changed) == WRITTEN | more


def test_defaults_of_inner_sections_are_omitted_everywhere() -> None:
    compare = CompareSpec(latency=LatencyToleranceSpec())
    assert as_json((compare, CompareSpec())) == [{}, {}]

    step = {"name": "a", "service": "adder", "inputs": {"x": "request.x"}}
    steps = {"steps": [step], "outputs": {"y": ["a.y"]}}
    graph = convert(
        InferenceGraphSpec, steps | {"rollout": {"compare": {"latency": {}}}, "proxy": {"cors": {}}}, "spec"
    )
    assert as_json(graph) == as_json(convert(InferenceGraphSpec, steps, "spec"))
