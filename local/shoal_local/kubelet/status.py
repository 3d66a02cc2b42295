"""The status of a pod, from the state of its containers: phase, conditions, container statuses."""

from dataclasses import dataclass
from datetime import UTC, datetime

from shoal_local.kubelet.containers import (
    Containers,
    Exit,
    Member,
    ObservedContainer,
    Role,
    has_finished,
    members_of,
    policy_of,
    restart_delay_s,
    restarts,
    seen_of,
    start_at,
)
from shoal_local.objects import Object, condition, make_condition, timestamp

ConditionParts = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class StatusContext:
    """The pod of a container, and the time in seconds since 1970."""

    pod: Object
    now: float
    ending: bool = False


def stamp(seconds: float) -> str:
    """Return a time in seconds since 1970 in the format of the API."""
    return timestamp(datetime.fromtimestamp(seconds, UTC))


def full_name(pod: Object) -> str:
    """Return the unique name of a pod in messages."""
    meta = pod["metadata"]
    return f"{meta['name']}_{meta['namespace']}({meta['uid']})"


def container_id(pod: Object, name: str, attempt: int) -> str:
    """Return the id of one run of a container."""
    return f"shoal://{pod['metadata']['uid']}/{name}/{attempt}"


def known_status(pod: Object, name: str, attempt: int) -> Object:
    """Return the status entry of a container's run, or {} if it has none."""
    status, wanted = pod.get("status") or {}, container_id(pod, name, attempt)
    entries = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return next((dict(entry) for entry in entries if entry.get("containerID") == wanted), {})


def container_status(member: Member, seen: ObservedContainer, place: StatusContext) -> Object:
    """Return an entry of containerStatuses or initContainerStatuses."""
    pod, name = place.pod, member.name
    state = _state(member, seen, place)
    # While a container waits for its next run, the latest one is its last state.
    last = seen.exit if "waiting" in state and seen.exit else seen.previous
    last_attempt = seen.attempt if "waiting" in state else seen.attempt - 1
    # An init container is ready once it has succeeded.
    ready = seen.ready and seen.running
    if member.role is Role.INIT:
        ready = seen.exit is not None and seen.exit.code == 0
    return {
        "name": name,
        "image": member.spec["image"],
        "imageID": member.spec["image"] if seen.attempt >= 0 else "",
        **({"containerID": container_id(pod, name, seen.attempt)} if seen.attempt >= 0 else {}),
        "ready": ready,
        "started": seen.started and seen.running,
        "restartCount": max(0, seen.attempt),
        "state": state,
        "lastState": {"terminated": _ended(pod, name, last_attempt, last)} if last else {},
    }


def _state(member: Member, seen: ObservedContainer, place: StatusContext) -> Object:
    if seen.running_since is not None:
        return {"running": {"startedAt": stamp(seen.running_since)}}
    if seen.waiting and not place.ending:
        reason, message = seen.waiting
        return {"waiting": {"reason": reason, "message": message}}
    if seen.exit is None:
        staged = bool(place.pod["spec"].get("initContainers"))
        return {"waiting": {"reason": "PodInitializing" if staged else "ContainerCreating"}}
    comes_back = restarts(policy_of(member, place.pod["spec"]), seen.exit.code)
    if not place.ending and start_at(seen) > place.now and comes_back:
        delay_s = int(restart_delay_s(seen.streak))
        wait = f"{delay_s // 60}m{delay_s % 60}s" if delay_s >= 60 else f"{delay_s}s"
        message = f"back-off {wait} restarting failed container={member.name} pod={full_name(place.pod)}"
        return {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
    return {"terminated": _ended(place.pod, member.name, seen.attempt, seen.exit)}


def _ended(pod: Object, name: str, attempt: int, exit_: Exit) -> Object:
    return {
        "exitCode": exit_.code,
        **({"signal": exit_.signal} if exit_.signal else {}),
        "reason": exit_.reason or ("Error" if exit_.code else "Completed"),
        **({"message": exit_.message} if exit_.message else {}),
        "startedAt": stamp(exit_.started_at or exit_.finished_at),
        "finishedAt": stamp(exit_.finished_at),
        "containerID": container_id(pod, name, attempt),
    }


def pod_status(place: StatusContext, containers: Containers, *, pod_ip: str, host_ip: str) -> Object:
    """Return a pod's status, with the conditions that a kubelet writes."""
    pod, now, ending = place.pod, place.now, place.ending
    spec, known = pod["spec"], pod.get("status") or {}
    members = members_of(spec)
    initialized = True
    for member in members:
        seen = seen_of(containers, member)
        if member.role is Role.INIT:
            initialized &= seen.exit is not None and seen.exit.code == 0
        elif member.role is Role.SIDECAR:
            initialized &= seen.running and seen.started
    # Once a main container has run, the pod counts as initialized, also while a sidecar restarts.
    initialized |= any(m.role is Role.MAIN and seen_of(containers, m).attempt >= 0 for m in members)
    place = StatusContext(pod, now, ending or has_finished(spec, containers))
    entries = [(m, container_status(m, seen_of(containers, m), place)) for m in members]
    main = [seen_of(containers, m) for m in members if m.role is Role.MAIN]
    if place.ending and not any(seen_of(containers, m).running for m in members):
        phase = "Failed" if any(one.exit.code if one.exit else 1 for one in main) else "Succeeded"
    else:
        phase = "Running" if initialized and all(one.attempt >= 0 for one in main) else "Pending"
    status: Object = {
        "phase": phase,
        "conditions": _conditions(pod, entries, phase, initialized=initialized, now=now),
        "containerStatuses": [entry for m, entry in entries if m.role is Role.MAIN],
        "podIP": pod_ip,
        "podIPs": [{"ip": pod_ip}],
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "startTime": known.get("startTime") or stamp(now),
    }
    if first := [entry for m, entry in entries if m.role is not Role.MAIN]:
        status["initContainerStatuses"] = first
    return status


def _conditions(
    pod: Object, entries: list[tuple[Member, Object]], phase: str, *, initialized: bool, now: float
) -> list[Object]:
    counted = [entry for m, entry in entries if m.role is not Role.INIT]
    unready = [entry["name"] for entry in counted if not entry["ready"]]
    # The field of a container status that shows its initialization as complete.
    up = {Role.SIDECAR: "started", Role.INIT: "ready"}
    first = " ".join(e["name"] for m, e in entries if m.role is not Role.MAIN and not e[up[m.role]])
    begun = ready = ("True", "", "")
    if phase in ("Succeeded", "Failed"):
        ready = ("False", "PodCompleted" if phase == "Succeeded" else "PodFailed", "")
    elif unready:
        ready = "False", "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    held = ("False", "ContainersNotInitialized", f"containers with incomplete status: [{first}]")
    wanted = {
        "PodReadyToStartContainers": begun,
        "Initialized": begun if initialized else held,
        "Ready": ready,
        "ContainersReady": ready,
    }
    conditions = []
    for kind, (value, reason, message) in wanted.items():
        known = condition(pod, kind)
        since = known["lastTransitionTime"] if known and known["status"] == value else stamp(now)
        # Only null removes a field in a strategic merge patch.
        made = make_condition(kind, value, reason or None, message or None, since)
        conditions.append({**made, "lastProbeTime": None})
    return conditions
