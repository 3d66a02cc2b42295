"""Callers from outside reach a service through real gateways, and the service's status tells the truth about it."""

import json
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import numpy as np
import pytest

from e2e.callers import ANSWER, ROW, callers
from e2e.clusters.cluster import Cluster
from e2e.gateways.asking import HOST, Certificate, Gateway, applied
from e2e.gateways.envoy import envoy
from e2e.gateways.traefik import (
    CLASS,
    HTTP_ROUTE,
    INGRESS,
    by_gateway_api,
    by_ingress,
    for_gateway_api,
    front,
    gateway_api,
)
from e2e.waiting import eventually

KINDS = ("ingress", "httproute", "envoy", "envoy-by-service")
ROUTES = {"ingress": INGRESS, "httproute": HTTP_ROUTE}


@pytest.fixture
def certificate(namespace: Cluster, tmp_path: Path) -> Certificate:
    issued = Certificate.issued(tmp_path)
    issued.put_into(namespace)
    return issued


@pytest.fixture(params=KINDS)
def gateway(
    request: pytest.FixtureRequest,
    namespace: Cluster,
    certificate: Certificate,
    programs: dict[str, Path],
    tmp_path: Path,
) -> Iterator[Gateway]:
    """Run a gateway for what a service's ``gateway.route`` says."""
    kind = request.param
    made = Gateway(kind, certificate, tmp_path / "log", {"route": ROUTES[kind]} if kind in ROUTES else {})
    with started(made, namespace, programs, tmp_path):
        yield made


def started(
    gateway: Gateway, cluster: Cluster, programs: dict[str, Path], folder: Path
) -> AbstractContextManager[None]:
    if gateway.kind == "ingress":
        return by_ingress(programs["traefik"], cluster, gateway)
    if gateway.kind == "httproute":
        return by_gateway_api(programs["traefik"], cluster, gateway)
    return envoy(programs["envoy"], cluster, gateway, folder, by_service=gateway.kind == "envoy-by-service")


def binary(rows: "np.ndarray[tuple[int, int], np.dtype[np.float32]]") -> dict[str, object]:
    """Return a V2 request whose tensors are bytes, in the question and in the answer."""
    raw = rows.tobytes()
    tensor = {"name": "x", "datatype": "FP32", "shape": rows.shape, "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"inference-header-content-length": str(len(head)), "content-type": "application/octet-stream"}
    return {"content": head + raw, "headers": headers}


def floats(answer: httpx.Response) -> list[float]:
    assert answer.status_code == 200, answer.text
    length = int(answer.headers["inference-header-content-length"])
    return list(struct.unpack(f"<{(len(answer.content) - length) // 4}f", answer.content[length:]))


def check_protocols(client: httpx.Client) -> None:
    """Ask in V1, V2 and V2 with binary tensors."""
    first = client.post("v1/models/adder:predict", json={"instances": [ROW]})
    assert first.json() == {"predictions": [ANSWER]}

    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 16], "data": ROW}
    second = client.post("v2/models/adder/infer", json={"inputs": [tensor]})
    assert second.json()["outputs"][0]["data"] == ANSWER

    assert floats(client.post("v2/models/adder/infer", **binary(np.array([ROW], np.float32)))) == ANSWER  # type: ignore[arg-type]


def test_every_protocol_passes_plain_and_encrypted_and_no_other_host_does(namespace: Cluster, gateway: Gateway) -> None:
    namespace.apply(**gateway.route)
    namespace.until_ready()
    gateway.until_answered()
    for secure in (False, True):
        with gateway.client(secure=secure) as client:
            check_protocols(client)
    assert gateway.post("v2/models/adder/infer", host="other.example").status_code == 404


LIVELY = {"model": {"uri": "file:///models/adder", "parameters": {"baseMicroseconds": 20_000}}}
"""Slow enough that there are always requests under way."""


def test_while_pods_are_replaced_and_fewer_become_no_request_fails(namespace: Cluster, gateway: Gateway) -> None:
    # Pods that go take requests until every router knows: the default.
    served = {**LIVELY, **gateway.route, "rollout": {}}
    namespace.apply(**served, replicas=2)
    namespace.until_ready()
    gateway.until_answered()

    with callers(namespace, keeping=3, fresh=3, address=gateway.address, host=HOST) as seen:
        before = {pod["metadata"]["uid"] for pod in namespace.get("pods")}
        namespace.apply(**served, replicas=2, batching={"maxBatchSize": 4})
        namespace.until_ready()
        eventually(lambda: not before & {pod["metadata"]["uid"] for pod in namespace.get("pods")})
        namespace.kubectl("scale", "infsvc", "adder", "--replicas=1")
        eventually(lambda: len(namespace.get("pods")) == 1)
    assert seen.failures == []
    assert seen.answered > 0


def test_a_sleeping_service_is_woken_through_a_gateway_and_to_zero_and_back_no_request_fails(
    namespace: Cluster, gateway: Gateway
) -> None:
    scaling = {"minReplicas": 0, "maxReplicas": 2, "scaleToZeroDelaySeconds": 3600}
    namespace.apply(scaling=scaling, rollout={}, **gateway.route)
    namespace.until_ready()
    gateway.until_answered()
    namespace.kubectl("scale", "infsvc", "adder", "--replicas=0")
    eventually(lambda: not namespace.get("pods"))
    assert gateway.post("v1/models/adder:predict", json={"instances": [ROW]}, timeout=60).status_code == 200

    with callers(namespace, keeping=2, fresh=2, patience_s=60, address=gateway.address, host=HOST) as seen:
        before = {pod["metadata"]["uid"] for pod in namespace.get("pods")}
        namespace.kubectl("scale", "infsvc", "adder", "--replicas=0")
        eventually(lambda: not before & {pod["metadata"]["uid"] for pod in namespace.get("pods")})
        namespace.until_ready()
    assert seen.failures == []
    assert seen.answered > 0


def test_a_route_that_no_ingress_controller_takes_is_pending_and_one_that_it_takes_is_accepted(
    namespace: Cluster, certificate: Certificate, programs: dict[str, Path], tmp_path: Path
) -> None:
    gateway = Gateway("ingress", certificate, tmp_path / "log", {"route": INGRESS})
    with applied(namespace, CLASS):
        namespace.apply(**gateway.route)
        assert "has not reported an address" in until_routed(namespace, "Unknown", "RoutePending")
    with started(gateway, namespace, programs, tmp_path):
        until_routed(namespace, "True", "RouteAccepted")
    assert namespace.get("infsvc", "adder")["status"]["url"] == f"https://{HOST}"


def test_a_route_without_the_gateway_api_and_one_that_a_gateway_refuses_say_so(
    namespace: Cluster, certificate: Certificate, programs: dict[str, Path], tmp_path: Path
) -> None:
    gateway = Gateway("httproute", certificate, tmp_path / "log", {"route": HTTP_ROUTE})
    namespace.apply(**gateway.route)
    assert "install its CRDs" in until_routed(namespace, "False", "GatewayApiMissing")
    with gateway_api(namespace):
        until_routed(namespace, "Unknown", "RoutePending")
        with (
            applied(namespace, *front(gateway, "other.example")),
            for_gateway_api(programs["traefik"], namespace, gateway),
        ):
            assert "a Gateway refuses the route" in until_routed(namespace, "False", "RouteRefused")
            with applied(namespace, *front(gateway)):
                until_routed(namespace, "True", "RouteAccepted")


def until_routed(cluster: Cluster, status: str, reason: str) -> str:
    """Wait for what the service says of its route; return the message."""

    def said() -> bool:
        found = cluster.condition("adder", "RouteReady")
        return (found.get("status"), found.get("reason")) == (status, reason)

    eventually(said, lambda: cluster.kubectl("get", "infsvc,ingress", "--output", "yaml", check=False).stdout)
    return str(cluster.condition("adder", "RouteReady")["message"])
