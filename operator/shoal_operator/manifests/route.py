"""Routes to a service from outside the cluster, and the URL for clients."""

from collections.abc import Sequence

from shoal_operator.manifests.labels import make_object
from shoal_operator.manifests.target import Target
from shoal_schema.fields.declaring import Json, as_json
from shoal_schema.interfaces.protocols import GRPC_SERVICE
from shoal_schema.resource.route import HttpRouteSpec, IngressSpec, Scheme

HTTPS_PORT = 443


def make_ingress(target: Target, ingress: IngressSpec) -> Json:
    """Return the Ingress of a service."""
    backend = {"service": {"name": target.name, "port": {"name": target.scheme}}}
    path = {"path": ingress.path, "pathType": "Prefix", "backend": backend}
    spec: Json = {"rules": [{"host": ingress.host, "http": {"paths": [path]}}]}
    if ingress.class_name:
        spec["ingressClassName"] = ingress.class_name
    if ingress.tls_secret_name:
        spec["tls"] = [{"hosts": [ingress.host], "secretName": ingress.tls_secret_name}]
    annotations = ingress.annotations
    return make_object(target, "Ingress", "networking.k8s.io/v1", annotations=annotations, spec=spec)


def make_http_route(target: Target, route: HttpRouteSpec) -> Json:
    """Return the Gateway API route of a service."""
    rules = [_rule(target, route, route.path, target.service_port)]
    grpc_port = target.spec.proxy.grpc_port
    if grpc_port is not None and route.path == "/":
        # gRPC requests name their model in the body, so only a host of its own can route them to this service.
        rules.append(_rule(target, route, f"/{GRPC_SERVICE}", grpc_port))
    spec: Json = {"parentRefs": as_json(route.parent_refs), "rules": rules}
    if route.hostnames:
        spec["hostnames"] = list(route.hostnames)
    return make_object(target, "HTTPRoute", "gateway.networking.k8s.io/v1", spec=spec)


def _rule(target: Target, route: HttpRouteSpec, path: str, port: int) -> Json:
    rule: Json = {
        "matches": [{"path": {"type": "PathPrefix", "value": path}}],
        "backendRefs": [{"name": target.name, "port": port}],
    }
    if route.timeout_seconds is not None:
        rule["timeouts"] = {"request": f"{route.timeout_seconds}s"}
    return rule


def service_url(target: Target, cluster_ip: str = "") -> str:
    """Return the base URL for clients: the URL of the route, or the internal URL.

    Empty while the URL needs a cluster IP that the Service does not have yet.
    """
    route = target.spec.route
    if route and route.ingress:
        scheme = "https" if route.ingress.tls_secret_name else "http"
        return f"{scheme}://{_host(target, [route.ingress.host])}"
    if route and route.http_route and route.http_route.hostnames:
        secure = any(ref.port == HTTPS_PORT or ref.section_name == "https" for ref in route.http_route.parent_refs)
        scheme = str(route.http_route.scheme or (Scheme.HTTPS if secure else Scheme.HTTP)).lower()
        return f"{scheme}://{_host(target, route.http_route.hostnames)}"
    # The internal URL, by the operator's setting.
    text = target.defaults.service_url
    if "$(CLUSTER_IP)" in text and not cluster_ip:
        return ""
    address = f"[{cluster_ip}]" if ":" in cluster_ip else cluster_ip
    known = {"$(NAME)": target.name, "$(NAMESPACE)": target.namespace, "$(CLUSTER_IP)": address}
    for name, value in known.items():
        text = text.replace(name, value)
    return text.replace("http://", f"{target.scheme}://", 1)


def _host(target: Target, names: Sequence[str]) -> str:
    """Return the host of the route to use in the URL for clients.

    It is the first host without a wildcard. If all have one, ``*.example.com`` becomes ``NAME.example.com`` with the
    service's name.
    """
    # Clients need a concrete host.
    plain = [name for name in names if not name.startswith("*.")]
    return plain[0] if plain else f"{target.name}{names[0].removeprefix('*')}"
