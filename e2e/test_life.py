"""A service's life, as its user sees it."""

from __future__ import annotations

import httpx

from e2e.callers import ANSWER, ROW, callers, metadata, predict
from e2e.conftest import Cluster, eventually


def test_an_applied_service_answers(namespace: Cluster) -> None:
    namespace.apply()
    namespace.until_ready()
    assert predict(namespace) == ANSWER
    columns = namespace.kubectl("get", "infsvc").stdout.splitlines()
    assert columns[0].split() == ["NAME", "READY", "REASON", "REPLICAS", "URL", "AGE"]
    assert columns[1].split()[:4] == ["adder", "True", "Ready", "1"]


def test_a_new_batch_size_and_a_new_version_are_served_without_a_failed_request(namespace: Cluster) -> None:
    rollout = {"drainDelaySeconds": 1}
    namespace.apply(rollout=rollout)
    namespace.until_ready()
    assert metadata(namespace)["parameters"]["max_batch_size"] == 32
    model = {"uri": "file:///models/adder", "version": "2"}

    with callers(namespace, keeping=2, fresh=1) as seen:
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
