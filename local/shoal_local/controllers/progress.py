"""A Deployment's status: counts, and the conditions Available, Progressing and ReplicaFailure."""

from collections.abc import Sequence
from datetime import datetime

from shoal_local.controllers.changes import seconds_since
from shoal_local.controllers.rolling import Bounds
from shoal_local.objects import Object, condition, timestamp

COMPLETE, TIMED_OUT = "NewReplicaSetAvailable", "ProgressDeadlineExceeded"
NO_DEADLINE_S = 2**31 - 1
Told = tuple[str, str, str]
"""Status, reason and message of a condition."""


def deployment_status(
    deployment: Object, new: Object | None, all_sets: Sequence[Object], *, bounds: Bounds, now: datetime
) -> Object:
    """Return the status that the ReplicaSets amount to."""
    status: Object = {
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": _sum(all_sets, "replicas"),
        "updatedReplicas": _sum([new] if new else [], "replicas"),
        "readyReplicas": _sum(all_sets, "readyReplicas"),
        "availableReplicas": _sum(all_sets, "availableReplicas"),
    }
    asked = sum(rs["spec"]["replicas"] for rs in all_sets)
    status["unavailableReplicas"] = max(0, asked - status["availableReplicas"])
    status["conditions"] = _conditions(deployment, status, new, bounds, now)
    return status


def _sum(sets: Sequence[Object], field: str) -> int:
    return sum((rs.get("status") or {}).get(field, 0) for rs in sets)


def _conditions(deployment: Object, status: Object, new: Object | None, bounds: Bounds, now: datetime) -> list[Object]:
    enough = status["availableReplicas"] >= bounds.min_available
    available = (
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        if enough
        else ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    )
    wanted = {"Available": available, "Progressing": _progress(deployment, status, new, now)}
    failure = condition(new, "ReplicaFailure") if new else None
    if failure:
        wanted["ReplicaFailure"] = (failure["status"], failure["reason"], failure["message"])
    moved = _has_moved(deployment.get("status") or {}, status)
    return [
        _merged(condition(deployment, kind), kind, told, now, moved=moved)
        for kind, told in wanted.items()
        if told is not None
    ]


def _progress(deployment: Object, status: Object, new: Object | None, now: datetime) -> Told | None:
    """Return the condition Progressing; None where there is no deadline to keep."""
    if deployment["spec"].get("progressDeadlineSeconds", NO_DEADLINE_S) == NO_DEADLINE_S:
        return None
    known = condition(deployment, "Progressing")
    told = (known["status"], known["reason"], known["message"]) if known else None
    if new is None:
        return told
    name, wanted = new["metadata"]["name"], deployment["spec"]["replicas"]
    if deployment["spec"].get("paused"):
        told = ("Unknown", "DeploymentPaused", "Deployment is paused")
    elif all(status[count] == wanted for count in ("replicas", "updatedReplicas", "availableReplicas")):
        told = ("True", COMPLETE, f'ReplicaSet "{name}" has successfully progressed.')
    elif known is None or f'"{name}"' not in known["message"]:
        told = ("True", "NewReplicaSetCreated", f'Created new replica set "{name}"')
    elif _has_moved(deployment.get("status") or {}, status):
        told = ("True", "ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.')
    elif deadline_in_s(deployment, now) == 0:
        told = ("False", TIMED_OUT, f'ReplicaSet "{name}" has timed out progressing.')
    return told


def _has_moved(before: Object, after: Object) -> bool:
    grown = any(
        after[count] > before.get(count, 0) for count in ("updatedReplicas", "readyReplicas", "availableReplicas")
    )
    old_left = before.get("replicas", 0) - before.get("updatedReplicas", 0)
    return grown or after["replicas"] - after["updatedReplicas"] < old_left


def deadline_in_s(deployment: Object, now: datetime) -> float | None:
    """Return in how many seconds the rollout counts as stuck. 0 when it does, None when it is not under way."""
    known = condition(deployment, "Progressing")
    limit_s = deployment["spec"].get("progressDeadlineSeconds", NO_DEADLINE_S)
    if known is None or limit_s == NO_DEADLINE_S or known["reason"] in (COMPLETE, "DeploymentPaused"):
        return None
    if known["reason"] == TIMED_OUT:
        return 0.0
    return max(0.0, float(limit_s) - seconds_since(known["lastUpdateTime"], now))


def _merged(known: Object | None, kind: str, told: Told, now: datetime, *, moved: bool) -> Object:
    """Keep the times of a condition that says the same as before. Moving on restarts the progress clock."""
    status, reason, message = told
    restarted = moved and reason == "ReplicaSetUpdated"
    if known and not restarted and (known["status"], known["reason"], known["message"]) == told:
        return known
    same_status = known is not None and known["status"] == status
    since = known["lastTransitionTime"] if known and same_status else timestamp(now)
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
        "lastUpdateTime": timestamp(now),
    }
