"""A service's life, as its user sees it."""

from __future__ import annotations

import httpx

from e2e.conftest import Cluster

ROW = [float(number) for number in range(16)]


def predict(cluster: Cluster, name: str = "adder") -> list[float]:
    answer = httpx.post(f"{cluster.address(name)}/v1/models/{name}:predict", json={"instances": [ROW]}, timeout=20)
    assert answer.status_code == 200, answer.text
    prediction: list[float] = answer.json()["predictions"][0]
    return prediction


def test_an_applied_service_answers(namespace: Cluster) -> None:
    namespace.apply()
    namespace.until_ready()
    assert predict(namespace) == [value + 1 for value in ROW]
    columns = namespace.kubectl("get", "infsvc").stdout.splitlines()
    assert columns[0].split() == ["NAME", "READY", "REASON", "REPLICAS", "URL", "AGE"]
    assert columns[1].split()[:4] == ["adder", "True", "Ready", "1"]
