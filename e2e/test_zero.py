"""Scale to zero and back: clients notice only the time that a pod takes to start."""

import httpx

from e2e.clients import EXPECTED, ROW, background_clients, predict
from e2e.clusters.cluster import OPERATOR, Cluster
from e2e.waiting import eventually

TIMES = 3
START_S = 60.0


def explain(cluster: Cluster) -> str:
    return cluster.kubectl("describe", "infsvc,pods,endpointslices", check=False).stdout


def apply_scale_to_zero(cluster: Cluster, *, delay_s: int) -> None:
    """Apply a service that sleeps after so long; its pods go only when every router knows, as by default."""
    scaling = {"minReplicas": 0, "maxReplicas": 2, "scaleToZeroDelaySeconds": delay_s}
    cluster.apply(scaling=scaling, rollout={"drainDelaySeconds": 2})


def is_scaled_to_zero(cluster: Cluster) -> bool:
    reason = cluster.condition("adder").get("reason")
    return reason == "ScaledToZero" and not cluster.get("pods")


def predict_after_start(cluster: Cluster) -> list[float]:
    return predict(cluster, timeout_s=START_S)


def test_service_without_requests_scales_to_zero_and_the_next_request_starts_it(namespace: Cluster) -> None:
    apply_scale_to_zero(namespace, delay_s=1)
    namespace.until_ready()

    for _ in range(TIMES):
        eventually(lambda: is_scaled_to_zero(namespace), lambda: explain(namespace))
        assert namespace.condition("adder")["status"] == namespace.condition("adder", "Available")["status"] == "True"
        assert predict_after_start(namespace) == EXPECTED


def test_health_checks_are_served_at_zero_without_starting_a_pod(namespace: Cluster) -> None:
    apply_scale_to_zero(namespace, delay_s=1)
    namespace.until_ready()
    eventually(lambda: is_scaled_to_zero(namespace), lambda: explain(namespace))

    for path in ("/v2/health/live", "/v2/health/ready", "/ping"):
        assert httpx.get(namespace.address() + path, timeout=20).status_code == 200
    assert is_scaled_to_zero(namespace)


def test_under_load_that_never_stops_no_request_is_lost_on_the_way_to_zero_and_back(namespace: Cluster) -> None:
    apply_scale_to_zero(namespace, delay_s=3600)
    namespace.until_ready()

    with background_clients(namespace, keeping=2, fresh=2, timeout_s=START_S) as seen:
        for _ in range(TIMES):
            before = {pod["metadata"]["uid"] for pod in namespace.get("pods")}
            namespace.kubectl("scale", "infsvc", "adder", "--replicas=0")
            eventually(lambda: _another_pod_serves(namespace, before), lambda: explain(namespace))  # noqa: B023
    assert seen.failures == []
    assert seen.answered > 0


def _another_pod_serves(cluster: Cluster, before: set[str]) -> bool:
    """Return whether pods answer, none of them one of those before, and the activator is out of the path."""
    pods = {pod["metadata"]["uid"] for pod in cluster.get("pods")}
    slices = [each["metadata"]["name"] for each in cluster.get("endpointslices")]
    ready = cluster.condition("adder").get("reason") == "Ready"
    return ready and bool(pods) and not pods & before and "adder" not in slices


def test_asynchronous_request_at_zero_is_accepted_at_once_and_its_result_is_never_unknown(namespace: Cluster) -> None:
    scaling = {"minReplicas": 0, "maxReplicas": 1, "scaleToZeroDelaySeconds": 3600}
    namespace.apply(scaling=scaling, rollout={"drainDelaySeconds": 2}, asynchronous={"timeoutSeconds": 600})
    namespace.until_ready()
    namespace.kubectl("scale", "infsvc", "adder", "--replicas=0")
    eventually(lambda: is_scaled_to_zero(namespace), lambda: explain(namespace))

    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, len(ROW)], "data": ROW}]}
    headers = {"prefer": "respond-async"}
    accepted = httpx.post(f"{namespace.address()}/v2/models/adder/infer", json=body, headers=headers, timeout=20)
    assert accepted.status_code == 202
    seen = []

    def has_result() -> bool:
        response = httpx.get(namespace.address() + accepted.headers["location"], timeout=20)
        seen.append(response.status_code)
        return response.status_code != 202

    eventually(has_result, lambda: explain(namespace), within_s=START_S)
    assert set(seen[:-1]) <= {202}
    result = httpx.get(namespace.address() + accepted.headers["location"], timeout=20)
    assert result.json()["outputs"][0]["data"] == EXPECTED


def test_killing_the_operator_at_zero_loses_no_request(namespace: Cluster, cluster: Cluster) -> None:
    apply_scale_to_zero(namespace, delay_s=1)
    namespace.until_ready()
    eventually(lambda: is_scaled_to_zero(namespace), lambda: explain(namespace))
    port = namespace.get("infsvc", "adder")["status"]["activator"]["port"]
    system = cluster.within("shoal-system")
    system.kubectl("delete", "pods", f"--selector={OPERATOR}", "--wait=false")
    assert predict_after_start(namespace) == EXPECTED
    assert namespace.get("infsvc", "adder")["status"]["activator"]["port"] == port
