"""Asynchronous requests of a service in a cluster: acceptance, results, and a store."""

from pathlib import Path
from typing import Any

import httpx

from e2e.clients import EXPECTED, ROW
from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually

TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, len(ROW)], "data": ROW}


def accept(url: str) -> str:
    """Send an asynchronous request; return the location of its result."""
    headers = {"prefer": "respond-async"}
    response = httpx.post(f"{url}/v2/models/adder/infer", json={"inputs": [TENSOR]}, headers=headers, timeout=20)
    assert (response.status_code, response.headers.get("preference-applied")) == (202, "respond-async"), response.text
    return str(response.headers["location"])


def result(cluster: Cluster, location: str) -> Any:
    """Wait for a result, and return its document."""
    url = cluster.address() + location
    eventually(
        lambda: httpx.get(url, timeout=20).status_code == 200,
        lambda: httpx.get(url, timeout=20).text + cluster.kubectl("describe", "pods", check=False).stdout,
    )
    return httpx.get(url, timeout=20).json()


def test_a_service_with_the_field_accepts_requests_and_keeps_their_results(namespace: Cluster) -> None:
    namespace.apply(asynchronous={"resultSeconds": 600})
    namespace.until_ready()
    url = namespace.address()

    location = accept(url)
    [output] = result(namespace, location)["outputs"]
    assert output["data"] == EXPECTED
    assert httpx.delete(url + location, timeout=20).status_code == 204
    assert httpx.get(url + location, timeout=20).status_code == 404


def test_results_in_a_store_outlive_the_pods(namespace: Cluster, tmp_path: Path) -> None:
    namespace.skip_unless_embedded("the store is a directory of this machine")
    namespace.apply(
        asynchronous={"store": {"uri": "file:///results/adder"}},
        pod={"volumes": [{"name": "results", "hostPath": {"path": str(tmp_path)}}]},
        proxy={"volumeMounts": [{"name": "results", "mountPath": "/results"}]},
    )
    namespace.until_ready()
    location = accept(namespace.address())
    before = result(namespace, location)
    [pod] = namespace.get("pods")
    namespace.kubectl("delete", "pod", pod["metadata"]["name"])
    eventually(
        lambda: [each["metadata"]["uid"] for each in namespace.get("pods")] != [pod["metadata"]["uid"]],
        lambda: namespace.kubectl("describe", "pods", check=False).stdout,
    )
    namespace.until_ready()
    assert result(namespace, location) == before
