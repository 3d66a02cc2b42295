"""EndpointSlices of a service from its pods: pods with the same resolved port numbers share a slice."""

import json
import zlib
from collections.abc import Sequence

from shoal_local.controllers.changes import Changes, Create, Delete, Patch
from shoal_local.objects import SERVICE_NAME, Object, has_ended, is_deleting, is_ready, reference_to

MANAGER = "endpointslice-controller.k8s.io"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"


def selects(service: Object, pod: Object) -> bool:
    """Return whether the service's selector matches the pod; a service without a selector has no pods."""
    selector, labels = service["spec"].get("selector") or {}, pod["metadata"].get("labels") or {}
    return bool(selector) and selector.items() <= labels.items()


def plan_slices(service: Object, pods: Sequence[Object], present: Sequence[Object]) -> Changes:
    """Return the changes that make the slices of a service match its pods."""
    changes = Changes()
    labelled = [(s["metadata"].get("labels") or {}, s) for s in present]
    # Slices that a user or another controller wrote are left alone.
    managed = {s["metadata"]["name"]: s for labels, s in labelled if labels.get(MANAGED_BY) == MANAGER}
    if is_deleting(service) or not service["spec"].get("selector"):
        changes.add(*(Delete(s) for s in managed.values()))
        return changes
    wanted = {made["metadata"]["name"]: made for made in make_slices(service, pods)}
    for name, made in wanted.items():
        if name not in managed:
            changes.add(Create(made))
        elif any(managed[name].get(part) != made[part] for part in ("endpoints", "ports")):
            changes.add(Patch(managed[name], {part: made[part] for part in ("endpoints", "ports")}))
    changes.add(*(Delete(s) for name, s in managed.items() if name not in wanted))
    return changes


def make_slices(service: Object, pods: Sequence[Object]) -> list[Object]:
    """Return a service's EndpointSlices; without pods, one empty slice."""
    open_early = bool(service["spec"].get("publishNotReadyAddresses"))
    groups: dict[str, tuple[list[Object], list[Object]]] = {}
    for pod in sorted(pods, key=lambda p: str(p["metadata"]["name"])):
        if not (pod.get("status") or {}).get("podIP") or has_ended(pod):
            continue
        numbered = [(port, _target(port, pod)) for port in service["spec"].get("ports") or []]
        # Pods in which a named port has different numbers are in different slices.
        ports = [
            {"name": port.get("name", ""), "port": number, "protocol": port.get("protocol", "TCP")}
            for port, number in numbered
            if number is not None
        ]
        meta, serving, terminating = pod["metadata"], is_ready(pod), is_deleting(pod)
        # A terminating pod may still serve, but is never ready.
        ready = open_early or (serving and not terminating)
        endpoint = {
            "addresses": [pod["status"]["podIP"]],
            "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
            "nodeName": pod["spec"].get("nodeName"),
            "targetRef": {"kind": "Pod", "name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
        }
        groups.setdefault(json.dumps(ports), (ports, []))[1].append(endpoint)
    if not groups:
        return [_slice(service, [], [])]
    return [_slice(service, ports, endpoints) for ports, endpoints in groups.values()]


def _slice(service: Object, ports: list[Object], endpoints: list[Object]) -> Object:
    meta = service["metadata"]
    # The name is derived from the ports, so a slice keeps its name while its pods change.
    mark = zlib.crc32(f"{meta['uid']}{json.dumps(ports)}".encode())
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{meta['name']}-{mark:08x}",
            "namespace": meta["namespace"],
            "labels": {**(meta.get("labels") or {}), SERVICE_NAME: meta["name"], MANAGED_BY: MANAGER},
            "ownerReferences": [reference_to(service)],
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": ports,
    }


def _target(port: Object, pod: Object) -> int | None:
    """Return the pod's port behind a service's port, or None if the pod has no port of that name."""
    target = port.get("targetPort", port["port"])
    if isinstance(target, int):
        return target
    containers = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or [])]
    offered = (each for container in containers for each in container.get("ports") or [])
    return next((int(each["containerPort"]) for each in offered if each.get("name") == target), None)
