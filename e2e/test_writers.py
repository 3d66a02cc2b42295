"""Other writers of what the operator writes: HPAs, kubectl, controllers that apply a manifest again and again."""

from typing import Any

import pytest
import yaml

from e2e.clients import EXPECTED, background_clients, predict
from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually

HPA_MANAGER = "kube-controller-manager"


def apply(cluster: Cluster, body: dict[str, Any], *options: str) -> None:
    """Apply an object that is not an InferenceService."""
    cluster.kubectl("apply", *options, "--filename", "-", text=yaml.safe_dump(body))


def hpa(cluster: Cluster, api_version: str, kind: str, least: int) -> None:
    """Create an HPA that the operator does not own: below its minimum it acts without metrics."""
    if cluster.parts.embedded:
        pytest.skip("only on a real control plane: the embedded one has no HorizontalPodAutoscaler")
    resource = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}
    spec = {
        "scaleTargetRef": {"apiVersion": api_version, "kind": kind, "name": "adder"},
        "minReplicas": least,
        "maxReplicas": 5,
        "metrics": [{"type": "Resource", "resource": resource}],
    }
    metadata = {"name": "theirs"}
    apply(
        cluster, {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata, "spec": spec}
    )


def replicas(cluster: Cluster, kind: str = "deployment") -> int:
    count: int = cluster.get(kind, "adder")["spec"]["replicas"]
    return count


def scaling(cluster: Cluster) -> tuple[str, str]:
    """Return status and reason of the condition ScalingActive."""
    found = cluster.condition("adder", "ScalingActive")
    return found.get("status", ""), found.get("reason", "")


def described(cluster: Cluster) -> str:
    return cluster.kubectl("describe", "infsvc,deployments,hpa", check=False).stdout


def wait_until_left(cluster: Cluster, count: int, manager: str) -> None:
    """Wait until the operator has left the Deployment's replicas to another manager, and still serves."""
    eventually(lambda: scaling(cluster) == ("False", "AnotherScaler"), lambda: described(cluster))
    message = cluster.condition("adder", "ScalingActive")["message"]
    assert manager in message
    assert "External" in message
    assert replicas(cluster) == count
    events = cluster.get("events")
    assert any(each["reason"] == "AnotherScaler" for each in events), events


def test_an_hpa_on_the_deployment_is_left_alone_after_it_set_replicas_back_twice(namespace: Cluster) -> None:
    namespace.apply()
    namespace.until_ready()

    hpa(namespace, "apps/v1", "Deployment", 2)
    with background_clients(namespace) as seen:
        wait_until_left(namespace, 2, HPA_MANAGER)
    assert seen.failures == []
    assert namespace.condition("adder")["status"] == "True"


def test_kubectl_scale_of_the_deployment_is_left_alone_after_the_second_time(namespace: Cluster) -> None:
    namespace.apply()
    namespace.until_ready()

    namespace.kubectl("scale", "deployment/adder", "--replicas=2")
    eventually(lambda: replicas(namespace) == 1, lambda: described(namespace))
    namespace.kubectl("scale", "deployment/adder", "--replicas=2")
    wait_until_left(namespace, 2, "kubectl")
    assert predict(namespace) == EXPECTED


def test_hpa_on_the_service_is_reported(namespace: Cluster) -> None:
    namespace.apply(scaling={"minReplicas": 1, "maxReplicas": 3})
    namespace.until_ready()

    hpa(namespace, "serving.shoal.dev/v1alpha1", "InferenceService", 2)
    eventually(lambda: replicas(namespace, "infsvc") == 2, lambda: described(namespace))
    eventually(lambda: scaling(namespace) == ("False", "AnotherScaler"), lambda: described(namespace))
    assert HPA_MANAGER in namespace.condition("adder", "ScalingActive")["message"]
    assert predict(namespace) == EXPECTED


def test_a_writer_of_resources_is_left_alone_after_the_second_time(namespace: Cluster) -> None:
    requests = {"cpu": "10m", "memory": "64Mi"}
    namespace.apply(runtime={"resources": {"requests": requests}})
    namespace.until_ready()
    theirs = {"name": "runtime", "resources": {"requests": {"cpu": "11m"}}}
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "adder"},
        "spec": {"template": {"spec": {"containers": [theirs]}}},
    }

    def cpu() -> str:
        containers = namespace.get("deployment", "adder")["spec"]["template"]["spec"]["containers"]
        return next(str(each["resources"]["requests"]["cpu"]) for each in containers if each["name"] == "runtime")

    def write() -> None:
        apply(namespace, body, "--server-side", "--force-conflicts", "--field-manager=vertical-scaler")

    for _ in range(2):
        write()
        eventually(lambda: cpu() == "10m", lambda: described(namespace))
    write()
    eventually(lambda: namespace.condition("adder").get("reason") == "AnotherOperator", lambda: described(namespace))
    assert "vertical-scaler" in namespace.condition("adder")["message"]
    assert cpu() == "11m"
    assert predict(namespace) == EXPECTED
