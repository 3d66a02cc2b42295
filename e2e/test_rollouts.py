"""Rollouts that do not end by themselves: the status says why, and old pods serve on."""

import pytest
import yaml

from e2e.clients import EXPECTED, predict
from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually

NEVER_READY = """
import http.server

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/v2/health/live" else 503)
        self.send_header("content-length", "0")
        self.end_headers()

http.server.ThreadingHTTPServer(("", 18000), Handler).serve_forever()
"""


def reasons(cluster: Cluster, *kinds: str) -> list[str]:
    """Return the reasons of some conditions."""
    return [cluster.condition("adder", kind).get("reason", "") for kind in kinds]


def warnings(cluster: Cluster) -> set[str]:
    """Return the reasons of the Events that warn about the service."""
    ours = (e for e in cluster.get("events") if e["involvedObject"]["kind"] == "InferenceService")
    return {str(event["reason"]) for event in ours if event["type"] == "Warning"}


def described(cluster: Cluster) -> str:
    return cluster.kubectl("describe", "infsvc,deployments,pods", check=False).stdout


def test_stalled_rollout_is_reported_and_old_pods_keep_serving(namespace: Cluster) -> None:
    namespace.apply()
    namespace.until_ready()

    command = ["python", "-c", NEVER_READY]
    namespace.apply(
        model={},
        runtime={"image": "python", "port": 18000, "command": command},
        rollout={"drainDelaySeconds": 0, "progressDeadlineSeconds": 10},
    )
    expected = ["ProgressDeadlineExceeded", "ProgressDeadlineExceeded", "ServedByOldPods"]
    eventually(
        lambda: reasons(namespace, "Ready", "Progressing", "Available") == expected, lambda: described(namespace)
    )
    assert namespace.condition("adder")["status"] == "False"
    assert "not ready: proxy" in namespace.condition("adder")["message"]
    eventually(lambda: "ProgressDeadlineExceeded" in warnings(namespace), lambda: described(namespace))
    assert predict(namespace) == EXPECTED


def test_a_paused_deployment_says_how_it_goes_on(namespace: Cluster) -> None:
    namespace.apply()
    namespace.until_ready()
    namespace.kubectl("rollout", "pause", "deployment/adder")

    namespace.apply(batching={"maxBatchSize": 4})
    eventually(
        lambda: reasons(namespace, "Ready", "Available") == ["RolloutPaused", "ServedByOldPods"],
        lambda: described(namespace),
    )
    assert "kubectl rollout resume deployment/adder" in namespace.condition("adder")["message"]
    assert predict(namespace) == EXPECTED

    namespace.kubectl("rollout", "resume", "deployment/adder")
    namespace.until_ready()


def test_a_quota_on_limits_is_told_and_met(namespace: Cluster) -> None:
    if namespace.parts.embedded:
        pytest.skip("only on a real control plane: the embedded one has no quotas")
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "compute"},
        "spec": {"hard": {f"{side}.{what}": "16Gi" for side in ("requests", "limits") for what in ("cpu", "memory")}},
    }
    namespace.kubectl("apply", "--filename", "-", text=yaml.safe_dump(quota))
    eventually(lambda: (namespace.get("resourcequota", "compute") or {}).get("status", {}).get("hard"))

    namespace.apply()
    eventually(lambda: reasons(namespace, "Ready") == ["PodsRefused"], lambda: described(namespace))
    message = namespace.condition("adder")["message"]
    assert "for: runtime" in message, message
    assert "runtime.resources" in message

    asked = {"cpu": "500m", "memory": "1Gi"}
    namespace.apply(runtime={"resources": {"requests": asked, "limits": asked}})
    namespace.until_ready()
    assert predict(namespace) == EXPECTED
