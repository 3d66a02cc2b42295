"""Models that work together, as their user sees them: applied, asked, scaled, and one of them killed."""

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import yaml

from e2e.clients import background_clients
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


def test_missing_step_is_awaited_and_invalid_step_is_reported(namespace: Cluster) -> None:
    namespace.apply("adder")
    apply(namespace, **CHAIN)
    missing = until(namespace, "GraphValid", "False", "StepMissing")
    assert "adder-two" in missing["message"]
    assert condition(namespace)["reason"] == "StepMissing"
    namespace.apply("adder-two", model={"uri": "file:///models/adder", "parameters": {"columns": 8}})
    wrong = until(namespace, "GraphValid", "False", "SignatureMismatch")
    assert "steps[1].inputs.x: second needs FP32[8]" in wrong["message"]
    namespace.apply("adder-two")
    until(namespace, "Ready", "True", "Ready")
    assert ask(namespace).json()["outputs"][0]["data"] == TWICE


def test_a_graph_that_cannot_be_is_refused_and_what_runs_goes_on(namespace: Cluster) -> None:
    namespace.apply("adder")
    namespace.apply("adder-two")
    apply(namespace, **CHAIN)
    until(namespace, "Ready", "True", "Ready")

    unknown = {**CHAIN, "outputs": {"sum": ["third.y"]}}
    assert "outputs must name request.NAME" in apply(namespace, check=False, **unknown).stderr
    itself = {**CHAIN, "steps": [*CHAIN["steps"], {"name": "me", "graph": "chain", "inputs": {"x": "request.x"}}]}
    assert "a graph cannot be a step of itself" in apply(namespace, check=False, **itself).stderr

    first, second = CHAIN["steps"]
    circle = {**CHAIN, "steps": [{**first, "inputs": {"x": "second.y"}}, second]}
    apply(namespace, **circle)
    found = until(namespace, "GraphValid", "False", "Cycle")
    assert "first → second → first" in found["message"]
    assert ask(namespace).json()["outputs"][0]["data"] == TWICE


def test_a_step_that_is_deleted_under_load_costs_no_request_and_one_that_is_killed_its_own(namespace: Cluster) -> None:
    for name in ("adder", "adder-two"):
        namespace.apply(name, replicas=2, rollout={"drainDelaySeconds": 1})
    apply(namespace, **CHAIN)
    until(namespace, "Ready", "True", "Ready")
    with background_clients(namespace, "chain", keeping=4, answer=TWICE) as seen:
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
    # Requests at the killed pod fail with the step's name; whether they ran is unknown.
    assert len(seen.failures) <= 4, seen.failures
    assert all("step first" in failure for failure in seen.failures), seen.failures


def test_a_graph_and_a_service_of_one_name_that_come_together_do_not_share_the_objects(namespace: Cluster) -> None:
    head = {"apiVersion": "serving.shoal.dev/v1alpha1", "metadata": {"name": "chain"}}
    service = {**head, "kind": "InferenceService", "spec": {"model": {"uri": "file:///models/adder"}}}
    both = yaml.safe_dump_all([{**head, "kind": "InferenceGraph", "spec": CHAIN}, service])
    namespace.kubectl("apply", "--filename", "-", text=both)

    def reasons() -> list[str]:
        return [condition(namespace).get("reason", ""), namespace.condition("chain").get("reason", "")]

    eventually(lambda: reasons().count("NameTaken") == 1, lambda: str(reasons()), within_s=60)
    kinds = ("serviceaccount", "networkpolicy", "service", "deployment", "poddisruptionbudget")
    made = [each for kind in kinds if (each := namespace.get(kind, "chain"))]
    owners = {each["metadata"]["ownerReferences"][0]["kind"] for each in made}
    assert len(made) > 2
    assert len(owners) == 1, [(each["kind"], each["metadata"]["ownerReferences"]) for each in made]


COMPOSER = """
class Again:
    inputs = {"x": "FP32[16]"}
    outputs = {"sum": "FP32[16]"}

    async def run(self, inputs, steps):
        x = inputs["x"]
        for _ in range(2):
            x = (await steps.first(x=x))["y"]
        return {"sum": x}
"""


def test_a_composer_takes_rows_its_own_way_and_one_that_cannot_be_is_refused(namespace: Cluster) -> None:
    namespace.apply("adder")
    spec: dict[str, Any] = {"steps": [{"name": "first", "service": "adder"}], "composer": {"source": COMPOSER}}
    apply(namespace, **spec)
    until(namespace, "Ready", "True", "Ready")
    assert ask(namespace).json()["outputs"][0]["data"] == TWICE

    both = apply(namespace, check=False, **spec, outputs={"sum": ["first.y"]})
    assert "a composer makes the outputs" in both.stderr
    neither = apply(namespace, check=False, steps=spec["steps"])
    assert "unless a composer calls the steps" in neither.stderr
    apply(namespace, **{**spec, "composer": {"source": COMPOSER.replace("await", "wait for")}})
    found = until(namespace, "GraphValid", "False", "InvalidGraph")
    assert "spec.composer.source: line 9: " in found["message"]
    apply(namespace, **{**spec, "composer": {"source": f"import nowhere\n{COMPOSER}"}})
    eventually(
        lambda: "No module named 'nowhere'" in condition(namespace, "GraphValid").get("message", ""), within_s=60
    )
    assert ask(namespace).json()["outputs"][0]["data"] == TWICE  # by the pods of before


PIPELINE = Path(__file__).parents[1] / "examples" / "pipeline"
FOUND = ["Egyptian cat", "espresso", "drilling platform", "bobsled"]


def test_the_example_with_pictures_goes_on_when_one_of_its_steps_is_killed_under_load(namespace: Cluster) -> None:
    namespace.kubectl("apply", "--filename", str(PIPELINE / "pipeline.yaml"))
    namespace.kubectl("wait", "--for=condition=Ready", "infgraph/pipeline", "--timeout=120s")
    url = f"{namespace.address('pipeline')}/v1/models/pipeline:predict"
    page, stop = (PIPELINE / "page.jpg").read_bytes(), threading.Event()
    answered: list[list[str]] = []
    failures: list[str] = []

    def call() -> None:
        with httpx.Client(timeout=60, headers={"content-type": "image/jpeg"}) as client:
            while not stop.wait(0.01):
                answer = client.post(url, content=page)
                if answer.status_code == 200:
                    answered.append([each[0] for each in answer.json()["predictions"][0]["label"]])
                else:
                    failures.append(f"{answer.status_code} {answer.text}")

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(call) for _ in range(3)]
        try:
            eventually(lambda: len(answered) > 3, within_s=120)
            (pod,) = namespace.get("pods", selector="serving.shoal.dev/inferenceservice=detector")
            (runtime,) = namespace.processes("shoal_runtime", pod["metadata"]["uid"])
            os.kill(int(runtime.parent.name), signal.SIGKILL)
            after = len(answered)
            eventually(lambda: len(answered) > after + 5, lambda: str(failures[-3:]), within_s=120)
        finally:
            stop.set()
    for each in calls:
        each.result()
    assert all(labels == FOUND for labels in answered), answered
    assert all("step detect" in failure for failure in failures), failures
