"""One pass over a ReplicaSet: as many pods as it asks for, and its status."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from shoal_local.controllers.changes import Changes, Create, Delete, Patch, Tell, available_in_s, tells_more
from shoal_local.objects import Object, condition, has_ended, is_going, is_ready, reference_to, timestamp

MAX_CREATED_AT_ONCE = 500
COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}


def plan_replica_set(replica_set: Object, owned: Sequence[Object], now: datetime, *, failure: str = "") -> Changes:
    """Return what brings the pods of a ReplicaSet to the number asked for.

    ``failure`` tells why the last attempt to create a pod was refused.
    """
    changes = Changes()
    active = [pod for pod in owned if not is_going(pod) and not has_ended(pod)]
    wanted = replica_set["spec"]["replicas"]
    if not is_going(replica_set):
        missing = min(wanted - len(active), MAX_CREATED_AT_ONCE)
        changes.add(*(Create(make_pod(replica_set)) for _ in range(missing)))
        surplus = sorted(active, key=lambda pod: rank(pod, now))[: max(0, len(active) - wanted)]
        changes.add(*(Delete(pod) for pod in surplus))
        names = [pod["metadata"]["name"] for pod in surplus]
        changes.add(*(Tell(replica_set, "Normal", "SuccessfulDelete", f"Deleted pod: {name}") for name in names))
    _plan_status(changes, replica_set, active, now=now, failure=failure)
    return changes


def make_pod(replica_set: Object) -> Object:
    """Return a pod from the template of a ReplicaSet or Job; the server completes its name."""
    template = replica_set["spec"]["template"]
    meta = template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **{key: meta[key] for key in ("labels", "annotations") if meta.get(key)},
            "generateName": f"{replica_set['metadata']['name']}-",
            "namespace": replica_set["metadata"]["namespace"],
            "ownerReferences": [reference_to(replica_set)],
        },
        "spec": template["spec"],
    }


def rank(pod: Object, now: datetime) -> tuple[Any, ...]:
    """Order pods by how little is lost with them: least first."""
    meta, status = pod["metadata"], pod.get("status") or {}
    ready_s = available_in_s(pod, 1e12, now) or 0.0
    counts = [c.get("restartCount", 0) for c in status.get("containerStatuses") or []]
    created = datetime.fromisoformat(meta["creationTimestamp"]).timestamp()
    return (
        bool(pod["spec"].get("nodeName")),
        _PHASES.get(status.get("phase", "Pending"), 0),
        is_ready(pod),
        _cost(pod),
        -ready_s,
        -max(counts, default=0),
        -created,
    )


def _cost(pod: Object) -> int:
    """Return what somebody says is lost with a pod; 0 where nobody does, or what is no number."""
    text = (pod["metadata"].get("annotations") or {}).get(COST, "0")
    return int(text) if re.fullmatch(r"-?[0-9]{1,10}", text) else 0


def _plan_status(
    changes: Changes, replica_set: Object, active: Sequence[Object], *, now: datetime, failure: str
) -> None:
    spec, meta = replica_set["spec"], replica_set["metadata"]
    labels = ((spec["template"].get("metadata") or {}).get("labels") or {}).items()
    waits = [available_in_s(pod, spec.get("minReadySeconds", 0), now) for pod in active]
    status: Object = {
        "observedGeneration": meta["generation"],
        "replicas": len(active),
        "fullyLabeledReplicas": sum(labels <= (pod["metadata"].get("labels") or {}).items() for pod in active),
        "readyReplicas": sum(wait is not None for wait in waits),
        "availableReplicas": sum(wait == 0 for wait in waits),
        "conditions": _failure(replica_set, failure, now),
    }
    if tells_more(status, replica_set):
        changes.add(Patch(replica_set, {"status": status}, subresource="status"))
    changes.look_again(min((wait for wait in waits if wait), default=None))


def _failure(replica_set: Object, failure: str, now: datetime) -> list[Object]:
    if not failure:
        return []
    known = condition(replica_set, "ReplicaFailure")
    if known and known["message"] == failure:
        return [known]
    told = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": failure}
    return [{**told, "lastTransitionTime": timestamp(now)}]
