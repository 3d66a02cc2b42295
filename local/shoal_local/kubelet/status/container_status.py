"""The status of one container."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from shoal_local.kubelet.lifecycle.backoff import restart_delay_s
from shoal_local.kubelet.lifecycle.containers import Exit, Member, Observed, Role
from shoal_local.kubelet.lifecycle.steps import start_at

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Whose container it is, and when we look; ``now`` is seconds since 1970."""

    pod: Object
    now: float
    ending: bool = False


def stamp(seconds: float) -> str:
    """Return seconds since 1970 as the API writes a time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


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


def container_status(member: Member, seen: Observed, place: Place) -> Object:
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


def _state(member: Member, seen: Observed, place: Place) -> Object:
    if seen.running_since is not None:
        return {"running": {"startedAt": stamp(seen.running_since)}}
    if seen.waiting and not place.ending:
        reason, message = seen.waiting
        return {"waiting": {"reason": reason, "message": message}}
    if seen.exit is None:
        staged = bool(place.pod["spec"].get("initContainers"))
        return {"waiting": {"reason": "PodInitializing" if staged else "ContainerCreating"}}
    if not place.ending and start_at(seen) > place.now and _comes_back(member, seen, place.pod):
        return {"waiting": _back_off(member, seen, place.pod)}
    return {"terminated": _ended(place.pod, member.name, seen.attempt, seen.exit)}


def _comes_back(member: Member, seen: Observed, pod: Object) -> bool:
    policy = pod["spec"].get("restartPolicy", "Always")
    failed = seen.exit is not None and seen.exit.code != 0
    if member.role is Role.SIDECAR:
        return True
    if policy == "Always" and member.role is Role.MAIN:
        return True
    return policy != "Never" and failed


def _back_off(member: Member, seen: Observed, pod: Object) -> Object:
    meta = pod["metadata"]
    delay_s = int(restart_delay_s(seen.streak))
    wait = f"{delay_s // 60}m{delay_s % 60}s" if delay_s >= 60 else f"{delay_s}s"
    whose = f"{meta['name']}_{meta['namespace']}({meta['uid']})"
    told = f"back-off {wait} restarting failed container={member.name} pod={whose}"
    return {"reason": "CrashLoopBackOff", "message": told}


def _ended(pod: Object, name: str, attempt: int, exit_: Exit) -> Object:
    return {
        "exitCode": exit_.code,
        **({"signal": exit_.signal} if exit_.signal else {}),
        "reason": exit_.told_reason,
        **({"message": exit_.message} if exit_.message else {}),
        "startedAt": stamp(exit_.started_at or exit_.finished_at),
        "finishedAt": stamp(exit_.finished_at),
        "containerID": container_id(pod, name, attempt),
    }
