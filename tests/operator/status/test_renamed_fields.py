"""Fields of older releases that an API server has dropped."""

import json
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from shoal_operator.status.conditions import evaluate_conditions
from shoal_operator.status.events import transitions
from shoal_operator.status.renamed_fields import dropped_fields
from shoal_operator.status.status import make_status
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import ConditionType, Reason, Status
from shoal_schema.resource.model import Follow
from tests.operator.samples import MINIMAL, service, target, with_fields
from tests.operator.worlds import evidence, healthy, pod

OLD: Json = {"queue": {"maxItems": 4096}, "runtime": {"forwardHeaders": ["x-tenant"]}}
OWNED: Json = {"f:queue": {"f:maxItems": {}}, "f:runtime": {"f:forwardHeaders": {'v:"x-tenant"': {}}}}
BOTH = {"queue.maxItems": "queue.maxRows", "runtime.forwardHeaders": "proxy.forwardHeaders"}


def applied(spec: Json) -> Json:
    """Return the metadata of an object that `kubectl apply` wrote; its defaults are said to be set as well."""
    text = json.dumps({"spec": {**MINIMAL, **spec}})
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": text}
    return {"annotations": annotations, **managed("Update", OWNED)}


def managed(operation: str, fields: Json) -> Json:
    return {"managedFields": [{"manager": "kubectl", "operation": operation, "fieldsV1": {"f:spec": fields}}]}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (applied(OLD), BOTH),
        (managed("Apply", OWNED), BOTH),
        # A client's update is noted together with the defaults of then, and maxItems had one.
        (managed("Update", OWNED), {"runtime.forwardHeaders": "proxy.forwardHeaders"}),
        (applied({}), {}),
        ({}, {}),
        ({"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "[" * 5000}}, {}),
        ({"annotations": {"kubectl.kubernetes.io/last-applied-configuration": '"text"'}}, {}),
        ({"managedFields": [{"operation": "Apply", "fieldsV1": {"f:status": {}}}, {}]}, {}),
    ],
    ids=["applied", "server-side", "updated", "renamed-since", "no-trace", "deep", "no-object", "of-status"],
)  # fmt: skip
def test_a_field_that_was_dropped_is_known_by_its_traces(metadata: Json, expected: dict[str, str]) -> None:
    assert dropped_fields(service(**metadata)) == expected


@pytest.mark.parametrize("rows", [1024, 4096])
def test_new_field_name_is_not_reported(rows: int) -> None:
    spec = {**MINIMAL, "queue": {"maxRows": rows}, "proxy": {"forwardHeaders": []}}

    assert dropped_fields(service(spec, **managed("Apply", OWNED))) == {}


def test_a_broken_rule_of_a_stored_spec_is_a_condition_and_the_service_stays_ready() -> None:
    spec = with_fields(MINIMAL, scaling={"minReplicas": 1, "maxReplicas": 2, "scaleToZeroDelaySeconds": 300})
    reported = {item.type: item for item in evaluate_conditions(evidence(spec, pod(), deployment=healthy()))}
    read = reported[ConditionType.SPEC_READ]

    assert reported[ConditionType.READY].status is Status.TRUE
    assert (read.status, read.reason) == (Status.FALSE, Reason.RULE_BROKEN)
    assert "spec.scaling.scaleToZeroDelaySeconds: " in read.message


def test_rules_apply_to_the_spec_as_it_was_written() -> None:
    spec = with_fields(MINIMAL, model={"uri": "models:/cat@champion", "follow": "Rollout"})
    fixed = target(with_fields(MINIMAL, model={"uri": "models:/cat/1", "follow": "Never"}))
    model = structs.replace(fixed.spec.model, follow=Follow.ROLLOUT)
    pods = replace(fixed, spec=structs.replace(fixed.spec, model=model))
    seen = replace(evidence(spec, pod(), deployment=healthy()), newest=pods)

    assert ConditionType.SPEC_READ not in {item.type for item in evaluate_conditions(seen)}


def test_a_dropped_field_is_a_condition_and_one_warning_and_the_service_stays_ready() -> None:
    seen = evidence(None, pod(), deployment=healthy())
    seen.observation.resource["metadata"] |= applied(OLD)
    reported = {item.type: item for item in evaluate_conditions(seen)}
    read = reported[ConditionType.SPEC_READ]

    assert reported[ConditionType.READY].status is Status.TRUE
    assert (read.status, read.reason) == (Status.FALSE, Reason.FIELD_RENAMED)
    assert "spec.queue.maxItems was renamed to queue.maxRows" in read.message
    assert "spec.runtime.forwardHeaders was renamed to proxy.forwardHeaders" in read.message

    first: list[Any] = make_status(seen, "2026-01-01T00:00:00Z")["conditions"]
    warnings = [news.reason for news in transitions([], first) if news.warning]
    assert warnings == [Reason.FIELD_RENAMED]
    assert transitions(first, first) == []
