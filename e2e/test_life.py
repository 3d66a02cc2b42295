"""A service's life, as its user sees it."""

from pathlib import Path

import httpx
import pytest

from e2e.clients import EXPECTED, ROW, background_clients, metadata, predict
from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually


def processes(name: str) -> list[str]:
    """Return the command lines of the processes that serve a model of this name on this machine."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"SHOAL_MODEL_NAME={name}\0".encode() in environ.read_bytes():
                found.append(environ.with_name("cmdline").read_text().replace("\0", " "))
        except OSError:  # it ended while we looked
            continue
    return found


def test_an_applied_service_answers(namespace: Cluster) -> None:
    namespace.apply()
    namespace.until_ready()
    assert predict(namespace) == EXPECTED
    columns = namespace.kubectl("get", "infsvc").stdout.splitlines()
    assert columns[0].split() == ["NAME", "READY", "REASON", "REPLICAS", "URL", "AGE"]
    assert columns[1].split()[:4] == ["adder", "True", "Ready", "1"]


def test_a_new_batch_size_and_a_new_version_are_served_without_a_failed_request(namespace: Cluster) -> None:
    rollout = {"drainDelaySeconds": 1}
    namespace.apply(rollout=rollout)
    namespace.until_ready()
    assert metadata(namespace)["parameters"]["max_batch_size"] == 32
    model = {"uri": "file:///models/adder", "version": "2"}

    with background_clients(namespace, keeping=2, fresh=1) as seen:
        eventually(lambda: seen.answered > 0)
        namespace.apply(rollout=rollout, batching={"maxBatchSize": 8})
        namespace.until_ready()
        assert metadata(namespace)["parameters"]["max_batch_size"] == 8
        namespace.apply(rollout=rollout, batching={"maxBatchSize": 8}, model=model)
        namespace.until_ready()
        after = seen.answered
        eventually(lambda: seen.answered > after + 10)

    assert seen.failures == []
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 16], "data": ROW}]}
    url = f"{namespace.address()}/v2/models/adder/versions"
    answer = httpx.post(f"{url}/2/infer", json=body, timeout=20)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model_version"] == "2"
    assert httpx.post(f"{url}/1/infer", json=body, timeout=20).status_code == 404


def test_an_objective_that_nothing_can_meet_is_served_all_the_same_and_reported(namespace: Cluster) -> None:
    model = {"uri": "file:///models/adder", "parameters": {"baseMicroseconds": 30_000}}
    namespace.apply(model=model, batching={"latencyObjectiveMilliseconds": 5})
    namespace.until_ready()
    assert predict(namespace) == EXPECTED
    eventually(lambda: namespace.condition("adder", "ObjectiveAttainable").get("status") == "False")
    message = namespace.condition("adder", "ObjectiveAttainable")["message"]
    assert "batching.latencyObjectiveMilliseconds" in message
    assert namespace.condition("adder")["status"] == "True"

    namespace.apply(model=model, batching={"latencyObjectiveMilliseconds": 500})
    eventually(lambda: namespace.condition("adder", "ObjectiveAttainable").get("status") == "True")


def test_a_deleted_service_leaves_nothing_behind(namespace: Cluster) -> None:
    namespace.apply("gone")
    namespace.until_ready("gone")
    address = namespace.address("gone")
    assert len(processes("gone")) >= 2

    namespace.kubectl("delete", "infsvc", "gone")

    children = "deployment,replicaset,pod,service,endpointslice,pdb,networkpolicy"
    eventually(lambda: not namespace.get(children), lambda: namespace.kubectl("get", children).stdout)
    eventually(lambda: not processes("gone"), lambda: "\n".join(processes("gone")))
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/v2/health/live", timeout=5)


def test_one_name_in_two_namespaces_is_two_services(namespace: Cluster) -> None:
    other = namespace.within(f"{namespace.namespace}-2")
    other.create_namespace()
    try:
        namespace.apply(model={"uri": "file:///models/adder", "version": "here"})
        other.apply(model={"uri": "file:///models/adder", "version": "there"})
        namespace.until_ready()
        other.until_ready()
        assert metadata(namespace)["versions"] == ["here"]
        assert metadata(other)["versions"] == ["there"]

        with background_clients(namespace, keeping=1) as seen:
            other.kubectl("delete", "infsvc", "adder")
            eventually(lambda: not other.get("pods"))
        assert seen.failures == []
        assert predict(namespace) == EXPECTED
    finally:
        namespace.kubectl("delete", "namespace", other.namespace, "--wait=true", "--timeout=60s")
