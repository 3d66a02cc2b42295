"""The definition of BatchInference: valid, with rules on what may be asked for, and on what may be changed later."""

from typing import Any

import cel
import kubernetes_validate
import pytest

from shoal_schema.fields.declaring import Json, fields_of
from shoal_schema.publishing.batch import batches
from shoal_schema.publishing.crd import custom_resource_definition
from shoal_schema.resource.locations import scheme_of
from shoal_schema.resource.offline import STORES, BatchInferenceSpec
from tests.schema.test_crd import defaulted
from tests.schema.test_locations import HOSTILE

CHANGEABLE = ("suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
MINIMAL: Json = {
    "model": {"uri": "file:///models/cat"},
    "input": {"uri": "s3://bucket/in/"},
    "output": {"uri": "s3://bucket/out/"},
}


def schema() -> Json:
    found: Json = custom_resource_definition(batches())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def refused(old: Json, new: Json) -> list[str]:
    """Return the messages of the rules of the spec that a change breaks."""
    part = schema()["properties"]["spec"]
    values = {"self": defaulted(part, new), "oldSelf": defaulted(part, old)}
    return [rule["message"] for rule in part["x-kubernetes-validations"] if not cel.evaluate(rule["rule"], values)]


def test_the_definition_passes_the_strict_schema_of_kubernetes() -> None:
    kubernetes_validate.validate(custom_resource_definition(batches()), "1.37", strict=True)


def test_every_field_may_be_changed_or_says_that_it_may_not() -> None:
    fixed = {rule.path for rule in BatchInferenceSpec.RULES if "cannot be changed" in rule.message}
    assert fixed | {*CHANGEABLE} == {each.name for each in fields_of(BatchInferenceSpec)}
    assert not fixed & {*CHANGEABLE}


@pytest.mark.parametrize(
    "change",
    [{"suspend": True}, {"ttlSecondsAfterFinished": 60}, {"activeDeadlineSeconds": 60}],
)
def test_what_pods_are_not_reported_may_be_changed(change: Json) -> None:
    assert refused(MINIMAL, {**MINIMAL, **change}) == []
    assert refused({**MINIMAL, **change}, MINIMAL) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", {"uri": "file:///models/dog"}),
        ("input", {"uri": "s3://bucket/others/"}),
        ("output", {"uri": "s3://bucket/elsewhere/"}),
        ("batchSize", 8),
        ("secretName", "keys"),
        ("maxErrorShare", "0.5"),
        ("backoffLimit", 5),
        ("parallelism", 8),
    ],
)
def test_what_pods_are_reported_may_not_be_changed_added_or_taken_away(name: str, value: Any) -> None:
    changed = {**MINIMAL, name: value}
    assert [each.split()[0] for each in refused(MINIMAL, changed)] == [name]
    assert [each.split()[0] for each in refused(changed, MINIMAL)] == [name]


def test_ray_needs_an_image() -> None:
    ray: Json = {**MINIMAL, "engine": "Ray"}
    assert [each.split(":")[0] for each in refused(ray, ray)] == ["engine"]
    ray["runtime"] = {"image": "ray:1"}
    assert refused(ray, ray) == []


@pytest.mark.parametrize("uri", [each for each in HOSTILE if scheme_of(each) in STORES])
def test_the_definition_rejects_credentials_in_every_address(uri: str) -> None:
    specs = {
        "input.uri": {**MINIMAL, "input": {"uri": uri}},
        "output.uri": {**MINIMAL, "output": {"uri": uri}},
        "output.errors": {**MINIMAL, "output": {"uri": "s3://bucket/out/", "errors": uri}},
    }
    for name, spec in specs.items():
        assert [each.split()[0] for each in refused(spec, spec)] == [name]
