"""The status of a Deployment: counts, and the conditions Available, Progressing and ReplicaFailure."""

from collections.abc import Sequence
from datetime import datetime

from shoal_local.controllers.changes import seconds_since
from shoal_local.controllers.rolling import Bounds
from shoal_local.objects import Object, condition, timestamp

COMPLETE, TIMED_OUT = "NewReplicaSetAvailable", "ProgressDeadlineExceeded"
NO_DEADLINE_S = 2**31 - 1
"""The value of progressDeadlineSeconds that stands for no deadline."""
ConditionParts = tuple[str, str, str]
"""Status, reason and message of a condition."""


def deployment_status(
    deployment: Object, new: Object | None, all_sets: Sequence[Object], *, bounds: Bounds, now: datetime
) -> Object:
    """Return the status of a Deployment from its ReplicaSets."""
    status: Object = {
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": _sum(all_sets, "replicas"),
        "updatedReplicas": _sum([new] if new else [], "replicas"),
        "readyReplicas": _sum(all_sets, "readyReplicas"),
        "availableReplicas": _sum(all_sets, "availableReplicas"),
    }
    requested = sum(rs["spec"]["replicas"] for rs in all_sets)
    status["unavailableReplicas"] = max(0, requested - status["availableReplicas"])
    wanted = {
        "Available": ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability."),
        "Progressing": _progress(deployment, status, new, now),
    }
    if status["availableReplicas"] >= bounds.min_available:
        wanted["Available"] = ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    failure = condition(new, "ReplicaFailure") if new else None
    if failure:
        wanted["ReplicaFailure"] = (failure["status"], failure["reason"], failure["message"])
    moved = _has_moved(deployment.get("status") or {}, status)
    status["conditions"] = [
        _dated(condition(deployment, kind), kind, parts, now, moved=moved)
        for kind, parts in wanted.items()
        if parts is not None
    ]
    return status


def _sum(sets: Sequence[Object], field: str) -> int:
    return sum((rs.get("status") or {}).get(field, 0) for rs in sets)


def _progress(deployment: Object, status: Object, new: Object | None, now: datetime) -> ConditionParts | None:
    """Return the condition Progressing, or None if the Deployment has no progress deadline."""
    if deployment["spec"].get("progressDeadlineSeconds", NO_DEADLINE_S) == NO_DEADLINE_S:
        return None
    known = condition(deployment, "Progressing")
    parts = (known["status"], known["reason"], known["message"]) if known else None
    # Not created yet: keep the old condition.
    if new is None:
        return parts
    name, wanted = new["metadata"]["name"], deployment["spec"]["replicas"]
    if deployment["spec"].get("paused"):
        parts = ("Unknown", "DeploymentPaused", "Deployment is paused")
    elif all(status[count] == wanted for count in ("replicas", "updatedReplicas", "availableReplicas")):
        parts = ("True", COMPLETE, f'ReplicaSet "{name}" has successfully progressed.')
    elif known is None or f'"{name}"' not in known["message"]:
        parts = ("True", "NewReplicaSetCreated", f'Created new replica set "{name}"')
    elif _has_moved(deployment.get("status") or {}, status):
        parts = ("True", "ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.')
    elif deadline_in_s(deployment, now) == 0:
        parts = ("False", TIMED_OUT, f'ReplicaSet "{name}" has timed out progressing.')
    return parts


def _has_moved(before: Object, after: Object) -> bool:
    # Progress is a new pod that is updated, ready or available, or an old pod that is gone.
    grown = any(
        after[count] > before.get(count, 0) for count in ("updatedReplicas", "readyReplicas", "availableReplicas")
    )
    old_left = before.get("replicas", 0) - before.get("updatedReplicas", 0)
    return grown or after["replicas"] - after["updatedReplicas"] < old_left


def deadline_in_s(deployment: Object, now: datetime) -> float | None:
    """Return the seconds to the progress deadline, or None without a rollout."""
    known = condition(deployment, "Progressing")
    limit_s = deployment["spec"].get("progressDeadlineSeconds", NO_DEADLINE_S)
    if known is None or limit_s == NO_DEADLINE_S or known["reason"] in (COMPLETE, "DeploymentPaused"):
        return None
    if known["reason"] == TIMED_OUT:
        return 0.0
    return max(0.0, float(limit_s) - seconds_since(known["lastUpdateTime"], now))


def _dated(known: Object | None, kind: str, parts: ConditionParts, now: datetime, *, moved: bool) -> Object:
    """Return a condition of type ``kind`` with timestamps.

    An unchanged condition keeps its timestamps. Progress of a rollout (``moved``) renews the time of the last update.
    """
    status, reason, message = parts
    restarted = moved and reason == "ReplicaSetUpdated"
    if known and not restarted and (known["status"], known["reason"], known["message"]) == parts:
        return known
    # The transition time changes with the status only, not with the reason.
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
