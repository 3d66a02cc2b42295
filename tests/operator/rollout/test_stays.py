"""Which stopping pods keep serving, and how long."""

import datetime
from typing import Any

import pytest

from shoal_operator.rollout.stays import UNSEEN_S, plan_stays
from shoal_schema.fields.declaring import Json
from shoal_schema.interfaces.stay import DEFAULT_S
from tests.operator.samples import target
from tests.operator.worlds import pod, running, unschedulable

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
TAINTED = {**EVICTED, "reason": "DeletionByTaintManager"}
PREEMPTED = {**EVICTED, "reason": "PreemptionByScheduler"}
DRAIN_S = 75
STARTING = pod(ready=False, uid="new")


def stopping(*conditions: Json, grace_s: int = DEFAULT_S + DRAIN_S, **status: Any) -> Json:
    """Return a ready pod that is being deleted."""
    made = pod(uid="old", containerStatuses=[running("proxy")], **status)
    made["status"]["conditions"] += conditions
    killed_at = NOW + datetime.timedelta(seconds=grace_s)
    made["metadata"] |= {
        "deletionTimestamp": killed_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "deletionGracePeriodSeconds": grace_s,
    }
    return made


def until_s(text: str) -> float:
    return (datetime.datetime.fromisoformat(text) - NOW).total_seconds()


def stays(*pods: Json, wanted: int = 1, spec: Json | None = None, **status: Any) -> dict[str, int]:
    """Return how long each stopping pod keeps serving (s), by uid."""
    deployment = {"spec": {"replicas": wanted}, "status": status}
    whole = {"model": {"uri": "file:///models/cat"}, **(spec or {})}
    return {each.replica.uid: each.seconds for each in plan_stays(target(whole), pods, deployment, until_s)}


@pytest.mark.parametrize("why", [[], [EVICTED], [TAINTED]])
def test_the_last_ready_pod_keeps_serving_until_another_is(why: list[Json]) -> None:
    assert stays(stopping(*why), STARTING) == {"old": DEFAULT_S}


def test_a_pod_does_not_wait_long_for_a_replacement_that_is_not_made() -> None:
    refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
    assert stays(stopping(EVICTED)) == {"old": UNSEEN_S}
    assert stays(stopping(EVICTED), conditions=[refused]) == {"old": 0}
    assert stays(stopping(EVICTED), STARTING, conditions=[refused]) == {"old": DEFAULT_S}
    assert stays(stopping(EVICTED), spec={"rollout": {"replacementTimeoutSeconds": 3}}) == {"old": 3}


def test_a_pod_leaves_when_another_is_ready_or_none_is_wanted() -> None:
    assert stays(stopping(EVICTED), pod(uid="new")) == {"old": 0}
    assert stays(stopping(EVICTED), STARTING, wanted=0) == {"old": 0}


def test_of_pods_that_stop_together_each_keeps_serving() -> None:
    second = stopping(EVICTED)
    second["metadata"]["uid"] = "second"
    assert stays(stopping(EVICTED), second, STARTING, wanted=2) == {"old": DEFAULT_S, "second": DEFAULT_S}


@pytest.mark.parametrize(("why", "seconds"), [([], 0), ([EVICTED], DEFAULT_S), ([TAINTED], DEFAULT_S)])
def test_a_pod_does_not_keep_what_its_replacement_waits_for(why: list[Json], seconds: int) -> None:
    other = pod(ready=False, uid="new", conditions=unschedulable("0/1 nodes: 1 Insufficient nvidia.com/gpu."))
    assert stays(stopping(*why), other) == {"old": seconds}
    assert stays(stopping(*why), STARTING, spec={"rollout": {"maxSurge": 0, "maxUnavailable": 1}}) == {"old": seconds}


def test_a_preempted_pod_leaves() -> None:
    assert stays(stopping(PREEMPTED), STARTING) == {"old": 0}


@pytest.mark.parametrize(
    ("grace_s", "seconds"), [(30, 15), (10, 5), (0, 0), (DEFAULT_S + DRAIN_S - 10, DEFAULT_S - 10)]
)
def test_a_shorter_grace_period_leaves_time_to_drain(grace_s: int, seconds: int) -> None:
    assert stays(stopping(EVICTED, grace_s=grace_s), STARTING) == {"old": seconds}


@pytest.mark.parametrize(
    "spec",
    [
        {"rollout": {"replacementTimeoutSeconds": 0}},
        {"model": {}, "runtime": {"image": "other", "port": 8000}},
        {"pod": {"containers": [{"name": "beside", "image": "other"}]}},
    ],
)
def test_pods_without_a_grace_period_get_no_stay(spec: Json) -> None:
    assert stays(stopping(EVICTED), STARTING, spec=spec) == {}


def test_a_pod_whose_proxy_has_ended_is_reported_nothing() -> None:
    ended = stopping(EVICTED)
    ended["status"]["containerStatuses"] = [{"name": "proxy", "state": {"terminated": {"exitCode": 0}}}]
    without_address = stopping(EVICTED)
    del without_address["status"]["podIP"]
    assert stays(ended, without_address) == {}
