"""Clients outside the cluster reach a service through real gateways, and the service's status agrees."""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from e2e.clients import EXPECTED, ROW, background_clients
from e2e.clusters.cluster import ROOT, Cluster
from e2e.gateways.envoy import envoy, unwatched_envoy, write_endpoints
from e2e.gateways.gateway import HOST, Certificate, Gateway, applied
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
from e2e.test_balance import PORT, SERVICE, become_peers, burst, forwarded, ready_addresses
from e2e.test_scaling import ADMIN_PORT
from e2e.waiting import eventually
from shoal_proxy.rpc.inference_pb2 import ModelInferRequest, ModelInferResponse

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


@pytest.fixture
def gateways(
    namespace: Cluster, certificate: Certificate, programs: dict[str, Path], tmp_path: Path
) -> Iterator[list[Gateway]]:
    """Run all of them for one service."""
    with ExitStack() as stack:
        made = []
        for kind in KINDS:
            folder = tmp_path / kind
            folder.mkdir()
            made.append(Gateway(kind, certificate, folder / "log", {"route": {**INGRESS, **HTTP_ROUTE}}))
            stack.enter_context(started(made[-1], namespace, programs, folder))
        yield made


def serve(cluster: Cluster, gateways: list[Gateway], **spec: Any) -> None:
    """Wait until every gateway leads to the service."""
    cluster.apply(**gateways[0].route, **spec)
    cluster.until_ready()
    for gateway in gateways:
        gateway.wait_until_served()


def binary(rows: NDArray[np.float32]) -> dict[str, Any]:
    """Return a V2 request whose tensors are bytes, in the question and in the answer."""
    raw = rows.tobytes()
    tensor = {"name": "x", "datatype": "FP32", "shape": rows.shape, "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"inference-header-content-length": str(len(head)), "content-type": "application/octet-stream"}
    return {"content": head + raw, "headers": headers}


def floats(answer: httpx.Response) -> NDArray[np.float32]:
    """Return the answer's one tensor."""
    assert answer.status_code == 200, answer.text
    return np.frombuffer(answer.content[int(answer.headers["inference-header-content-length"]) :], "<f4")


def check_protocols(client: httpx.Client) -> None:
    """Ask in V1, V2 and V2 with binary tensors, and what is refused."""
    first = client.post("v1/models/adder:predict", json={"instances": [ROW]})
    assert first.json() == {"predictions": [EXPECTED]}

    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 16], "data": ROW}
    second = client.post("v2/models/adder/infer", json={"inputs": [tensor]})
    assert second.json()["outputs"][0]["data"] == EXPECTED

    third = client.post("v2/models/adder/infer", **binary(np.array([ROW], np.float32)))
    assert floats(third).tolist() == EXPECTED

    refused = client.post("v1/models/adder:predict", json={"instances": [[1.0]]})
    assert (refused.status_code, refused.headers["x-shoal-executed"]) == (400, "no")
    assert "x" in refused.json()["error"]


def asked_to_go_on(port: int) -> bytes:
    """Send a body only after 100 Continue; return the last status line."""
    body = json.dumps({"instances": [ROW]}).encode()
    head = f"POST /v1/models/adder:predict HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\nexpect: 100-continue\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection, connection.makefile("rb") as answer:
        connection.sendall(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode())
        assert answer.readline().startswith(b"HTTP/1.1 100")
        assert answer.readline() == b"\r\n"
        connection.sendall(body)
        status = answer.readline()
        # A gateway may say it for itself, and pass on that the pod said it too.
        while status.startswith(b"HTTP/1.1 100"):
            assert answer.readline() == b"\r\n"
            status = answer.readline()
        return status


def asked_by_grpc(gateway: Gateway, authority: bytes) -> list[float]:
    """Ask by gRPC over TLS; return the answer."""
    tensor = ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 16])
    tensor.contents.fp32_contents.extend(ROW)
    options = [("grpc.ssl_target_name_override", HOST), ("grpc.default_authority", HOST)]
    address = f"127.0.0.1:{gateway.secure_port}"
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(authority), options=options) as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=ModelInferRequest.SerializeToString,
            response_deserializer=ModelInferResponse.FromString,
        )
        answer = infer(ModelInferRequest(model_name="adder", inputs=[tensor]), timeout=20, wait_for_ready=True)
    return list(answer.outputs[0].contents.fp32_contents)


def test_every_protocol_passes_plain_and_encrypted_and_no_other_host_does(
    namespace: Cluster, gateways: list[Gateway], certificate: Certificate
) -> None:
    serve(namespace, gateways, proxy={"grpcPort": 8081})
    for gateway in gateways:
        for secure in (False, True):
            with gateway.client(secure=secure) as client:
                check_protocols(client)
        assert asked_to_go_on(gateway.port).startswith(b"HTTP/1.1 200")
        assert gateway.post("v2/models/adder/infer", host="other.example").status_code == 404
        if gateway.kind != "ingress":  # which cannot say that a port speaks HTTP/2
            assert asked_by_grpc(gateway, certificate.authority) == EXPECTED


def test_tensors_of_600_kilobytes_pass(namespace: Cluster, gateways: list[Gateway]) -> None:
    columns = 3 * 224 * 224
    serve(namespace, gateways, model={"uri": "file:///models/adder", "parameters": {"columns": columns}})
    rows = np.arange(columns, dtype=np.float32)[np.newaxis]
    for gateway in gateways:
        for secure in (False, True):
            sys.stdout.write(f"{gateway.kind}, secure: {secure}\n")  # shown where one fails
            with gateway.client(secure=secure) as client:
                for _ in range(3):
                    answer = client.post("v2/models/adder/infer", **binary(rows))
                    assert np.array_equal(floats(answer), rows[0] + 1)


def test_pictures_pass_as_they_are(namespace: Cluster, gateways: list[Gateway]) -> None:
    serve(namespace, gateways, model={"uri": "file:///models/cat"})
    picture = (ROOT / "examples" / "cat" / "picture.jpg").read_bytes()
    for gateway in gateways:
        with gateway.client(secure=True) as client:
            answer = client.put("predictions/adder", content=picture, headers={"content-type": "image/jpeg"})
        assert "cat" in answer.text, answer.text


def load(pod: Any) -> dict[str, Any]:
    """Return what a pod says of its load."""
    document: dict[str, Any] = httpx.get(f"http://{pod['status']['podIP']}:{ADMIN_PORT}/v1/load", timeout=10).json()
    return document


def ask_all(gateways: list[Gateway], each: int) -> list[Future[httpx.Response]]:
    pool = ThreadPoolExecutor(each * len(gateways))
    path, body = "v1/models/adder:predict", {"instances": [ROW]}
    asked = [pool.submit(gateway.post, path, json=body, timeout=60) for gateway in gateways for _ in range(each)]
    pool.shutdown(wait=False)
    return asked


@pytest.mark.parametrize("module", ["shoal_runtime", "shoal_proxy"])
def test_what_may_have_run_when_a_process_dies_is_not_sent_again_by_any_gateway(
    namespace: Cluster, gateways: list[Gateway], module: str
) -> None:
    slow = {"uri": "file:///models/adder", "parameters": {"baseMicroseconds": 4_000_000}}
    serve(namespace, gateways, model=slow, replicas=2)
    first, second = namespace.get("pods")
    asked = ask_all(gateways, 3)
    eventually(lambda: load(first)["arrived_rows"] + load(second)["arrived_rows"] == len(asked))
    had = load(first)["arrived_rows"], load(second)["arrived_rows"]
    assert all(had)
    [process] = namespace.processes(module, first["metadata"]["uid"])
    os.kill(int(process.parent.name), signal.SIGKILL)

    answers = [each.result() for each in asked]
    lost = [answer for answer in answers if answer.status_code != 200]
    assert lost
    assert {answer.headers.get("x-shoal-executed", "maybe") for answer in lost} == {"maybe"}
    assert load(second)["arrived_rows"] == had[1]


def test_a_gateway_that_hears_late_of_a_pod_that_goes_loses_no_request_with_the_retries_of_the_page(
    namespace: Cluster, certificate: Certificate, programs: dict[str, Path], tmp_path: Path
) -> None:
    namespace.apply(**LIVELY, replicas=2)
    namespace.until_ready()
    pods = namespace.get("pods")
    write_endpoints(tmp_path, [{"http": [(pod["status"]["podIP"], PORT) for pod in pods]}])
    gateway = Gateway("envoy", certificate, tmp_path / "log")
    with unwatched_envoy(programs["envoy"], gateway, tmp_path):
        gateway.wait_until_served()
        with background_clients(namespace, keeping=3, fresh=3, address=gateway.address, host=HOST) as seen:
            before = restarts(namespace)
            url = f"http://{pods[0]['status']['podIP']}:{ADMIN_PORT}/drain"
            assert httpx.post(url, headers={"x-shoal-admin": "1"}, timeout=20).is_success
            eventually(lambda: restarts(namespace) > before)
            answered = seen.answered
            eventually(lambda: seen.answered > answered + 100)
    assert seen.failures == []


def restarts(cluster: Cluster) -> int:
    """Return how often containers have begun again."""
    return sum(each["restartCount"] for pod in cluster.get("pods") for each in pod["status"]["containerStatuses"])


def test_what_one_pod_cannot_serve_in_time_is_served_by_its_peer_behind_a_gateway_that_knows_only_the_one(
    namespace: Cluster, certificate: Certificate, programs: dict[str, Path], tmp_path: Path
) -> None:
    namespace.apply(**SERVICE)
    namespace.until_ready()
    become_peers(namespace)
    known = ready_addresses(namespace)[0]
    write_endpoints(tmp_path, [{"http": [(known, PORT)]}])
    gateway = Gateway("envoy", certificate, tmp_path / "log")
    with unwatched_envoy(programs["envoy"], gateway, tmp_path):
        gateway.wait_until_served()
        burst(f"127.0.0.1:{gateway.port}", host=HOST)  # what batches take is learned
        assert set(burst(f"127.0.0.1:{gateway.port}", host=HOST)) <= {200, 503}
    assert forwarded(known) > 0


LIVELY: dict[str, Any] = {"model": {"uri": "file:///models/adder", "parameters": {"baseMicroseconds": 20_000}}}
"""Slow enough that there are always requests under way."""


def test_while_pods_are_replaced_and_fewer_become_no_request_fails(namespace: Cluster, gateway: Gateway) -> None:
    # Pods that go take requests until every router knows: the default.
    served = {**LIVELY, **gateway.route, "rollout": {}}
    namespace.apply(**served, replicas=2)
    namespace.until_ready()
    gateway.wait_until_served()

    with background_clients(namespace, keeping=3, fresh=3, address=gateway.address, host=HOST) as seen:
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
    gateway.wait_until_served()
    namespace.kubectl("scale", "infsvc", "adder", "--replicas=0")
    eventually(lambda: not namespace.get("pods"))
    assert gateway.post("v1/models/adder:predict", json={"instances": [ROW]}, timeout=60).status_code == 200

    with background_clients(namespace, keeping=2, fresh=2, timeout_s=60, address=gateway.address, host=HOST) as seen:
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
        assert "has not reported a status" in until_routed(namespace, "Unknown", "RoutePending")
    with started(gateway, namespace, programs, tmp_path):
        until_routed(namespace, "True", "RouteAccepted")
    assert namespace.get("infsvc", "adder")["status"]["url"] == f"https://{HOST}"


def test_a_route_without_the_gateway_api_and_one_that_a_gateway_refuses_say_so(
    namespace: Cluster, certificate: Certificate, programs: dict[str, Path], tmp_path: Path
) -> None:
    gateway = Gateway("httproute", certificate, tmp_path / "log", {"route": HTTP_ROUTE})
    namespace.apply(**gateway.route)
    assert "requires the Gateway API" in until_routed(namespace, "False", "GatewayApiMissing")
    with gateway_api(namespace):
        until_routed(namespace, "Unknown", "RoutePending")
        with (
            applied(namespace, *front(gateway, "other.example")),
            for_gateway_api(programs["traefik"], namespace, gateway),
        ):
            assert "a Gateway rejects the route" in until_routed(namespace, "False", "RouteRefused")
            with applied(namespace, *front(gateway)):
                until_routed(namespace, "True", "RouteAccepted")


def until_routed(cluster: Cluster, status: str, reason: str) -> str:
    """Wait for what the service says of its route; return the message."""

    def said() -> bool:
        found = cluster.condition("adder", "RouteReady")
        return (found.get("status"), found.get("reason")) == (status, reason)

    eventually(said, lambda: cluster.kubectl("get", "infsvc,ingress", "--output", "yaml", check=False).stdout)
    return str(cluster.condition("adder", "RouteReady")["message"])
