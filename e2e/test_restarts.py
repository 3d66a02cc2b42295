"""Parts of the cluster die; services go on, and what was asked for in between is caught up with."""

import os
import signal

import httpx

from e2e.clients import predict
from e2e.clusters.cluster import OPERATOR, Cluster
from e2e.waiting import eventually


def pod_address(cluster: Cluster, name: str = "adder") -> str:
    (pod,) = cluster.get("pods", selector=f"serving.shoal.dev/inferenceservice={name}")
    return f"http://{pod['status']['podIP']}:8080/v1/models/{name}:predict"


def test_a_namespace_goes_while_no_operator_runs(cluster: Cluster) -> None:
    orphaned = cluster.within("orphaned")
    orphaned.create_namespace()
    # A namespace that holds pods is looked at again after half of their grace period.
    orphaned.apply(rollout={"drainDelaySeconds": 0, "replacementTimeoutSeconds": 0})
    orphaned.until_ready()
    address = pod_address(orphaned)
    system = cluster.within("shoal-system")
    system.kubectl("scale", "deployment/shoal-operator", "--replicas=0")
    try:
        eventually(lambda: not system.get("pods", selector=OPERATOR))
        cluster.kubectl("delete", "namespace", "orphaned", "--wait=true", "--timeout=60s")
        assert not cluster.get("namespace", "orphaned")
        eventually(lambda: not is_served(address))
    finally:
        system.kubectl("scale", "deployment/shoal-operator", "--replicas=1")
        system.kubectl("rollout", "status", "deployment/shoal-operator", "--timeout=60s")


def is_served(address: str) -> bool:
    try:
        return httpx.post(address, json={"instances": [[0.0] * 16]}, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_parts_are_killed_and_pods_go_on_undisturbed(namespace: Cluster) -> None:
    namespace.apply()
    namespace.until_ready()
    address = pod_address(namespace)
    (before,) = namespace.get("pods")
    for part in namespace.parts.names:
        namespace.kill(part)
        assert is_served(address)
    namespace.parts.start()
    (after,) = eventually(lambda: namespace.get("pods"))
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert [each["restartCount"] for each in after["status"]["containerStatuses"]] == [0, 0]
    assert is_served(address)
    namespace.kubectl("scale", "infsvc/adder", "--replicas=2")
    eventually(lambda: namespace.get("deployment", "adder")["status"].get("readyReplicas") == 2)
    assert predict(namespace)


def test_a_killed_operator_comes_back_and_goes_on(namespace: Cluster) -> None:
    system = namespace.within("shoal-system")
    (pod,) = eventually(lambda: system.get("pods", selector=OPERATOR))
    pids = [int(path.parent.name) for path in namespace.processes("shoal_operator")]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    namespace.apply()
    namespace.until_ready()
    restarts = system.get("pod", pod["metadata"]["name"])["status"]["containerStatuses"][0]["restartCount"]
    assert restarts >= 1
    assert predict(namespace)


def test_a_killed_runtime_is_started_again_and_no_answer_is_wrong(namespace: Cluster) -> None:
    namespace.apply()
    namespace.until_ready()
    address = pod_address(namespace)
    (pod,) = namespace.get("pods")
    for path in namespace.processes("shoal_runtime", pod["metadata"]["uid"]):
        os.kill(int(path.parent.name), signal.SIGKILL)
    statuses = set()

    def back() -> bool:
        answer = httpx.post(address, json={"instances": [[1.0] * 16]}, timeout=20)
        statuses.add(answer.status_code)
        assert answer.status_code in (200, 503), answer.text
        if answer.status_code == 503:
            assert "retry-after" in answer.headers
            return False
        assert answer.json()["predictions"] == [[2.0] * 16]
        (now,) = namespace.get("pods")
        return any(each["restartCount"] for each in now["status"]["containerStatuses"])

    eventually(back)
