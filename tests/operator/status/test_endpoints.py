"""Ready pods are not enough: the Service must lead to one of them."""

from dataclasses import replace
from typing import Any

import pytest

from shoal_operator.manifests.desired import SERVICE
from shoal_operator.status.conditions import evaluate_conditions
from shoal_operator.status.evidence import Evidence
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import ConditionType, Reason, Status
from tests.operator.worlds import evidence, healthy, pod

READY = {"addresses": ["10.0.0.1"], "conditions": {"ready": True}}
UNKNOWN = {"addresses": ["10.0.0.1"]}
STARTING = {"addresses": ["10.0.0.1"], "conditions": {"ready": False}}


def seen(*endpoints: Json, owner: str = "", **change: Any) -> Evidence:
    """Return the evidence about a service with a ready pod and one EndpointSlice."""
    world = evidence(None, pod(), deployment=healthy())
    uid = owner or world.observation.children[SERVICE]["metadata"]["uid"]
    metadata = {
        "name": "cat-1",
        "ownerReferences": [{"kind": "Service", "name": "cat", "uid": uid, "controller": True}],
    }
    found = {"metadata": metadata, "endpoints": list(endpoints) or None}
    observation = replace(world.observation, **{"slices": (found,), **change})
    return replace(world, observation=observation)


def conditions(world: Evidence) -> dict[ConditionType, tuple[Status, Reason]]:
    return {ConditionType(item.type): (item.status, item.reason) for item in evaluate_conditions(world)}


@pytest.mark.parametrize(
    "world",
    [seen(), seen(STARTING), seen(READY, owner="of another Service"), seen(slices=()), seen(READY, children={})],
    ids=["empty", "none ready", "another's", "no slice", "no service"],
)
def test_a_service_without_a_ready_endpoint_is_neither_ready_nor_available(world: Evidence) -> None:
    if world.observation.children:
        assert conditions(world)[ConditionType.READY] == (Status.FALSE, Reason.NO_ENDPOINTS)
        assert conditions(world)[ConditionType.AVAILABLE] == (Status.FALSE, Reason.NO_ENDPOINTS)
        assert conditions(world)[ConditionType.MODEL_LOADED] == (Status.TRUE, Reason.MODEL_LOADED)
    assert conditions(world)[ConditionType.READY][0] is Status.FALSE


@pytest.mark.parametrize("world", [seen(READY), seen(UNKNOWN), seen(STARTING, READY), seen(slices=None)])
def test_a_service_with_one_ready_endpoint_is_ready(world: Evidence) -> None:
    assert conditions(world)[ConditionType.READY] == (Status.TRUE, Reason.READY)
    assert conditions(world)[ConditionType.AVAILABLE] == (Status.TRUE, Reason.AVAILABLE)
