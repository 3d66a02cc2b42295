"""How built-in kinds are printed: the columns of the real server, cell by cell."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from shoal_local.apiserver.printing.durations import age
from shoal_local.apiserver.printing.pods import POD
from shoal_local.apiserver.printing.printer import NONE, UNSET, Header, Object, Printer, age_of, header, printer


def _with_age(names: str, cells: Callable[[Object], list[Any]], wide: tuple[str, ...] = ()) -> Printer:
    """Return a printer of the named columns (separated by ``|``), Age, and the wide ones."""
    own = tuple(name for name in names.split("|") if name)

    def row(obj: Object, now: datetime) -> list[Any]:
        found = cells(obj)
        return [*found[: len(own)], age_of(obj, now), *found[len(own) :]]

    return printer((*own, "Age"), row, wide)


def _labels(labels: Mapping[str, str] | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or NONE


def _containers(obj: Object) -> list[Any]:
    containers = obj["spec"].get("template", {}).get("spec", {}).get("containers", [])
    names = ",".join(c["name"] for c in containers)
    images = ",".join(c.get("image", "") for c in containers)
    return [names, images, _labels(obj["spec"].get("selector", {}).get("matchLabels"))]


def _deployment(obj: Object) -> list[Any]:
    status, wanted = obj.get("status", {}), obj["spec"].get("replicas", 0)
    ready = f"{status.get('readyReplicas', 0)}/{wanted}"
    return [ready, status.get("updatedReplicas", 0), status.get("availableReplicas", 0), *_containers(obj)]


def _replica_set(obj: Object) -> list[Any]:
    status = obj.get("status", {})
    counts = [status.get("replicas", 0), str(status.get("readyReplicas", 0))]
    return [obj["spec"].get("replicas", 0), *counts, *_containers(obj)]


def _service(obj: Object) -> list[Any]:
    spec = obj["spec"]
    external = spec.get("externalIPs") or [
        entry.get("ip") or entry.get("hostname", "")
        for entry in obj.get("status", {}).get("loadBalancer", {}).get("ingress", [])
    ]
    pending = "<pending>" if spec["type"] == "LoadBalancer" else NONE
    outside = spec.get("externalName", "") if spec["type"] == "ExternalName" else ",".join(external) or pending
    selector = _labels(spec.get("selector"))
    return [spec["type"], spec.get("clusterIP") or NONE, outside, _service_ports(spec), selector]


def _service_ports(spec: Object) -> str:
    told = []
    for port in spec.get("ports", []):
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        told.append(f"{port['port']}{node}/{port['protocol']}")
    return ",".join(told) or NONE


def _node(obj: Object) -> list[Any]:
    status, info = obj.get("status", {}), obj.get("status", {}).get("nodeInfo", {})
    addresses = {a["type"]: a["address"] for a in status.get("addresses", [])}
    ready = [c for c in status.get("conditions", []) if c["type"] == "Ready"]
    state = "Unknown" if not ready else "Ready" if ready[0]["status"] == "True" else "NotReady"
    if obj.get("spec", {}).get("unschedulable"):
        state += ",SchedulingDisabled"
    return [
        state,
        _node_roles(obj),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", NONE),
        addresses.get("ExternalIP", NONE),
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _node_roles(obj: Object) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = obj["metadata"].get("labels") or {}
    return ",".join(sorted(k.removeprefix(prefix) for k in labels if k.startswith(prefix))) or NONE


def _node_row(obj: Object, now: datetime) -> list[Any]:
    state, roles, version, *wide = _node(obj)
    return [state, roles, age_of(obj, now), version, *wide]


def _event_row(obj: Object, now: datetime) -> list[Any]:
    about = obj.get("involvedObject") or obj.get("regarding") or {}
    source = obj.get("source") or {}
    last = obj.get("lastTimestamp") or (obj.get("series") or {}).get("lastObservedTime")
    first = obj.get("firstTimestamp") or obj.get("eventTime")
    name = f"{about.get('kind', '').lower()}/{about.get('name', '')}"
    component = source.get("component") or obj.get("reportingComponent", "")
    wide = [about.get("fieldPath", ""), ", ".join(filter(None, (component, source.get("host"))))]
    return [
        age(last or first, now),
        obj.get("type", ""),
        obj.get("reason", ""),
        name,
        (obj.get("message") or obj.get("note") or "").strip(),
        *wide,
        age(first or last, now),
        obj.get("count") or 1,
        obj["metadata"]["name"],
    ]


_EVENT_COLUMNS: tuple[Header, ...] = (
    *(header(name) for name in ("Last Seen", "Type", "Reason", "Object", "Message")),
    *(header(name, 1) for name in ("Subobject", "Source", "First Seen", "Count", "Name")),
)


def _first(values: list[str], most: int = 3) -> str:
    more = f" + {len(values) - most} more..." if len(values) > most else ""
    return (",".join(values[:most]) + more) or UNSET


def _endpoint_slice(obj: Object) -> list[Any]:
    ports = [str(port.get("port", "*")) for port in obj.get("ports") or []]
    addresses = [a for endpoint in obj.get("endpoints") or [] for a in endpoint["addresses"]]
    return [obj["addressType"], _first(ports), _first(addresses)]


def _endpoints(obj: Object) -> list[Any]:
    pairs = [
        f"{address['ip']}:{port['port']}"
        for subset in obj.get("subsets") or []
        for port in subset.get("ports") or []
        for address in subset.get("addresses") or []
    ]
    return [_first(pairs) if pairs else NONE]


def _ingress(obj: Object) -> list[Any]:
    spec = obj["spec"]
    hosts = [rule.get("host") or "*" for rule in spec.get("rules", [])] or ["*"]
    points = obj.get("status", {}).get("loadBalancer", {}).get("ingress", [])
    addresses = ",".join(point.get("ip") or point.get("hostname", "") for point in points)
    ports = "80, 443" if spec.get("tls") else "80"
    return [spec.get("ingressClassName") or NONE, _first(hosts), addresses, ports]


def _ingress_class(obj: Object) -> list[Any]:
    ref = obj["spec"].get("parameters")
    kind = f"{ref['kind']}.{ref['apiGroup']}" if ref and ref.get("apiGroup") else (ref or {}).get("kind")
    return [obj["spec"].get("controller", ""), f"{kind}/{ref['name']}" if ref else NONE]


def _budget(obj: Object) -> list[Any]:
    spec, status = obj.get("spec", {}), obj.get("status", {})
    least, most = spec.get("minAvailable", "N/A"), spec.get("maxUnavailable", "N/A")
    return [str(least), str(most), status.get("disruptionsAllowed", 0)]


def _binding(obj: Object) -> list[Any]:
    ref, subjects = obj["roleRef"], obj.get("subjects") or []
    users = ", ".join(s["name"] for s in subjects if s["kind"] == "User")
    groups = ", ".join(s["name"] for s in subjects if s["kind"] == "Group")
    accounts = [f"{s.get('namespace', '')}/{s['name']}" for s in subjects if s["kind"] == "ServiceAccount"]
    return [f"{ref['kind']}/{ref['name']}", users, groups, ", ".join(accounts)]


def _claim(obj: Object) -> list[Any]:
    spec, status = obj["spec"], obj.get("status", {})
    short = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
    modes = ",".join(short.get(mode, mode) for mode in status.get("accessModes", []))
    capacity = status.get("capacity", {}).get("storage", "")
    klass, attributes = (spec.get("storageClassName", ""), spec.get("volumeAttributesClassName", UNSET))
    return [status.get("phase", ""), spec.get("volumeName", ""), capacity, modes, klass, attributes]


def _created(obj: Object, now: datetime) -> list[Any]:
    return [obj["metadata"]["creationTimestamp"]]


def _size(*parts: str) -> Callable[[Object], int]:
    return lambda obj: sum(len(obj.get(part) or {}) for part in parts)


_WORKLOAD_WIDE = ("Containers", "Images", "Selector")
_NODE_WIDE = ("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime")
_SUBJECTS = ("Users", "Groups", "ServiceAccounts")
_CREATED = printer(("Created At",), _created)
_BINDING = _with_age("Role", _binding, _SUBJECTS)
_RBAC = "rbac.authorization.k8s.io"

PRINTERS: Mapping[str, Printer] = {
    "": _with_age("", lambda obj: []),
    "/configmaps": _with_age("Data", lambda obj: [_size("data", "binaryData")(obj)]),
    "/endpoints": _with_age("Endpoints", _endpoints),
    "/events": Printer(_EVENT_COLUMNS, _event_row),
    "/namespaces": _with_age("Status", lambda obj: [obj.get("status", {}).get("phase", "")]),
    "/nodes": printer(("Status", "Roles", "Age", "Version"), _node_row, _NODE_WIDE),
    "/persistentvolumeclaims": _with_age(
        "Status|Volume|Capacity|Access Modes|StorageClass|VolumeAttributesClass", _claim
    ),
    "/pods": POD,
    "/secrets": _with_age("Type|Data", lambda obj: [obj.get("type", ""), _size("data")(obj)]),
    "/serviceaccounts": _with_age("Secrets", lambda obj: [len(obj.get("secrets") or [])]),
    "/services": _with_age("Type|Cluster-IP|External-IP|Port(s)", _service, ("Selector",)),
    "apiextensions.k8s.io/customresourcedefinitions": _CREATED,
    "apps/deployments": _with_age("Ready|Up-to-date|Available", _deployment, _WORKLOAD_WIDE),
    "apps/replicasets": _with_age("Desired|Current|Ready", _replica_set, _WORKLOAD_WIDE),
    "coordination.k8s.io/leases": _with_age("Holder", lambda obj: [obj.get("spec", {}).get("holderIdentity", "")]),
    "discovery.k8s.io/endpointslices": _with_age("AddressType|Ports|Endpoints", _endpoint_slice),
    "networking.k8s.io/ingressclasses": _with_age("Controller|Parameters", _ingress_class),
    "networking.k8s.io/ingresses": _with_age("Class|Hosts|Address|Ports", _ingress),
    "networking.k8s.io/networkpolicies": _with_age(
        "Pod-Selector", lambda obj: [_labels(obj["spec"].get("podSelector", {}).get("matchLabels"))]
    ),
    "policy/poddisruptionbudgets": _with_age("Min Available|Max Unavailable|Allowed Disruptions", _budget),
    f"{_RBAC}/clusterrolebindings": _BINDING,
    f"{_RBAC}/clusterroles": _CREATED,
    f"{_RBAC}/rolebindings": _BINDING,
    f"{_RBAC}/roles": _CREATED,
}
