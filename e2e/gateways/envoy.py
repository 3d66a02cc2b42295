"""Plain Envoy: its configuration is its user's, and what stands behind it comes from a file.

Somebody has to write that file as pods come and go. Here a watch of kubectl's does, as a controller would: it names the
ready endpoints of the service's slices, or the Service's own address.
"""

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.clusters.cluster import Cluster
from e2e.clusters.kubectl import KUBECTL
from e2e.gateways.asking import HOST, Gateway, running

TYPES = "type.googleapis.com/envoy"
Address = tuple[str, int]


def of_slice(found: dict[str, Any]) -> list[Address]:
    """Return the ready addresses of an EndpointSlice."""
    [port] = [each["port"] for each in found.get("ports") or [] if each["name"] == "http"] or [0]
    ready = [each for each in found.get("endpoints") or [] if each["conditions"].get("ready")]
    return [(address, port) for each in ready for address in each["addresses"]]


def of_service(found: dict[str, Any]) -> list[Address]:
    """Return a Service's own address."""
    return [(found["spec"]["clusterIP"], found["spec"]["ports"][0]["port"])]


@contextmanager
def envoy(program: Path, cluster: Cluster, gateway: Gateway, folder: Path, *, by_service: bool) -> Iterator[None]:
    """Run Envoy in front of the service's pods, or of the Service."""
    endpoints, configuration = folder / "endpoints.json", folder / "envoy.json"
    write_endpoints(endpoints, [])
    configuration.write_text(json.dumps(configured(gateway, endpoints)))
    command = [str(program), "--config-path", str(configuration), "--concurrency", "1", "--disable-hot-restart"]
    with (
        following(cluster, endpoints, by_service=by_service),
        running([*command, "--log-level", "warning"], gateway.log),
    ):
        yield


@contextmanager
def following(cluster: Cluster, endpoints: Path, *, by_service: bool) -> Iterator[None]:
    """Keep the file of endpoints as the cluster has them, until the block ends."""
    kind, read = ("services", of_service) if by_service else ("endpointslices", of_slice)
    chosen = ["--field-selector=metadata.name=adder"] if by_service else ["--selector=kubernetes.io/service-name=adder"]
    output = ["--watch", "--output-watch-events", "--output=jsonpath={}{'\\n'}"]
    command = [str(KUBECTL), "--kubeconfig", str(cluster.kubeconfig), "--cache-dir", f"{cluster.kubeconfig}.cache"]
    command += ["--namespace", cluster.namespace, "get", kind, *chosen, *output]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        thread = threading.Thread(target=_follow, args=(watch.stdout, endpoints, read))
        thread.start()
        try:
            yield
        finally:
            watch.terminate()
            thread.join()


def _follow(events: Iterator[str], endpoints: Path, read: Callable[[dict[str, Any]], list[Address]]) -> None:
    known: dict[str, list[Address]] = {}
    for line in events:
        event = json.loads(line)
        name = event["object"]["metadata"]["name"]
        known[name] = [] if event["type"] == "DELETED" else read(event["object"])
        write_endpoints(endpoints, sorted({address for each in known.values() for address in each}))


def write_endpoints(path: Path, addresses: list[Address]) -> None:
    """Say what stands behind Envoy; it looks when a file takes the place of this one."""
    listed = [{"endpoint": {"address": socket_address(*each)}} for each in addresses]
    assignment = {"cluster_name": "adder", "endpoints": [{"lb_endpoints": listed}]}
    resource = {"@type": f"{TYPES}.config.endpoint.v3.ClusterLoadAssignment", **assignment}
    path.with_suffix(".new").write_text(json.dumps({"resources": [resource]}))
    path.with_suffix(".new").rename(path)


def socket_address(address: str, port: int) -> dict[str, Any]:
    """Return an address as Envoy has it."""
    return {"socket_address": {"address": address, "port_value": port}}


def configured(gateway: Gateway, endpoints: Path) -> dict[str, Any]:
    """Return Envoy's configuration: a plain and a secure listener, one route, one cluster (docs/ingress.md)."""
    pem = {"certificate_chain": {"filename": str(gateway.certificate.chain)}}
    pem["private_key"] = {"filename": str(gateway.certificate.key)}
    tls = {
        "name": "tls",
        "typed_config": {
            "@type": f"{TYPES}.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {"tls_certificates": [pem], "alpn_protocols": ["h2", "http/1.1"]},
        },
    }
    return {
        "node": {"id": "e2e", "cluster": "e2e"},
        "static_resources": {
            "listeners": [listener(gateway.port), listener(gateway.secure_port, transport_socket=tls)],
            "clusters": [cluster_of(endpoints)],
        },
    }


def listener(port: int, **chain: Any) -> dict[str, Any]:
    """Return a listener whose one virtual host leads to the service."""
    route = {"cluster": "adder", "timeout": "65s"}
    router = {"name": "router", "typed_config": {"@type": f"{TYPES}.extensions.filters.http.router.v3.Router"}}
    host = {"name": "adder", "domains": [HOST, f"{HOST}:*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}
    manager = {
        "@type": f"{TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "front",
        "route_config": {"virtual_hosts": [host]},
        "http_filters": [router],
    }
    filters = [{"name": "http", "typed_config": manager}]
    return {
        "name": f"listener-{port}",
        "address": socket_address("127.0.0.1", port),
        "filter_chains": [{"filters": filters, **chain}],
    }


def cluster_of(endpoints: Path) -> dict[str, Any]:
    """Return the service's cluster, whose endpoints stand in a file."""
    options = {
        "@type": f"{TYPES}.extensions.upstreams.http.v3.HttpProtocolOptions",
        # Less than the proxy's own 620 s, so that it is never the proxy that ends a connection as a request comes.
        "common_http_protocol_options": {"idle_timeout": "300s"},
        "explicit_http_config": {"http_protocol_options": {}},
    }
    return {
        "name": "adder",
        "type": "EDS",
        "connect_timeout": "1s",
        "lb_policy": "LEAST_REQUEST",
        "eds_cluster_config": {
            "eds_config": {"path_config_source": {"path": str(endpoints)}, "resource_api_version": "V3"}
        },
        "typed_extension_protocol_options": {
            f"{TYPES.rpartition('/')[2]}.extensions.upstreams.http.v3.HttpProtocolOptions": options
        },
    }
