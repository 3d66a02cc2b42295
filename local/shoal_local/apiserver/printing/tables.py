"""The ``Table`` form of `kubectl get`: one row per object, columns by kind.

Cells are ages (``5m30s``, ``2d``), values at a JSONPath, and values by kind. Kinds without declared columns have the
columns Name and Age. Source of the columns of a pod: kubernetes/kubernetes
pkg/printers/internalversion/printers.go (printPod).
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from shoal_local.apiserver.errors import ApiError
from shoal_local.apiserver.kinds.registry import Column, Resource
from shoal_local.objects import Object, condition, dig, is_ready

_STEP = re.compile(
    r"""\.?(?:
      \[\?\(\s*@(?P<test>(?:\.[\w-]+|\['[^']+'\])+)\s*==\s*(?P<quote>["'])(?P<wanted>.*?)(?P=quote)\s*\)\]
    | \[(?P<index>-?\d+)\]
    | \[(?P<every>\*)\]
    | \[(?P<q>["'])(?P<key>[^\]]+)(?P=q)\]
    | (?P<name>(?:[\w/-]|\\\.)+)
    | (?P<star>\*)
    )""",
    re.VERBOSE,
)


def find_all(obj: Any, path: str) -> list[Any]:
    """Return the values at a JSONPath; [] if a part of the path is missing.

    Raises ValueError: the path uses unsupported JSONPath syntax.
    """
    values = [obj]
    at = 0
    # `kubectl` writes `{.spec.a}`, definitions `.spec.a`.
    path = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    while at < len(path):
        step = _STEP.match(path, at)
        if not step or step.end() == at:
            raise ValueError(f"cannot read the JSONPath {path!r} at {path[at:]!r}")
        values = [inner for value in values for inner in _step_into(value, step)]
        at = step.end()
    return values


def _step_into(value: Any, step: re.Match[str]) -> Iterator[Any]:
    name = (step["name"] or step["key"] or "").replace("\\.", ".")
    if name:
        if isinstance(value, dict) and name in value:
            yield value[name]
    elif step["index"] is not None:
        index = int(step["index"])
        if isinstance(value, list) and -len(value) <= index < len(value):
            yield value[index]
    elif step["every"] or step["star"]:
        yield from value.values() if isinstance(value, dict) else value or ()
    elif isinstance(value, list):
        yield from (item for item in value if step["wanted"] in map(str, find_all(item, step["test"])))


def age(created: str | None, now: datetime) -> str:
    """Return the time since an API timestamp, ``<unknown>`` without one."""
    if not created:
        return "<unknown>"
    then = datetime.fromisoformat(created).astimezone(UTC)
    return human_duration(int((now - then).total_seconds()))


_SHOWN = (
    # Upper bound in seconds, the unit in seconds and its letter, and the same of the smaller unit beside it.
    (120, 1, "s", 0, ""),
    (600, 60, "m", 1, "s"),
    (3 * 3600, 60, "m", 0, ""),
    (8 * 3600, 3600, "h", 60, "m"),
    (48 * 3600, 3600, "h", 0, ""),
    (8 * 86400, 86400, "d", 3600, "h"),
    (730 * 86400, 86400, "d", 0, ""),
    (8 * 365 * 86400, 365 * 86400, "y", 86400, "d"),
    (math.inf, 365 * 86400, "y", 0, ""),
)


def human_duration(seconds: int) -> str:
    """Return a duration as kubectl prints it, such as ``5m30s`` or ``3h``."""
    if seconds < -1:
        return "<invalid>"
    # A clock that is one second behind is tolerated.
    seconds = max(seconds, 0)
    _, unit, letter, small, small_letter = next(row for row in _SHOWN if seconds < row[0])
    rest = seconds % unit // small if small else 0
    return f"{seconds // unit}{letter}" + (f"{rest}{small_letter}" if rest else "")


NONE = "<none>"


def _always(container: Object) -> bool:
    return container.get("restartPolicy") == "Always"


def pod_reason(pod: Object) -> str:
    """Return the value of a pod's STATUS column."""
    status = pod.get("status", {})
    reason = _init_reason(pod)
    if not reason:
        reason, running = status.get("reason") or status.get("phase", "Unknown"), False
        # The first container that waits or has ended gives the reason.
        for container in reversed(status.get("containerStatuses", [])):
            state = container.get("state", {})
            if waiting := state.get("waiting", {}).get("reason"):
                reason = waiting
            elif "terminated" in state:
                reason = _ended(state["terminated"])
            elif container.get("ready") and "running" in state:
                running = True
        if reason == "Completed" and running:
            reason = "Running" if is_ready(pod) else "NotReady"
    if pod["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return reason


def _init_reason(pod: Object) -> str:
    """Return ``Init:...`` until all init containers are done, else ''."""
    containers = pod["spec"].get("initContainers", [])
    sidecars = {c["name"] for c in containers if _always(c)}
    for done, status in enumerate(pod.get("status", {}).get("initContainerStatuses", [])):
        state = status.get("state", {})
        ended = state.get("terminated")
        if (ended and ended.get("exitCode") == 0) or (status["name"] in sidecars and status.get("started")):
            continue
        if ended:
            return "Init:" + _ended(ended)
        waiting = state.get("waiting", {}).get("reason", "")
        return f"Init:{waiting}" if waiting not in ("", "PodInitializing") else f"Init:{done}/{len(containers)}"
    return ""


def _ended(terminated: Object) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _counted(pod: Object) -> list[Object]:
    """Return the statuses of the containers that keep running: sidecars and main containers."""
    status = pod.get("status", {})
    sidecars = {c["name"] for c in pod["spec"].get("initContainers", []) if _always(c)}
    first = [s for s in status.get("initContainerStatuses", []) if s["name"] in sidecars]
    return [*first, *status.get("containerStatuses", [])]


def pod_cells(pod: Object, now: datetime) -> list[Any]:
    """Return ready containers, status, restarts and age; for ``-o wide`` also address and node."""
    spec, status = pod["spec"], pod.get("status", {})
    total = len(spec["containers"]) + sum(_always(c) for c in spec.get("initContainers", []))
    ready = f"{sum(bool(s.get('ready')) for s in _counted(pod))}/{total}"
    # Until init containers are done, their restarts count; then those of the others.
    counted = status.get("initContainerStatuses", []) if _init_reason(pod) else _counted(pod)
    restarts = str(sum(s.get("restartCount", 0) for s in counted))
    ends = [e for s in counted if (e := s.get("lastState", {}).get("terminated", {}).get("finishedAt"))]
    if restarts != "0" and ends:
        restarts += f" ({age(max(ends), now)} ago)"
    own = [ready, pod_reason(pod), restarts, age(pod["metadata"]["creationTimestamp"], now)]
    return [*own, status.get("podIP") or NONE, spec.get("nodeName") or NONE]


OFFERED = ("application/json", "application/yaml")
_HEADER = ("name", "type", "format", "description", "priority")
Cells = Callable[[Object, datetime], list[Any]]
NAME = Column("Name", format="name", description="Name must be unique within a namespace.")
_NUMBERS = ("Desired", "Current")


@dataclass(frozen=True, slots=True)
class Printer:
    """The columns of a kind, and a function for all cells except the name."""

    columns: tuple[Column, ...]
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
    message = f"only the following media types are accepted: {', '.join(OFFERED)}"
    raise ApiError(406, "NotAcceptable", message)


def in_table(resource: Resource, body: Object, *, now: datetime, query: Mapping[str, str]) -> Object:
    """Return an object or a list as a Table, with ages up to ``now``; a Status is returned unchanged."""
    if body.get("kind") == "Status":
        return body
    version = {"resourceVersion": body["metadata"].get("resourceVersion", "")}
    items, meta = (body["items"], body["metadata"]) if "items" in body else ([body], version)
    # The part of each object in its row: Object, None or, by default, Metadata.
    include = query.get("includeObject", "")
    printer = printer_of(resource)
    head = {"kind": resource.kind, "apiVersion": resource.api_version}
    rows = []
    for obj in items:
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
        "columnDefinitions": [{part: getattr(c, part) for part in _HEADER} for c in (NAME, *printer.columns)],
        "rows": rows,
    }


def printer_of(resource: Resource) -> Printer:
    """Return the printer of a kind."""
    columns = resource.columns or (_AGE,)

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

    return PRINTERS.get(resource.key, Printer(columns, cells))


_AGE = Column("Age", ".metadata.creationTimestamp", "date")


def _printer(names: str, cells: Cells, wide: str = "") -> Printer:
    """Return a printer of the named columns; ``-o wide`` also prints those in ``wide``."""
    columns = [(name, 0) for name in names.split("|")] + [(name, 1) for name in wide.split("|") if name]
    kinds = {name: "integer" if name in _NUMBERS else "string" for name, _ in columns}
    return Printer(tuple(Column(n, type=kinds[n], priority=p, description=n) for n, p in columns), cells)


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
