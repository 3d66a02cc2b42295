"""The status of a pod, from what is observed of its containers: phase, conditions, containers."""

from dataclasses import dataclass
from datetime import UTC, datetime

from shoal_local.kubelet.containers import Containers, Exit, Member, Observed, Role, members_of, restart_delay_s
from shoal_local.kubelet.steps import has_finished, policy_of, restarts, start_at
from shoal_local.objects import Object, condition, timestamp

ConditionParts = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class StatusContext:
    """Whose container it is, and when we look; ``now`` is seconds since 1970."""

    pod: Object
    now: float
    ending: bool = False


def stamp(seconds: float) -> str:
    """Return seconds since 1970 as the API writes a time."""
    return timestamp(datetime.fromtimestamp(seconds, UTC))


def full_name(pod: Object) -> str:
    """Return the name by which messages tell a pod from every other."""
    meta = pod["metadata"]
    return f"{meta['name']}_{meta['namespace']}({meta['uid']})"


def container_id(pod: Object, name: str, attempt: int) -> str:
    """Return the id of one run."""
    return f"shoal://{pod['metadata']['uid']}/{name}/{attempt}"


def known_status(pod: Object, name: str, attempt: int) -> Object:
    """Return what the pod's status said of a run; nothing when it spoke of none or another."""
    status = pod.get("status") or {}
    wanted = container_id(pod, name, attempt)
    for part in ("initContainerStatuses", "containerStatuses"):
        for entry in status.get(part) or []:
            if entry.get("containerID") == wanted:
                return dict(entry)
    return {}


def container_status(member: Member, seen: Observed, place: StatusContext) -> Object:
    """Return an entry of containerStatuses or initContainerStatuses."""
    pod, name = place.pod, member.name
    state = _state(member, seen, place)
    last = seen.exit if "waiting" in state and seen.exit else seen.previous
    last_attempt = seen.attempt if "waiting" in state else seen.attempt - 1
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


def _state(member: Member, seen: Observed, place: StatusContext) -> Object:
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
        return {"waiting": _back_off(member, seen, place.pod)}
    return {"terminated": _ended(place.pod, member.name, seen.attempt, seen.exit)}


def _back_off(member: Member, seen: Observed, pod: Object) -> Object:
    delay_s = int(restart_delay_s(seen.streak))
    wait = f"{delay_s // 60}m{delay_s % 60}s" if delay_s >= 60 else f"{delay_s}s"
    message = f"back-off {wait} restarting failed container={member.name} pod={full_name(pod)}"
    return {"reason": "CrashLoopBackOff", "message": message}


def _ended(pod: Object, name: str, attempt: int, exit_: Exit) -> Object:
    return {
        "exitCode": exit_.code,
        **({"signal": exit_.signal} if exit_.signal else {}),
        "reason": exit_.shown_reason,
        **({"message": exit_.message} if exit_.message else {}),
        "startedAt": stamp(exit_.started_at or exit_.finished_at),
        "finishedAt": stamp(exit_.finished_at),
        "containerID": container_id(pod, name, attempt),
    }


def pod_status(place: StatusContext, containers: Containers, *, pod_ip: str, host_ip: str) -> Object:
    """Return the status; conditions hold only the kubelet's own types."""
    pod, now, ending = place.pod, place.now, place.ending
    spec, known = pod["spec"], pod.get("status") or {}
    members = members_of(spec)
    initialized = all(_initialized(m, containers.get(m.name, Observed())) for m in members)
    begun = any(m.role is Role.MAIN and _seen(containers, m).attempt >= 0 for m in members)
    place = StatusContext(pod, now, ending or has_finished(spec, containers))
    told = [(m, container_status(m, _seen(containers, m), place)) for m in members]
    phase = _phase(spec, containers, ending=ending, initialized=initialized or begun)
    status: Object = {
        "phase": phase,
        "conditions": _conditions(pod, told, phase, initialized=initialized or begun, now=now),
        "containerStatuses": [entry for m, entry in told if m.role is Role.MAIN],
        "podIP": pod_ip,
        "podIPs": [{"ip": pod_ip}],
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
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
    up = {Role.SIDECAR: "started", Role.INIT: "ready"}
    first = " ".join(e["name"] for m, e in told if m.role is not Role.MAIN and not e[up[m.role]])
    begun, ready = ("True", "", ""), _readiness(unready, phase)
    held = ("False", "ContainersNotInitialized", f"containers with incomplete status: [{first}]")
    wanted = {
        "PodReadyToStartContainers": begun,
        "Initialized": begun if initialized else held,
        "Ready": ready,
        "ContainersReady": ready,
    }
    return [_merged(pod, kind, told_now, now) for kind, told_now in wanted.items()]


def _readiness(unready: list[str], phase: str) -> ConditionParts:
    if phase in ("Succeeded", "Failed"):
        return ("False", "PodCompleted" if phase == "Succeeded" else "PodFailed", "")
    if unready:
        return "False", "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    return "True", "", ""


def _merged(pod: Object, kind: str, told: ConditionParts, now: float) -> Object:
    status, reason, message = told
    known = condition(pod, kind)
    same = known is not None and known["status"] == status
    since = known["lastTransitionTime"] if known and same else stamp(now)
    # The status is written as a patch, which keeps what it does not name: what was said before is taken back by null.
    silenced = {word: None for word in ("reason", "message") if (known or {}).get(word)}
    return {
        "type": kind,
        "status": status,
        **silenced,
        **({"reason": reason} if reason else {}),
        **({"message": message} if message else {}),
        "lastProbeTime": None,
        "lastTransitionTime": since,
    }
