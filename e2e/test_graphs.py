"""Models that work together, as their user sees them: applied, asked, scaled, and one of them killed."""

import json
import os
import signal
from typing import Any

import httpx
import yaml

from e2e.callers import callers
from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually

CHAIN: dict[str, Any] = {
    "steps": [
        {"name": "first", "service": "adder", "inputs": {"x": "request.x"}},
        {"name": "second", "service": "adder-two", "inputs": {"x": "first.y"}},
    ],
    "outputs": {"sum": ["second.y"]},
}
ROW = [float(value) for value in range(16)]
TWICE = [value + 2 for value in ROW]


def apply(cluster: Cluster, *, check: bool = True, **spec: Any) -> Any:
    """Apply a graph called ``chain``."""
    body = {
        "apiVersion": "serving.shoal.dev/v1alpha1",
        "kind": "InferenceGraph",
        "metadata": {"name": "chain"},
        "spec": spec,
    }
    return cluster.kubectl("apply", "--filename", "-", text=yaml.safe_dump(body), check=check)


def condition(cluster: Cluster, kind: str = "Ready") -> dict[str, Any]:
    """Return a condition of the graph."""
    status = (cluster.get("infgraph", "chain") or {}).get("status", {})
    return next((each for each in status.get("conditions", []) if each["type"] == kind), {})


def until(cluster: Cluster, kind: str, status: str, reason: str) -> dict[str, Any]:
    """Wait for a condition of the graph."""
    eventually(
        lambda: (condition(cluster, kind).get("status"), condition(cluster, kind).get("reason")) == (status, reason),
        lambda: json.dumps((cluster.get("infgraph", "chain") or {}).get("status"), indent=1),
        within_s=120,
    )
    return condition(cluster, kind)


def ask(cluster: Cluster, **options: Any) -> httpx.Response:
    """Send one row through the graph."""
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 16], "data": ROW}]}
    return httpx.post(f"{cluster.address('chain')}/v2/models/chain/infer", json=body, timeout=20, **options)


def test_a_graph_takes_rows_from_service_to_service(namespace: Cluster) -> None:
    namespace.apply("adder")
    namespace.apply("adder-two")
    apply(namespace, **CHAIN)
    until(namespace, "Ready", "True", "Ready")
    assert condition(namespace, "GraphValid")["status"] == "True"
    assert not condition(namespace, "ModelLoaded")

    answer = ask(namespace)
    assert answer.json()["outputs"][0]["data"] == TWICE
    assert "first;dur=" in answer.headers["server-timing"]
    columns = namespace.kubectl("get", "infgraph").stdout.splitlines()
    assert columns[0].split() == ["NAME", "READY", "REASON", "REPLICAS", "URL", "AGE"]
    assert columns[1].split()[:4] == ["chain", "True", "Ready", "1"]
    (pod,) = namespace.get("pods", selector="serving.shoal.dev/inferencegraph=chain")
    assert [each["name"] for each in pod["spec"]["containers"]] == ["proxy"]


def test_a_step_that_is_missing_is_waited_for_and_one_that_does_not_fit_is_told(namespace: Cluster) -> None:
    namespace.apply("adder")
    apply(namespace, **CHAIN)
    missing = until(namespace, "GraphValid", "False", "StepMissing")
    assert "step second: no server is known by the name adder-two." in missing["message"]
    assert condition(namespace)["reason"] == "StepMissing"
    namespace.apply("adder-two", model={"uri": "file:///models/adder", "parameters": {"columns": 8}})
    wrong = until(namespace, "GraphValid", "False", "SignatureMismatch")
    assert "steps[1].inputs.x: second takes FP32[8]" in wrong["message"]
    namespace.apply("adder-two")
    until(namespace, "Ready", "True", "Ready")
    assert ask(namespace).json()["outputs"][0]["data"] == TWICE


def test_a_graph_that_cannot_be_is_refused_and_what_runs_goes_on(namespace: Cluster) -> None:
    namespace.apply("adder")
    namespace.apply("adder-two")
    apply(namespace, **CHAIN)
    until(namespace, "Ready", "True", "Ready")

    unknown = {**CHAIN, "outputs": {"sum": ["third.y"]}}
    assert "outputs name request.NAME, or STEP.OUTPUT" in apply(namespace, check=False, **unknown).stderr
    itself = {**CHAIN, "steps": [*CHAIN["steps"], {"name": "me", "graph": "chain", "inputs": {"x": "request.x"}}]}
    assert "a graph cannot be a step of itself" in apply(namespace, check=False, **itself).stderr

    first, second = CHAIN["steps"]
    circle = {**CHAIN, "steps": [{**first, "inputs": {"x": "second.y"}}, second]}
    apply(namespace, **circle)
    told = until(namespace, "GraphValid", "False", "Cycle")
    assert "spec.steps[0]: the steps wait for one another: first → second → first" in told["message"]
    assert ask(namespace).json()["outputs"][0]["data"] == TWICE


def test_a_step_that_is_deleted_under_load_costs_no_request_and_one_that_is_killed_its_own(namespace: Cluster) -> None:
    for name in ("adder", "adder-two"):
        namespace.apply(name, replicas=2, rollout={"drainDelaySeconds": 1})
    apply(namespace, **CHAIN)
    until(namespace, "Ready", "True", "Ready")
    with callers(namespace, "chain", keeping=4, answer=TWICE) as seen:
        eventually(lambda: seen.answered > 50)
        (pod, *_) = namespace.get("pods", selector="serving.shoal.dev/inferenceservice=adder-two")
        namespace.kubectl("delete", "pod", pod["metadata"]["name"])
        after = seen.answered
        eventually(lambda: seen.answered > after + 100)
        assert seen.failures == []

        (pod, *_) = namespace.get("pods", selector="serving.shoal.dev/inferenceservice=adder")
        (proxy,) = namespace.processes("shoal_proxy", pod["metadata"]["uid"])
        os.kill(int(proxy.parent.name), signal.SIGKILL)
        after = seen.answered
        eventually(lambda: seen.answered > after + 200)
    # What was there when it was killed is lost, and says where; nobody knows whether it ran.
    assert len(seen.failures) <= 4, seen.failures
    assert all("step first" in failure for failure in seen.failures), seen.failures
