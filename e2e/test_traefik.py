"""Callers from outside reach a service through Traefik, and the service's status tells the truth about it."""

import json
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from e2e.callers import ANSWER, ROW
from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually

HOST = "adder.example"
GATEWAY_API = Path(__file__).parent / "manifests" / "gateway-api.yaml"
PROGRAM_PATIENCE_S = 20.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextmanager
def traefik(program: Path, cluster: Cluster, log: Path, port: int, *options: str) -> Iterator[None]:
    """Run Traefik with one HTTP entry point until the block ends."""
    command = [str(program), f"--entrypoints.web.address=127.0.0.1:{port}", "--global.checknewversion=false", *options]
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    with log.open("wb") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=PROGRAM_PATIENCE_S)


def until_routed(cluster: Cluster, status: str, reason: str) -> str:
    """Wait for what the service says of its route; return the message."""

    def said() -> bool:
        found = cluster.condition("adder", "RouteReady")
        return (found.get("status"), found.get("reason")) == (status, reason)

    eventually(said, lambda: cluster.kubectl("get", "infsvc,ingress", "--output", "yaml", check=False).stdout)
    return str(cluster.condition("adder", "RouteReady")["message"])


def ask(port: int, path: str, **request: Any) -> httpx.Response:
    headers = {"host": HOST, **request.pop("headers", {})}
    url = f"http://127.0.0.1:{port}/{path}"
    return httpx.post(url, headers=headers, timeout=PROGRAM_PATIENCE_S, trust_env=False, **request)


def until_answered(port: int) -> None:
    """Wait until Traefik has taken in the route."""

    def answered() -> bool:
        try:
            return ask(port, "v1/models/adder:predict", json={"instances": [ROW]}).status_code == 200
        except httpx.TransportError:
            return False

    eventually(answered)


def check_protocols(port: int) -> None:
    """Ask in V1, V2 and V2 with binary tensors, through the host name of the route."""
    first = ask(port, "v1/models/adder:predict", json={"instances": [ROW]})
    assert first.json() == {"predictions": [ANSWER]}

    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 16]}
    second = ask(port, "v2/models/adder/infer", json={"inputs": [{**tensor, "data": ROW}]})
    assert second.json()["outputs"][0]["data"] == ANSWER

    raw = struct.pack("<16f", *ROW)
    inputs = [{**tensor, "parameters": {"binary_data_size": len(raw)}}]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    headers = {"inference-header-content-length": str(len(head)), "content-type": "application/octet-stream"}
    third = ask(port, "v2/models/adder/infer", content=head + raw, headers=headers)
    length = int(third.headers["inference-header-content-length"])
    assert list(struct.unpack("<16f", third.content[length:])) == ANSWER

    assert ask(port, "v2/models/adder/infer", headers={"host": "other.example"}).status_code == 404


def test_an_ingress_is_served_by_traefik(namespace: Cluster, program: Path, tmp_path: Path) -> None:
    port = free_port()
    kind = {"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": "traefik"}}
    controller = {**kind, "spec": {"controller": "traefik.io/ingress-controller"}}
    namespace.kubectl("apply", "--filename", "-", text=yaml.safe_dump(controller))
    namespace.apply(route={"ingress": {"host": HOST, "className": "traefik"}})
    assert "has not reported an address" in until_routed(namespace, "Unknown", "RoutePending")

    provider = "--providers.kubernetesingress"
    options = [provider, f"{provider}.ingressendpoint.ip=127.0.0.1", f"{provider}.namespaces={namespace.namespace}"]
    with traefik(program, namespace, tmp_path / "log", port, *options):
        until_routed(namespace, "True", "RouteAccepted")
        namespace.until_ready()
        until_answered(port)
        check_protocols(port)
    assert namespace.get("infsvc", "adder")["status"]["url"] == f"http://{HOST}"
    namespace.kubectl("delete", "ingressclass", "traefik")


@contextmanager
def gateway_api(cluster: Cluster) -> Iterator[None]:
    """Have the Gateway API until the block ends."""
    cluster.kubectl("apply", "--filename", str(GATEWAY_API))
    try:
        yield
    finally:
        cluster.kubectl("delete", "--filename", str(GATEWAY_API))


def gateway(port: int, hostname: str) -> str:
    """Return a Gateway of Traefik's with one listener, for one host name."""
    version = "gateway.networking.k8s.io/v1"
    listener = {"name": "web", "port": port, "protocol": "HTTP", "hostname": hostname}
    of_class = {
        "apiVersion": version,
        "kind": "GatewayClass",
        "metadata": {"name": "traefik"},
        "spec": {"controllerName": "traefik.io/gateway-controller"},
    }
    spec = {"gatewayClassName": "traefik", "listeners": [listener]}
    front = {"apiVersion": version, "kind": "Gateway", "metadata": {"name": "front"}, "spec": spec}
    return yaml.safe_dump_all([of_class, front])


def test_a_gateway_route_is_served_by_traefik(namespace: Cluster, program: Path, tmp_path: Path) -> None:
    port = free_port()
    namespace.apply(route={"httpRoute": {"parentRefs": [{"name": "front"}], "hostnames": [HOST]}})
    assert "install its CRDs" in until_routed(namespace, "False", "GatewayApiMissing")

    provider = "--providers.kubernetesgateway"
    options = [provider, f"{provider}.statusaddress.ip=127.0.0.1", f"{provider}.namespaces={namespace.namespace}"]
    with gateway_api(namespace):
        until_routed(namespace, "Unknown", "RoutePending")
        namespace.kubectl("apply", "--filename", "-", text=gateway(port, "other.example"))
        with traefik(program, namespace, tmp_path / "log", port, *options):
            assert "a Gateway refuses the route" in until_routed(namespace, "False", "RouteRefused")
            namespace.kubectl("apply", "--filename", "-", text=gateway(port, HOST))
            until_routed(namespace, "True", "RouteAccepted")
            namespace.until_ready()
            until_answered(port)
            check_protocols(port)
