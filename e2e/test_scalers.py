"""Autoscalers of others that the operator writes."""

from typing import Any

import pytest

from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually


def scaling_active(cluster: Cluster) -> tuple[str, str, str]:
    """Return status, reason and message of the condition."""
    conditions: list[dict[str, Any]] = cluster.get("infsvc", "adder").get("status", {}).get("conditions", [])
    found = [each for each in conditions if each["type"] == "ScalingActive"]
    return (found[0]["status"], found[0]["reason"], found[0]["message"]) if found else ("", "", "")


def test_a_cluster_without_keda_says_so_and_the_service_serves(namespace: Cluster) -> None:
    scaled_object = {"serverAddress": "http://prometheus.monitoring:9090"}
    namespace.apply(scaling={"mode": "External", "maxReplicas": 3, "external": {"scaledObject": scaled_object}})
    namespace.until_ready()

    eventually(
        lambda: scaling_active(namespace)[:2] == ("False", "ScalerMissing"), lambda: str(scaling_active(namespace))
    )
    assert "requires KEDA" in scaling_active(namespace)[2]


def test_an_hpa_reads_the_service_and_what_it_says_is_told(namespace: Cluster) -> None:
    if namespace.parts.embedded:
        pytest.skip("only on a real control plane: the embedded one has no HorizontalPodAutoscaler")
    hpa = {"maxReplicas": 3, "external": {"horizontalPodAutoscaler": {}}}
    namespace.apply(scaling={"mode": "External", **hpa})
    namespace.until_ready()

    eventually(
        lambda: scaling_active(namespace)[:2] == ("False", "ScalerFails"), lambda: str(scaling_active(namespace))
    )
    assert "shoal_proxy_demand" in scaling_active(namespace)[2]
    written = namespace.get("hpa", "adder")
    assert {"AbleToScale": "True", "ScalingActive": "False"}.items() <= {
        each["type"]: each["status"] for each in written["status"]["conditions"]
    }.items()

    namespace.apply(scaling={"maxReplicas": 3})
    eventually(lambda: not namespace.get("hpa"), lambda: str(namespace.get("hpa")))
