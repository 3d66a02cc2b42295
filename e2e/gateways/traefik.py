"""Traefik, which finds its routes in the cluster: Ingresses, or those of the Gateway API."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from e2e.clusters.cluster import Cluster
from e2e.gateways.gateway import HOST, SECRET, Gateway, applied, running

GATEWAY_API = Path(__file__).parents[1] / "manifests" / "gateway-api.yaml"
VERSION = "gateway.networking.k8s.io/v1"
INGRESS = {"ingress": {"host": HOST, "className": "traefik", "tlsSecretName": SECRET}}
HTTP_ROUTE = {"httpRoute": {"parentRefs": [{"name": "front"}], "hostnames": [HOST]}}
CLASS = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "IngressClass",
    "metadata": {"name": "traefik"},
    "spec": {"controller": "traefik.io/ingress-controller"},
}


@contextmanager
def by_ingress(program: Path, cluster: Cluster, gateway: Gateway) -> Iterator[None]:
    """Serve the namespace's Ingresses."""
    provider = "--providers.kubernetesingress"
    options = [provider, f"{provider}.ingressendpoint.ip=127.0.0.1", f"{provider}.namespaces={cluster.namespace}"]
    with applied(cluster, CLASS), _traefik(program, cluster, gateway, *options):
        yield


@contextmanager
def by_gateway_api(program: Path, cluster: Cluster, gateway: Gateway) -> Iterator[None]:
    """Serve the namespace's HTTPRoutes."""
    with gateway_api(cluster), applied(cluster, *front(gateway)), for_gateway_api(program, cluster, gateway):
        yield


@contextmanager
def for_gateway_api(program: Path, cluster: Cluster, gateway: Gateway) -> Iterator[None]:
    """Run Traefik for Gateways made by the test."""
    provider = "--providers.kubernetesgateway"
    options = [provider, f"{provider}.statusaddress.ip=127.0.0.1", f"{provider}.namespaces={cluster.namespace}"]
    with _traefik(program, cluster, gateway, *options):
        yield


@contextmanager
def gateway_api(cluster: Cluster) -> Iterator[None]:
    """Have the Gateway API until the block ends."""
    with applied(cluster, yaml.safe_load(GATEWAY_API.read_text())):
        yield


def front(gateway: Gateway, hostname: str = HOST) -> list[dict[str, Any]]:
    """Return a Gateway of Traefik's with a plain and a secure listener, for one host name."""
    plain = {"name": "web", "port": gateway.port, "protocol": "HTTP", "hostname": hostname}
    tls = {"mode": "Terminate", "certificateRefs": [{"group": "", "kind": "Secret", "name": SECRET}]}
    secure = {**plain, "name": "websecure", "port": gateway.secure_port, "protocol": "HTTPS", "tls": tls}
    of_class = {
        "apiVersion": VERSION,
        "kind": "GatewayClass",
        "metadata": {"name": "traefik"},
        "spec": {"controllerName": "traefik.io/gateway-controller"},
    }
    spec = {"gatewayClassName": "traefik", "listeners": [plain, secure]}
    return [of_class, {"apiVersion": VERSION, "kind": "Gateway", "metadata": {"name": "front"}, "spec": spec}]


@contextmanager
def _traefik(program: Path, cluster: Cluster, gateway: Gateway, *options: str) -> Iterator[None]:
    command = [
        str(program),
        "--global.checknewversion=false",
        f"--entrypoints.web.address=127.0.0.1:{gateway.port}",
        f"--entrypoints.websecure.address=127.0.0.1:{gateway.secure_port}",
        "--entrypoints.websecure.http.tls=true",
        *options,
    ]
    with running(command, gateway.log, {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}):
        yield
