"""Plain Envoy: its configuration is its user's, and what stands behind it comes from a file.

A controller has to update that file as pods change. Here a watch of kubectl does: it names the
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
from e2e.gateways.gateway import HOST, Gateway, running

TYPES = "type.googleapis.com/envoy"
PORTS = ("http", "grpc")
Addresses = dict[str, list[tuple[str, int]]]
"""By the name of the port."""


def of_slice(found: dict[str, Any]) -> Addresses:
    """Return the ready addresses of an EndpointSlice."""
    ready = [each for each in found.get("endpoints") or [] if each["conditions"].get("ready")]
    hosts = [address for each in ready for address in each["addresses"]]
    return {port["name"]: [(host, port["port"]) for host in hosts] for port in found.get("ports") or []}


def of_service(found: dict[str, Any]) -> Addresses:
    """Return a Service's own address."""
    return {port["name"]: [(found["spec"]["clusterIP"], port["port"])] for port in found["spec"]["ports"]}


@contextmanager
def envoy(program: Path, cluster: Cluster, gateway: Gateway, folder: Path, *, by_service: bool) -> Iterator[None]:
    """Run Envoy in front of the service's pods as they come and go, or of the Service."""
    with following(cluster, folder, by_service=by_service), unwatched_envoy(program, gateway, folder):
        yield


@contextmanager
def unwatched_envoy(program: Path, gateway: Gateway, folder: Path) -> Iterator[None]:
    """Run Envoy in front of what the files of endpoints in a folder name."""
    configuration = folder / "envoy.json"
    configuration.write_text(json.dumps(configured(gateway, folder)))
    command = [str(program), "--config-path", str(configuration), "--concurrency", "1", "--disable-hot-restart"]
    with running([*command, "--log-level", "warning"], gateway.log):
        yield


@contextmanager
def following(cluster: Cluster, folder: Path, *, by_service: bool) -> Iterator[None]:
    """Keep the files of endpoints as the cluster has them, until the block ends."""
    write_endpoints(folder, [])
    kind, read = ("services", of_service) if by_service else ("endpointslices", of_slice)
    chosen = ["--field-selector=metadata.name=adder"] if by_service else ["--selector=kubernetes.io/service-name=adder"]
    output = ["--watch", "--output-watch-events", "--output=jsonpath={}{'\\n'}"]
    command = [str(KUBECTL), "--kubeconfig", str(cluster.kubeconfig), "--cache-dir", f"{cluster.kubeconfig}.cache"]
    command += ["--namespace", cluster.namespace, "get", kind, *chosen, *output]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        thread = threading.Thread(target=_follow, args=(watch.stdout, folder, read))
        thread.start()
        try:
            yield
        finally:
            watch.terminate()
            thread.join()


def _follow(events: Iterator[str], folder: Path, read: Callable[[dict[str, Any]], Addresses]) -> None:
    known: dict[str, Addresses] = {}
    for line in events:
        event = json.loads(line)
        name = event["object"]["metadata"]["name"]
        known[name] = {} if event["type"] == "DELETED" else read(event["object"])
        write_endpoints(folder, list(known.values()))


def write_endpoints(folder: Path, known: list[Addresses]) -> None:
    """Say what stands behind Envoy; it looks when a file takes the place of the one before."""
    for port in PORTS:
        addresses = sorted({address for each in known for address in each.get(port, [])})
        listed = [{"endpoint": {"address": socket_address(*each)}} for each in addresses]
        assignment = {"cluster_name": port, "endpoints": [{"lb_endpoints": listed}]}
        resource = {"@type": f"{TYPES}.config.endpoint.v3.ClusterLoadAssignment", **assignment}
        (folder / "new.json").write_text(json.dumps({"resources": [resource]}))
        (folder / "new.json").rename(folder / f"{port}.json")


def socket_address(address: str, port: int) -> dict[str, Any]:
    """Return an address as Envoy has it."""
    return {"socket_address": {"address": address, "port_value": port}}


def configured(gateway: Gateway, folder: Path) -> dict[str, Any]:
    """Return Envoy's configuration (docs/how-to/ingress.md): two listeners, two routes, two clusters."""
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
            "clusters": [cluster_of(port, folder) for port in PORTS],
        },
    }


RETRIES = {
    # What certainly has not run: no connection was made, or the pod says so.
    "retry_on": "connect-failure,refused-stream,retriable-headers",
    "retriable_headers": [{"name": "x-shoal-executed", "string_match": {"exact": "no"}}],
    "num_retries": 3,
    "retry_host_predicate": [
        {
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": {"@type": f"{TYPES}.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
        }
    ],
    # Who refuses connections has the fewest requests under way, and would be chosen again and again.
    "host_selection_retry_max_attempts": 20,
}


def listener(port: int, **chain: Any) -> dict[str, Any]:
    """Return a listener whose one virtual host leads to the service."""
    routes = [
        {"match": {"prefix": prefix}, "route": {"cluster": cluster, "timeout": "65s", "retry_policy": RETRIES}}
        for prefix, cluster in (("/inference.GRPCInferenceService/", "grpc"), ("/", "http"))
    ]
    router = {"name": "router", "typed_config": {"@type": f"{TYPES}.extensions.filters.http.router.v3.Router"}}
    host = {"name": "adder", "domains": [HOST, f"{HOST}:*"], "routes": routes}
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


def cluster_of(port: str, folder: Path) -> dict[str, Any]:
    """Return the cluster of a port of the service, whose endpoints stand in a file."""
    kind = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    protocol = "http2_protocol_options" if port == "grpc" else "http_protocol_options"
    options = {
        "@type": f"type.googleapis.com/{kind}",
        # Less than the proxy's own 620 s, so that it is never the proxy that ends a connection as a request comes.
        "common_http_protocol_options": {"idle_timeout": "300s"},
        "explicit_http_config": {protocol: {}},
    }
    source = {"path_config_source": {"path": str(folder / f"{port}.json")}, "resource_api_version": "V3"}
    return {
        "name": port,
        "type": "EDS",
        "connect_timeout": "1s",
        "lb_policy": "LEAST_REQUEST",
        "circuit_breakers": {"thresholds": [{"max_retries": 1024}]},  # at a time; 3 otherwise
        "eds_cluster_config": {"eds_config": source},
        "typed_extension_protocol_options": {kind: options},
    }
