"""Evictions against PodDisruptionBudgets."""

from typing import Any

import pytest

from shoal_local.apiserver.errors import ApiError
from shoal_local.objects import condition, controller_of
from tests.local.apiserver.cluster import DEPLOYMENTS, PODS, Cluster, Object

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
SETS = "/apis/apps/v1/namespaces/default/replicasets"
EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction"}


def budget(**spec: Any) -> Object:
    return {"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec}}


def owner(kind: str, made: Object) -> list[Object]:
    meta = made["metadata"]
    return [{"apiVersion": "apps/v1", "kind": kind, "name": meta["name"], "uid": meta["uid"], "controller": True}]


def start(cluster: Cluster, pod: Object, name: str, *, ready: bool = True) -> None:
    """Create a pod that runs on a node."""
    cluster.post(PODS, {**pod, "metadata": {**pod["metadata"], "name": name}})
    cluster.post(f"{PODS}/{name}/binding", {"target": {"kind": "Node", "name": "n"}})
    conditions = [{"type": "Ready", "status": str(ready)}]
    cluster.patch(f"{PODS}/{name}/status", {"status": {"phase": "Running", "conditions": conditions}})


def evict(cluster: Cluster, name: str, **options: Any) -> Object:
    return cluster.post(f"{PODS}/{name}/eviction", {**EVICTION, "metadata": {"name": name}, "deleteOptions": options})


def test_an_evicted_pod_is_deleted_with_the_reason(cluster: Cluster, pod: Object) -> None:
    start(cluster, pod, "one")
    assert evict(cluster, "one", gracePeriodSeconds=7)["status"] == "Success"

    gone = cluster.get(f"{PODS}/one")
    assert gone["metadata"]["deletionGracePeriodSeconds"] == 7
    assert (condition(gone, "DisruptionTarget") or {})["reason"] == "EvictionByEvictionAPI"
    assert (condition(gone, "Ready") or {})["status"] == "True"


def test_a_dry_run_and_a_failed_precondition_change_nothing(cluster: Cluster, pod: Object) -> None:
    start(cluster, pod, "one")
    before = cluster.get(f"{PODS}/one")
    evict(cluster, "one", dryRun=["All"])
    cluster.delete(f"{PODS}/one", dryRun=["All"])
    with pytest.raises(ApiError) as raised:
        evict(cluster, "one", preconditions={"uid": "another"})
    assert raised.value.code == 409
    assert cluster.get(f"{PODS}/one") == before


@pytest.mark.parametrize(
    "spec", [{"maxUnavailable": 1}, {"minAvailable": 1}, {"maxUnavailable": "50%"}, {"minAvailable": "50%"}, {}]
)
def test_a_budget_of_two_pods_gives_up_one(cluster: Cluster, pod: Object, spec: Object) -> None:
    cluster.post(BUDGETS, budget(**spec))
    for name in ("one", "two"):
        start(cluster, pod, name)
    evict(cluster, "one")

    with pytest.raises(ApiError, match="Cannot evict pod") as raised:
        evict(cluster, "two")
    assert (raised.value.code, raised.value.reason) == (429, "TooManyRequests")
    assert raised.value.details["causes"][0]["reason"] == "DisruptionBudget"
    assert "deletionTimestamp" not in cluster.get(f"{PODS}/two")["metadata"]


def test_replicas_that_do_not_exist_yet_count(cluster: Cluster, pod: Object, deployment: Object) -> None:
    made = cluster.post(DEPLOYMENTS, deployment)
    template = deployment["spec"]["template"]
    below: Object = {"metadata": {"name": "web-1", "ownerReferences": owner("Deployment", made)}}
    below["spec"] = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    pod["metadata"]["ownerReferences"] = owner("ReplicaSet", cluster.post(SETS, below))
    cluster.post(BUDGETS, budget(maxUnavailable=1))
    start(cluster, pod, "one")
    assert controller_of(cluster.get(f"{PODS}/one"))

    with pytest.raises(ApiError, match="Cannot evict pod"):
        evict(cluster, "one")
    cluster.patch(f"{DEPLOYMENTS}/web", {"spec": {"replicas": 1}})
    evict(cluster, "one")


def test_a_pod_that_is_not_ready_goes_where_the_policy_says(cluster: Cluster, pod: Object) -> None:
    cluster.post(BUDGETS, budget(minAvailable=2))
    start(cluster, pod, "one")
    start(cluster, pod, "two", ready=False)
    with pytest.raises(ApiError, match="Cannot evict pod"):
        evict(cluster, "two")

    cluster.patch(f"{BUDGETS}/web", {"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}})
    evict(cluster, "two")


def test_budgets_of_other_pods_and_pods_that_do_not_run_do_not_count(cluster: Cluster, pod: Object) -> None:
    cluster.post(BUDGETS, budget(maxUnavailable=0) | {"metadata": {"name": "db"}})
    cluster.patch(f"{BUDGETS}/db", {"spec": {"selector": {"matchLabels": {"app": "db"}}}})
    start(cluster, pod, "one")
    evict(cluster, "one")

    cluster.post(BUDGETS, budget(maxUnavailable=0))
    cluster.post(PODS, {**pod, "metadata": {**pod["metadata"], "name": "two"}})
    evict(cluster, "two")
    with pytest.raises(ApiError, match="not found"):
        cluster.get(f"{PODS}/two")
