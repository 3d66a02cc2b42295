"""The ``Table`` form of `kubectl get`: one row per object, columns by kind.

Kinds without declared columns have the columns Name and Age.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shoal_local.apiserver.errors import not_acceptable
from shoal_local.apiserver.kinds.resource import Column, Resource
from shoal_local.apiserver.printing.cells import age, find_all
from shoal_local.apiserver.printing.pods import NONE, pod_cells
from shoal_local.objects import Object, condition, dig

OFFERED = ("application/json", "application/yaml")
_HEADER = ("name", "type", "format", "description", "priority")
Header = tuple[str, str, str, str, int]
Cells = Callable[[Object, datetime], list[Any]]
NAME: Header = ("Name", "string", "name", "Name must be unique within a namespace.", 0)
_NUMBERS = ("Desired", "Current")


@dataclass(frozen=True, slots=True)
class Printer:
    """The columns of a kind, and a function for all cells except the name."""

    columns: tuple[Header, ...]
    cells: Cells


def table_wanted(accept: str) -> bool:
    """Return whether the first supported form in an Accept header is a Table.

    Raises ApiError: 406, no form is supported.
    """
    for entry in accept.split(",") if accept else ["*/*"]:
        media, *parameters = [part.strip() for part in entry.split(";")]
        form = dict(p.split("=", 1) for p in parameters if "=" in p).get("as", "")
        if media in (*OFFERED, "*/*", "application/*") and form in ("", "Table"):
            return form == "Table"
    raise not_acceptable(OFFERED)


def in_table(resource: Resource, body: Object, *, now: datetime, query: Mapping[str, str]) -> Object:
    """Return an object or a list as a Table; a Status is returned unchanged."""
    if body.get("kind") == "Status":
        return body
    version = {"resourceVersion": body["metadata"].get("resourceVersion", "")}
    items, meta = (body["items"], body["metadata"]) if "items" in body else ([body], version)
    return as_table(resource, items, meta, now=now, include=query.get("includeObject", ""))


def as_table(resource: Resource, objects: Sequence[Object], meta: Object, *, now: datetime, include: str) -> Object:
    """Return a Table with a row for each object.

    ``meta``: metadata of the list (resourceVersion, continue).
    ``now``: the time to which ages are counted.
    ``include``: the part of each object in its row: Object, None or (by default) Metadata.
    """
    printer = printer_of(resource)
    head = {"kind": resource.kind, "apiVersion": resource.api_version}
    rows = []
    for obj in objects:
        part = None
        if include == "Object":
            part = {**head, **obj}
        elif include != "None":
            part = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
        rows.append({"cells": [obj["metadata"]["name"], *printer.cells(obj, now)], "object": part})
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": [dict(zip(_HEADER, column, strict=True)) for column in (NAME, *printer.columns)],
        "rows": rows,
    }


def printer_of(resource: Resource) -> Printer:
    """Return the printer of a kind."""
    columns = resource.columns or (_AGE,)
    heads = tuple((c.name, c.type, c.format, c.description, c.priority) for c in columns)

    def cells(obj: Object, now: datetime) -> list[Any]:
        found: list[Any] = []
        for column in columns:
            values = find_all(obj, column.json_path)
            if not values:
                found.append(None)
            elif column.type == "date":
                found.append(age(values[0], now))
            elif column.type == "string":
                # JSON's spelling of true and false.
                found.append(",".join(str(v).lower() if isinstance(v, bool) else str(v) for v in values))
            else:
                found.append(values[0])
        return found

    return PRINTERS.get(resource.key, Printer(heads, cells))


_AGE = Column("Age", ".metadata.creationTimestamp", "date")


def _printer(names: str, cells: Cells, wide: str = "") -> Printer:
    """Return a printer of the named columns; ``-o wide`` also prints those in ``wide``."""
    columns = [(name, 0) for name in names.split("|")] + [(name, 1) for name in wide.split("|") if name]
    kinds = {name: "integer" if name in _NUMBERS else "string" for name, _ in columns}
    return Printer(tuple((name, kinds[name], "", name, priority) for name, priority in columns), cells)


def _with_age(names: str, cells: Callable[[Object], list[Any]]) -> Printer:
    return _printer(f"{names}|Age", lambda obj, now: [*cells(obj), age(obj["metadata"]["creationTimestamp"], now)])


def _job(obj: Object, now: datetime) -> list[Any]:
    spec, status = obj["spec"], obj.get("status", {})
    several = f" of {spec['parallelism']}" if spec.get("parallelism", 1) > 1 else ""
    wanted = spec.get("completions", f"1{several}")
    end = datetime.fromisoformat(status["completionTime"]) if "completionTime" in status else now
    lasted = age(status["startTime"], end) if "startTime" in status else ""
    # The first that applies, in the order of kubectl.
    true = [c["type"] for c in status.get("conditions", []) if c.get("status") == "True"]
    if obj["metadata"].get("deletionTimestamp"):
        true.append("Terminating")
    order = ("Complete", "Failed", "Terminating", "Suspended", "FailureTarget", "SuccessCriteriaMet")
    state = next((state for state in order if state in true), "Running")
    counts = [state, f"{status.get('succeeded', 0)}/{wanted}", lasted]
    return [*counts, age(obj["metadata"]["creationTimestamp"], now)]


PRINTERS: Mapping[str, Printer] = {
    "/events": _printer(
        "Last Seen|Type|Reason|Object|Message",
        lambda obj, now: [
            age(obj.get("lastTimestamp") or obj.get("firstTimestamp") or obj.get("eventTime"), now),
            obj.get("type", ""),
            obj.get("reason", ""),
            f"{(dig(obj, 'involvedObject', 'kind') or '').lower()}/{dig(obj, 'involvedObject', 'name') or ''}",
            obj.get("message", "").strip(),
        ],
    ),
    "/namespaces": _with_age("Status", lambda obj: [obj.get("status", {}).get("phase", "")]),
    "/nodes": _with_age(
        "Status",
        lambda obj: [
            {None: "Unknown", "True": "Ready"}.get((condition(obj, "Ready") or {}).get("status"), "NotReady")
            + (",SchedulingDisabled" if dig(obj, "spec", "unschedulable") else "")
        ],
    ),
    "/pods": _printer("Ready|Status|Restarts|Age", pod_cells, "IP|Node"),
    "/services": _with_age(
        "Type|Cluster-IP|External-IP|Port(s)",
        lambda obj: [
            obj["spec"]["type"],
            obj["spec"].get("clusterIP") or NONE,
            obj["spec"].get("externalName") or NONE,
            ",".join(f"{port['port']}/{port['protocol']}" for port in obj["spec"].get("ports", [])) or NONE,
        ],
    ),
    "apps/deployments": _with_age(
        "Ready|Up-to-date|Available",
        lambda obj: [
            f"{obj.get('status', {}).get('readyReplicas', 0)}/{obj['spec'].get('replicas', 0)}",
            obj.get("status", {}).get("updatedReplicas", 0),
            obj.get("status", {}).get("availableReplicas", 0),
        ],
    ),
    "apps/replicasets": _with_age(
        "Desired|Current|Ready",
        lambda obj: [
            obj["spec"].get("replicas", 0),
            obj.get("status", {}).get("replicas", 0),
            str(obj.get("status", {}).get("readyReplicas", 0)),
        ],
    ),
    "batch/jobs": _printer("Status|Completions|Duration|Age", _job),
    "coordination.k8s.io/leases": _with_age("Holder", lambda obj: [obj.get("spec", {}).get("holderIdentity", "")]),
    "discovery.k8s.io/endpointslices": _with_age(
        "AddressType|Ports|Endpoints",
        lambda obj: [
            obj["addressType"],
            ",".join(str(port.get("port", "*")) for port in obj.get("ports") or []) or "<unset>",
            ",".join(address for each in obj.get("endpoints") or [] for address in each["addresses"]) or "<unset>",
        ],
    ),
    "networking.k8s.io/ingresses": _with_age(
        "Class|Hosts|Address|Ports",
        lambda obj: [
            obj["spec"].get("ingressClassName") or NONE,
            ",".join(rule.get("host") or "*" for rule in obj["spec"].get("rules", [])) or "*",
            ",".join(
                at.get("ip") or at.get("hostname", "") for at in dig(obj, "status", "loadBalancer", "ingress") or []
            ),
            "80, 443" if obj["spec"].get("tls") else "80",
        ],
    ),
}
