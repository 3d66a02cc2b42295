"""Pods that have to leave their node: requests are served until others are ready to."""

import json
import time
from functools import partial
from typing import Any

from e2e.clients import EXPECTED, background_clients, predict
from e2e.clusters.cluster import OPERATOR, Cluster
from e2e.waiting import eventually

SPEC: dict[str, Any] = {"rollout": {"drainDelaySeconds": 2}}


def pods(cluster: Cluster) -> dict[str, dict[str, object]]:
    """Return the pods of the service by name."""
    return {each["metadata"]["name"]: each for each in cluster.get("pods")}


def evict(cluster: Cluster, name: str) -> str:
    """Evict a pod as a drain does; return what the API server said where it refused."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": cluster.namespace}}
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{name}/eviction"
    return cluster.kubectl("create", "--raw", path, "--filename", "-", text=json.dumps(body), check=False).stderr


def evicted(cluster: Cluster, name: str) -> bool:
    return not evict(cluster, name)


def described(cluster: Cluster) -> str:
    return cluster.kubectl("describe", "infsvc,pods", check=False).stdout


def until_replaced(cluster: Cluster, old: set[str], count: int) -> None:
    """Wait until so many other pods are ready and the old ones have ended."""

    def replaced() -> bool:
        found = pods(cluster)
        return len(found) == count and not old & found.keys() and cluster.condition("adder")["status"] == "True"

    eventually(replaced, lambda: described(cluster))


def test_a_service_of_one_replica_loses_no_request_when_its_pod_is_evicted(namespace: Cluster) -> None:
    namespace.apply(**SPEC)
    namespace.until_ready()
    (old,) = pods(namespace)

    with background_clients(namespace, keeping=2, fresh=2) as seen:
        eventually(lambda: seen.answered > 50)
        assert not evict(namespace, old)
        until_replaced(namespace, {old}, 1)
        after = seen.answered
        eventually(lambda: seen.answered > after + 50)
    assert seen.failures == []


def test_a_pod_that_is_evicted_together_with_the_operator_loses_no_request(namespace: Cluster) -> None:
    namespace.apply(**SPEC)
    namespace.until_ready()
    (old,) = pods(namespace)

    with background_clients(namespace, keeping=2, fresh=2) as seen:
        eventually(lambda: seen.answered > 50)
        namespace.within("shoal-system").kubectl("delete", "pod", "--selector", OPERATOR, "--wait=false")
        assert not evict(namespace, old)
        until_replaced(namespace, {old}, 1)
    assert seen.failures == []


def test_replicas_that_are_evicted_one_after_another_lose_no_request(namespace: Cluster) -> None:
    namespace.apply(replicas=2, **SPEC)
    namespace.until_ready()

    with background_clients(namespace, keeping=2, fresh=2) as seen:
        eventually(lambda: seen.answered > 50)
        for old in list(pods(namespace)):
            eventually(partial(evicted, namespace, old), lambda: described(namespace))
            until_replaced(namespace, {old}, 2)
    assert seen.failures == []


def test_replicas_that_are_deleted_together_serve_until_others_do(namespace: Cluster) -> None:
    namespace.apply(replicas=2, **SPEC)
    namespace.until_ready()
    old = pods(namespace)

    with background_clients(namespace, keeping=2, fresh=2) as seen:
        eventually(lambda: seen.answered > 50)
        namespace.kubectl("delete", "pod", *old, "--wait=false")
        until_replaced(namespace, set(old), 2)
    assert seen.failures == []


def test_a_service_that_is_to_have_no_pods_keeps_none(namespace: Cluster) -> None:
    namespace.apply(**SPEC)
    namespace.until_ready()

    with background_clients(namespace):
        namespace.kubectl("scale", "infsvc/adder", "--replicas=0")
        eventually(lambda: not pods(namespace), lambda: described(namespace))
    namespace.kubectl("scale", "infsvc/adder", "--replicas=1")
    namespace.until_ready()
    assert predict(namespace) == EXPECTED


def test_a_pod_that_no_node_can_replace_yet_keeps_serving_when_it_is_evicted(namespace: Cluster) -> None:
    namespace.apply(**SPEC)
    namespace.until_ready()
    (old,) = pods(namespace)
    (node,) = namespace.get("nodes")
    name = node["metadata"]["name"]
    namespace.kubectl("cordon", name)
    try:
        with background_clients(namespace, keeping=1, fresh=1) as seen:
            assert not evict(namespace, old)
            eventually(
                lambda: namespace.condition("adder").get("reason") == "Unschedulable", lambda: described(namespace)
            )
            before, begun_s = seen.answered, time.monotonic()
            eventually(lambda: seen.answered > before + 100 or time.monotonic() > begun_s + 30)
            namespace.kubectl("uncordon", name)
            until_replaced(namespace, {old}, 1)
        assert seen.failures == []
    finally:
        namespace.kubectl("uncordon", name)


def test_pods_of_a_namespace_that_is_deleted_do_not_wait_for_replacements(cluster: Cluster) -> None:
    leaving = cluster.within("leaving")
    leaving.create_namespace()
    leaving.apply(**SPEC)
    leaving.until_ready()

    cluster.kubectl("delete", "namespace", leaving.namespace, "--wait=false")
    eventually(lambda: not leaving.get("pods"), lambda: described(leaving))
