"""The status of a pod: phase, conditions, containers."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shoal_local.kubelet.lifecycle.containers import Containers, Member, Observed, Role, members_of
from shoal_local.kubelet.lifecycle.steps import has_finished
from shoal_local.kubelet.status.container_status import Place, container_status, stamp

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the pod and its machine are."""

    pod_ip: str
    host_ip: str


def pod_status(pod: Object, containers: Containers, addresses: Addresses, *, now: float, ending: bool) -> Object:
    """Return the status; conditions hold only the kubelet's own types."""
    spec, known = pod["spec"], pod.get("status") or {}
    members = members_of(spec)
    initialized = all(_initialized(m, containers.get(m.name, Observed())) for m in members)
    begun = any(m.role is Role.MAIN and _seen(containers, m).attempt >= 0 for m in members)
    place = Place(pod, now, ending or has_finished(spec, containers))
    told = [(m, container_status(m, _seen(containers, m), place)) for m in members]
    phase = _phase(spec, containers, ending=ending, initialized=initialized or begun)
    status: Object = {
        "phase": phase,
        "conditions": _conditions(pod, told, phase, initialized=initialized or begun, now=now),
        "containerStatuses": [entry for m, entry in told if m.role is Role.MAIN],
        "podIP": addresses.pod_ip,
        "podIPs": [{"ip": addresses.pod_ip}],
        "hostIP": addresses.host_ip,
        "hostIPs": [{"ip": addresses.host_ip}],
        "startTime": known.get("startTime") or stamp(now),
    }
    if first := [entry for m, entry in told if m.role is not Role.MAIN]:
        status["initContainerStatuses"] = first
    return status


def _seen(containers: Containers, member: Member) -> Observed:
    return containers.get(member.name, Observed())


def _initialized(member: Member, seen: Observed) -> bool:
    if member.role is Role.INIT:
        return seen.exit is not None and seen.exit.code == 0
    return member.role is Role.MAIN or (seen.running and seen.started)


def _phase(spec: Object, containers: Containers, *, ending: bool, initialized: bool) -> str:
    members = members_of(spec)
    main = [_seen(containers, m) for m in members if m.role is Role.MAIN]
    running = any(_seen(containers, m).running for m in members)
    if (has_finished(spec, containers) or ending) and not running:
        codes = [one.exit.code if one.exit else 1 for one in main]
        return "Failed" if any(codes) else "Succeeded"
    if not initialized or any(one.attempt < 0 for one in main):
        return "Pending"
    return "Running"


def _conditions(
    pod: Object, told: list[tuple[Member, Object]], phase: str, *, initialized: bool, now: float
) -> list[Object]:
    counted = [entry for m, entry in told if m.role is not Role.INIT]
    unready = [entry["name"] for entry in counted if not entry["ready"]]
    first = [e["name"] for m, e in told if m.role is not Role.MAIN and not _up(m, e)]
    ready = _readiness(unready, phase)
    wanted = {
        "PodReadyToStartContainers": ("True", "", ""),
        "Initialized": ("True", "", "")
        if initialized
        else ("False", "ContainersNotInitialized", f"containers with incomplete status: {_names(first)}"),
        "Ready": ready,
        "ContainersReady": ready,
    }
    return [_merged(pod, kind, told_now, now) for kind, told_now in wanted.items()]


def _up(member: Member, entry: Object) -> bool:
    return bool(entry["started"] if member.role is Role.SIDECAR else entry["ready"])


def _names(names: Iterable[str]) -> str:
    return f"[{' '.join(names)}]"


Told = tuple[str, str, str]


def _readiness(unready: list[str], phase: str) -> Told:
    if phase in ("Succeeded", "Failed"):
        return ("False", "PodCompleted" if phase == "Succeeded" else "PodFailed", "")
    if unready:
        return "False", "ContainersNotReady", f"containers with unready status: {_names(unready)}"
    return "True", "", ""


def _merged(pod: Object, kind: str, told: Told, now: float) -> Object:
    status, reason, message = told
    conditions = (pod.get("status") or {}).get("conditions") or []
    known = next((c for c in conditions if c["type"] == kind), None)
    same = known is not None and known["status"] == status
    since = known["lastTransitionTime"] if known and same else stamp(now)
    return {
        "type": kind,
        "status": status,
        **({"reason": reason} if reason else {}),
        **({"message": message} if message else {}),
        "lastProbeTime": None,
        "lastTransitionTime": since,
    }
