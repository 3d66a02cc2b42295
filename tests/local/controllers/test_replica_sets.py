from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from shoal_local.controllers.changes import Create, Delete, Patch
from shoal_local.controllers.deployments import make_replica_set
from shoal_local.controllers.replica_sets import COST, plan_replica_set

Object = dict[str, Any]
NOW = datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)


@pytest.fixture
def replica_set(deployment: Object) -> Object:
    made = make_replica_set(deployment, 1, 2)
    made["metadata"] |= {"uid": "rs", "generation": 1}
    return made


def test_missing_pods_are_created_with_the_set_as_their_owner(replica_set: Object) -> None:
    made = [a.object for a in plan_replica_set(replica_set, [], NOW).actions if isinstance(a, Create)]
    assert len(made) == 2
    assert made[0]["metadata"]["ownerReferences"][0]["uid"] == "rs"
    assert made[0]["metadata"]["labels"]["app"] == "web"


def test_pods_that_ended_or_are_going_are_replaced(replica_set: Object, make_pod: Callable[..., Object]) -> None:
    pods = [
        make_pod("failed", status={"phase": "Failed"}),
        make_pod("going", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
    ]
    plan = plan_replica_set(replica_set, pods, NOW)
    assert sum(isinstance(a, Create) for a in plan.actions) == 2


def test_the_least_useful_pod_is_deleted(replica_set: Object, make_pod: Callable[..., Object]) -> None:
    pods = [make_pod("a"), make_pod("unready", ready=False), make_pod("b")]
    gone = [a for a in plan_replica_set(replica_set, pods, NOW).actions if isinstance(a, Delete)]
    assert [a.object["metadata"]["name"] for a in gone] == ["unready"]


@pytest.mark.parametrize(("cost", "goes"), [("-1", "b"), ("5", "a"), ("no number", "a")])
def test_of_pods_that_are_ready_the_one_of_the_least_cost_is_deleted(
    replica_set: Object, make_pod: Callable[..., Object], cost: str, goes: str
) -> None:
    replica_set["spec"]["replicas"] = 1
    other, costly = make_pod("a"), make_pod("b", metadata={"annotations": {COST: cost}})
    gone = [a for a in plan_replica_set(replica_set, [other, costly], NOW).actions if isinstance(a, Delete)]
    assert [a.object["metadata"]["name"] for a in gone] == [goes]


def test_a_pod_is_available_after_min_ready_seconds(replica_set: Object, make_pod: Callable[..., Object]) -> None:
    replica_set["spec"]["minReadySeconds"] = 40
    plan = plan_replica_set(replica_set, [make_pod("a"), make_pod("b")], NOW)
    status = next(a.patch["status"] for a in plan.actions if isinstance(a, Patch))
    assert (status["readyReplicas"], status["availableReplicas"]) == (2, 0)
    assert plan.requeue_s == 10


def test_rejected_pod_is_reported_in_the_status(replica_set: Object) -> None:
    plan = plan_replica_set(replica_set, [], NOW, failure="no such account")
    status = next(a.patch["status"] for a in plan.actions if isinstance(a, Patch))
    assert status["conditions"][0]["message"] == "no such account"
