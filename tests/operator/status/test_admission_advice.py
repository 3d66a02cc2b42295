"""What is said to change where a quota, a policy or a LimitRange says no."""

import dataclasses
from typing import Any

import pytest

from shoal_operator.children.observation import Failure
from shoal_operator.manifests.desired import DEPLOYMENT, SERVICE, desired_objects
from shoal_operator.status.admission_advice import pod_advice
from shoal_operator.status.blocked import advice
from shoal_operator.status.conditions import evaluate_conditions
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import ConditionType, Reason, Status
from tests.operator.samples import DOWNLOADED, MINIMAL, target, with_fields
from tests.operator.worlds import evidence, healthy, pod

QUOTA = 'services "cat" is forbidden: exceeded quota: few, requested: services=1, used: services=0, limited: services=0'


def template(spec: Json) -> Json:
    found: Json = desired_objects(target(spec))[DEPLOYMENT]["spec"]["template"]
    return found


@pytest.mark.parametrize(
    ("spec", "cause", "named"),
    [
        (
            {},
            "maximum memory usage per Container is 700Mi, but limit is 1536Mi",
            ["proxy.resources.limits.memory (now 1536Mi)"],
        ),
        (
            {"runtime": {"resources": {"limits": {"memory": "1024Mi"}}}},
            "[maximum memory usage per Container is 700Mi, but limit is 1536Mi, maximum memory usage per Container is"
            " 700Mi, but limit is 1Gi]",
            ["proxy.resources.limits.memory (now 1536Mi)", "runtime.resources.limits.memory (now 1024Mi)"],
        ),
        (
            {"proxy": {"resources": {"limits": {"cpu": "10m"}}}},
            "minimum cpu usage per Container is 50m, but request is 10m",
            ["proxy.resources.requests.cpu (now 10m)"],
        ),
        (
            {},
            "maximum cpu usage per Container is 1.5. No limit is specified",
            ["runtime.resources.limits.cpu (now not set)"],
        ),
        (
            {},
            "cpu max limit to request ratio per Container is 4, but provided ratio is 20.000000",
            ["proxy.resources.limits.cpu (now 2)"],
        ),
        (
            {"model": {"uri": "https://a/b"}},
            "maximum cpu usage per Container is 500m, but limit is 1",
            ["model.resources.limits.cpu (now 1)"],
        ),
        (
            {},
            "maximum memory usage per Pod is 1Gi, but limit is 1600Mi",
            ["runtime.resources or proxy.resources"],
        ),
        (
            DOWNLOADED,
            "maximum memory usage per Pod is 1Gi, but limit is 1600Mi",
            ["runtime.resources or proxy.resources or model.resources"],
        ),
    ],
    ids=["default", "both", "request", "none", "ratio", "init", "pod", "pod with three"],
)
def test_field_that_a_limit_range_rejects_is_named(spec: Json, cause: str, named: list[str]) -> None:
    reported = pod_advice(cause, template({**MINIMAL, **spec}))

    assert reported == f". Change {' and '.join(named)}, or the namespace's LimitRange"


def test_containers_that_must_specify_limits_are_named() -> None:
    reported = pod_advice("must specify limits.cpu", template(MINIMAL))
    assert reported == ". Set limits in runtime.resources and proxy.resources"
    proxy = {"spec": {"containers": [{"name": "proxy"}]}}
    assert pod_advice("must specify limits.cpu", proxy) == ". Set limits in proxy.resources"


@pytest.mark.parametrize(
    "cause", ["maximum  usage per Container is 1", "no account", "per Container is x, but limit is"]
)
def test_unknown_message_gets_no_advice(cause: str) -> None:
    assert "now" not in pod_advice(cause, template(DOWNLOADED))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ('services is forbidden: User "x" cannot create resource "services" in API group ""', "chart's role"),
        (QUOTA, "ResourceQuota of the namespace is exhausted"),
        ('admission webhook "policy.example.com" denied the request: no team label', "admission policy or webhook"),
        ("something else", ""),
    ],
)
def test_advice_depends_on_the_policy_in_the_message(message: str, said: str) -> None:
    assert said in advice(403, message)
    assert bool(said) == bool(advice(403, message))
    assert advice(422, message) == ""


def test_service_rejected_by_a_quota_is_not_reported_as_existing() -> None:
    seen = evidence(None, pod(), deployment=healthy(), failures=(Failure(SERVICE, 403, QUOTA),))
    children: Any = {kind: child for kind, child in seen.observation.children.items() if kind != SERVICE}
    seen = dataclasses.replace(seen, observation=dataclasses.replace(seen.observation, children=children, slices=()))
    available = next(item for item in evaluate_conditions(seen) if item.type is ConditionType.AVAILABLE)

    assert (available.status, available.reason) == (Status.FALSE, Reason.APPLY_FAILED)
    assert "exceeded quota: few" in available.message
    assert "is exhausted" in available.message


def test_rejected_pods_are_the_reason_for_unavailability() -> None:
    refusal = {
        "type": "ReplicaFailure",
        "status": "True",
        "message": "maximum cpu usage per Container is 1, but limit is 2",
    }
    seen = evidence(with_fields(MINIMAL), deployment={"conditions": [refusal]})
    reported = {item.type: item for item in evaluate_conditions(seen)}

    assert reported[ConditionType.AVAILABLE].reason is Reason.PODS_REFUSED
    assert "proxy.resources.limits.cpu" in reported[ConditionType.READY].message
