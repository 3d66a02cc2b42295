"""Replicas: by hand, and by load."""

from collections.abc import Iterator

import httpx
import pytest

from e2e.clients import background_clients
from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually

ADMIN_PORT = 9090


def replicas(cluster: Cluster) -> tuple[int, int, int, int]:
    """Return the replicas that spec, status, Deployment and ready pods show."""
    service = cluster.get("infsvc", "adder")
    deployment = cluster.get("deployment", "adder")
    pods = [pod for pod in cluster.get("pods") if is_ready(pod)]
    return (
        service["spec"]["replicas"],
        service["status"]["readyReplicas"],
        deployment["status"].get("readyReplicas", 0),
        len(pods),
    )


def is_ready(pod: dict[str, object]) -> bool:
    status = pod["status"]
    assert isinstance(status, dict)
    return any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", []))


def answered_rows(cluster: Cluster) -> list[float]:
    """Return the rows that each pod has answered, from its own metrics."""
    counts = []
    for pod in cluster.get("pods"):
        text = httpx.get(f"http://{pod['status']['podIP']}:{ADMIN_PORT}/metrics", timeout=10).text
        lines = [line.split() for line in text.splitlines()]
        counts.append(sum(float(line[1]) for line in lines if line[0] == "shoal_proxy_rows_total"))
    return counts


def explain(cluster: Cluster) -> str:
    return cluster.kubectl("describe", "infsvc,pods", check=False).stdout


def test_kubectl_scale_sets_the_pods_and_all_of_them_get_requests(namespace: Cluster) -> None:
    namespace.apply()
    namespace.until_ready()

    namespace.kubectl("scale", "infsvc", "adder", "--replicas=2")
    eventually(lambda: replicas(namespace) == (2, 2, 2, 2), lambda: explain(namespace))
    namespace.kubectl("wait", "--for=condition=Ready", "infsvc/adder", "--timeout=60s")
    with background_clients(namespace, keeping=0, fresh=2) as seen:
        eventually(lambda: min(answered_rows(namespace)) > 0)
    assert seen.failures == []

    namespace.kubectl("scale", "infsvc", "adder", "--replicas=1", "--current-replicas=2")
    eventually(lambda: replicas(namespace) == (1, 1, 1, 1), lambda: explain(namespace))


@pytest.fixture
def short_window(cluster: Cluster) -> Iterator[None]:
    """Let replicas fall after four quiet seconds instead of five minutes."""
    system = cluster.within("shoal-system")

    def restart(window_s: int) -> None:
        system.kubectl("set", "env", "deployment/shoal-operator", f"SHOAL_OPERATOR_SCALE_DOWN_WINDOW_S={window_s}")
        system.kubectl("rollout", "status", "deployment/shoal-operator", "--timeout=60s")

    restart(4)
    yield
    restart(300)


@pytest.mark.usefixtures("short_window")
def test_load_raises_the_replicas_and_their_number_falls_when_it_ends(namespace: Cluster) -> None:
    namespace.apply(
        model={"uri": "file:///models/adder", "parameters": {"baseMicroseconds": 200_000}},
        batching={"maxBatchSize": 4},
        scaling={"minReplicas": 1, "maxReplicas": 3, "targetQueueDepth": 2},
    )
    namespace.until_ready()
    assert replicas(namespace) == (1, 1, 1, 1)

    with background_clients(namespace, keeping=0, fresh=16) as seen:
        eventually(lambda: replicas(namespace) == (3, 3, 3, 3), lambda: explain(namespace), within_s=90)
        assert namespace.condition("adder", "ScalingActive")["reason"] == "FollowingLoad"

    eventually(lambda: replicas(namespace) == (1, 1, 1, 1), lambda: explain(namespace))
    assert seen.failures == []
