"""Activators that are away, ports that are not theirs, and slices of others: what is said, and that it ends."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from e2e.clients import EXPECTED, predict
from e2e.clusters.cluster import OPERATOR, Cluster
from e2e.waiting import eventually

START_S = 60.0
PORTS = range(20_000, 21_000)
STRANGER = """
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: adder}
addressType: IPv4
endpoints: [{addresses: [10.1.2.3]}]
ports: [{name: http, port: 80}]
"""


def explain(cluster: Cluster) -> str:
    return cluster.kubectl("describe", "infsvc,pods,endpointslices", check=False).stdout


def apply_scale_to_zero(cluster: Cluster, *, delay_s: int) -> None:
    scaling = {"minReplicas": 0, "maxReplicas": 2, "scaleToZeroDelaySeconds": delay_s}
    cluster.apply(scaling=scaling, rollout={"drainDelaySeconds": 2})


def until(cluster: Cluster, reason: str, kind: str = "Ready") -> None:
    eventually(lambda: cluster.condition("adder", kind).get("reason") == reason, lambda: explain(cluster))


@contextmanager
def without(system: Cluster, deployment: str, selector: str) -> Iterator[None]:
    """Take a Deployment's pods away until the block ends."""
    replicas = system.get("deployment", deployment)["spec"]["replicas"]
    try:
        system.kubectl("scale", "deployment", deployment, "--replicas=0")
        eventually(lambda: not system.get("pods", selector=selector), within_s=120)
        yield
    finally:
        system.kubectl("scale", "deployment", deployment, f"--replicas={replicas}")


def test_missing_activator_is_reported_and_a_new_one_starts_the_service(namespace: Cluster, cluster: Cluster) -> None:
    apply_scale_to_zero(namespace, delay_s=1)
    namespace.until_ready()
    until(namespace, "ScaledToZero")
    with without(cluster.within("shoal-system"), "shoal-activator", "app.kubernetes.io/component=activator"):
        until(namespace, "NoActivator")
        for kind in ("Ready", "Available", "ActivatorReady"):
            condition = namespace.condition("adder", kind)
            assert (condition["status"], condition["reason"]) == ("False", "NoActivator")
            assert "no pod of the activator is ready" in condition["message"]
    until(namespace, "ScaledToZero")
    assert predict(namespace, timeout_s=START_S) == EXPECTED


def test_without_an_activator_scaling_to_zero_by_a_user_keeps_the_pod(namespace: Cluster, cluster: Cluster) -> None:
    apply_scale_to_zero(namespace, delay_s=3600)
    namespace.until_ready()
    with without(cluster.within("shoal-system"), "shoal-activator", "app.kubernetes.io/component=activator"):
        until(namespace, "NoActivator", "ActivatorReady")
        generation = namespace.get("infsvc", "adder")["metadata"]["generation"]
        namespace.kubectl("scale", "infsvc", "adder", "--replicas=0")
        eventually(lambda: namespace.get("infsvc", "adder")["status"]["observedGeneration"] > generation)
        assert predict(namespace, timeout_s=START_S) == EXPECTED
        assert namespace.condition("adder")["status"] == "True"
    until(namespace, "ScaledToZero")


def is_served(cluster: Cluster) -> bool:
    try:
        return predict(cluster, timeout_s=START_S) == EXPECTED
    except httpx.TransportError:
        return False


def test_invalid_activator_port_in_a_status_is_corrected(namespace: Cluster, cluster: Cluster) -> None:
    apply_scale_to_zero(namespace, delay_s=1)
    namespace.until_ready()
    until(namespace, "ScaledToZero")
    patch = ("patch", "infsvc", "adder", "--subresource=status", "--type=merge", "--patch")
    with without(cluster.within("shoal-system"), "shoal-operator", OPERATOR):
        refused = namespace.kubectl(*patch, '{"status": {"activator": {"port": 1}}}', check=False)
        assert "status.activator.port" in refused.stderr
        namespace.kubectl(*patch, '{"status": {"activator": {"port": 9090}}}')
    eventually(lambda: namespace.get("infsvc", "adder")["status"]["activator"]["port"] in PORTS)
    # Until the slice has it too, requests may be rejected.
    eventually(lambda: is_served(namespace), lambda: explain(namespace))


def test_foreign_endpoint_slice_blocks_scaling_to_zero_until_deleted(
    namespace: Cluster,
) -> None:
    namespace.kubectl("apply", "--filename", "-", text=STRANGER)
    apply_scale_to_zero(namespace, delay_s=1)
    until(namespace, "NameTaken")
    assert "EndpointSlice adder" in namespace.condition("adder")["message"]
    eventually(lambda: namespace.condition("adder", "Available")["status"] == "True", lambda: explain(namespace))
    assert namespace.get("endpointslices", "adder")["endpoints"][0]["addresses"] == ["10.1.2.3"]
    namespace.kubectl("delete", "endpointslice", "adder")
    eventually(lambda: not namespace.get("pods"), lambda: explain(namespace), within_s=120)
    until(namespace, "ScaledToZero")
