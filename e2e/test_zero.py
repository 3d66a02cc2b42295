"""Scale to zero and back: clients notice only the time that a pod takes to start."""

import httpx

from e2e.callers import ANSWER, callers, predict
from e2e.clusters.cluster import OPERATOR, Cluster
from e2e.waiting import eventually

TIMES = 3
START_S = 60.0


def explain(cluster: Cluster) -> str:
    return cluster.kubectl("describe", "infsvc,pods,endpointslices", check=False).stdout


def apply_sleeper(cluster: Cluster, *, delay_s: int) -> None:
    """Apply a service that sleeps after so long; its pods go only when every router knows, as by default."""
    scaling = {"minReplicas": 0, "maxReplicas": 2, "scaleToZeroDelaySeconds": delay_s}
    cluster.apply(scaling=scaling, rollout={"drainDelaySeconds": 2})


def is_asleep(cluster: Cluster) -> bool:
    reason = cluster.condition("adder").get("reason")
    return reason == "ScaledToZero" and not cluster.get("pods")


def predict_patiently(cluster: Cluster) -> list[float]:
    return predict(cluster, patience_s=START_S)


def test_a_service_that_nobody_calls_sleeps_and_the_next_request_wakes_it(namespace: Cluster) -> None:
    apply_sleeper(namespace, delay_s=1)
    namespace.until_ready()

    for _ in range(TIMES):
        eventually(lambda: is_asleep(namespace), lambda: explain(namespace))
        assert namespace.condition("adder")["status"] == namespace.condition("adder", "Available")["status"] == "True"
        assert predict_patiently(namespace) == ANSWER


def test_who_asks_whether_somebody_is_here_is_answered_and_leaves_it_asleep(namespace: Cluster) -> None:
    apply_sleeper(namespace, delay_s=1)
    namespace.until_ready()
    eventually(lambda: is_asleep(namespace), lambda: explain(namespace))

    for path in ("/v2/health/live", "/v2/health/ready", "/ping"):
        assert httpx.get(namespace.address() + path, timeout=20).status_code == 200
    assert is_asleep(namespace)


def test_under_load_that_never_stops_no_request_is_lost_on_the_way_to_zero_and_back(namespace: Cluster) -> None:
    apply_sleeper(namespace, delay_s=3600)
    namespace.until_ready()

    with callers(namespace, keeping=2, fresh=2, patience_s=START_S) as seen:
        for _ in range(TIMES):
            before = {pod["metadata"]["uid"] for pod in namespace.get("pods")}
            namespace.kubectl("scale", "infsvc", "adder", "--replicas=0")
            eventually(lambda: _another_answers(namespace, before), lambda: explain(namespace))  # noqa: B023
    assert seen.failures == []
    assert seen.answered > 0


def _another_answers(cluster: Cluster, before: set[str]) -> bool:
    """Return whether pods answer, none of them one of those before, and the activator is out of the path."""
    pods = {pod["metadata"]["uid"] for pod in cluster.get("pods")}
    slices = [each["metadata"]["name"] for each in cluster.get("endpointslices")]
    ready = cluster.condition("adder").get("reason") == "Ready"
    return ready and bool(pods) and not pods & before and "adder" not in slices


def test_killing_the_operator_while_a_service_sleeps_loses_no_request(namespace: Cluster, cluster: Cluster) -> None:
    apply_sleeper(namespace, delay_s=1)
    namespace.until_ready()
    eventually(lambda: is_asleep(namespace), lambda: explain(namespace))
    port = namespace.get("infsvc", "adder")["status"]["activator"]["port"]
    system = cluster.within("shoal-system")
    system.kubectl("delete", "pods", f"--selector={OPERATOR}", "--wait=false")
    assert predict_patiently(namespace) == ANSWER
    assert namespace.get("infsvc", "adder")["status"]["activator"]["port"] == port
