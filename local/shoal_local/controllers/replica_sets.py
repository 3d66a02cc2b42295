"""Reconciliation of a ReplicaSet: its number of pods, and its status."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from shoal_local.controllers.changes import Changes, Create, Delete, Patch, PostEvent, available_in_s, status_differs
from shoal_local.objects import (
    Object,
    annotated,
    condition,
    has_ended,
    is_deleting,
    is_ready,
    make_condition,
    reference_to,
    timestamp,
)

MAX_CREATED_AT_ONCE = 500
COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}


def plan_replica_set(replica_set: Object, owned: Sequence[Object], now: datetime, *, failure: str = "") -> Changes:
    """Return the changes that bring a ReplicaSet to its number of pods.

    ``failure`` is the message with which the API server rejected the last new pod.
    """
    changes = Changes()
    # Pods that end are replaced at once.
    active = [pod for pod in owned if not is_deleting(pod) and not has_ended(pod)]
    wanted = replica_set["spec"]["replicas"]
    if not is_deleting(replica_set):
        # Bounded, so that one reconciliation stays short; a later one creates the rest.
        missing = min(wanted - len(active), MAX_CREATED_AT_ONCE)
        changes.add(*(Create(make_pod(replica_set)) for _ in range(missing)))
        surplus = sorted(active, key=lambda pod: rank(pod, now))[: max(0, len(active) - wanted)]
        changes.add(*(Delete(pod) for pod in surplus))
        names = [pod["metadata"]["name"] for pod in surplus]
        changes.add(*(PostEvent(replica_set, "Normal", "SuccessfulDelete", f"Deleted pod: {name}") for name in names))
    spec, meta = replica_set["spec"], replica_set["metadata"]
    labels = ((spec["template"].get("metadata") or {}).get("labels") or {}).items()
    waits = [available_in_s(pod, spec.get("minReadySeconds", 0), now) for pod in active]
    conditions: list[Object] = []
    if failure:
        # The time of the first rejection with this message is kept.
        known = condition(replica_set, "ReplicaFailure")
        made = make_condition("ReplicaFailure", "True", "FailedCreate", failure, timestamp(now))
        conditions = [known if known and known["message"] == failure else made]
    status: Object = {
        "observedGeneration": meta["generation"],
        "replicas": len(active),
        "fullyLabeledReplicas": sum(labels <= (pod["metadata"].get("labels") or {}).items() for pod in active),
        "readyReplicas": sum(wait is not None for wait in waits),
        "availableReplicas": sum(wait == 0 for wait in waits),
        "conditions": conditions,
    }
    if status_differs(status, replica_set):
        changes.add(Patch(replica_set, {"status": status}, subresource="status"))
    # When the next pod becomes available, the counts change without an event.
    changes.requeue(min((wait for wait in waits if wait), default=None))
    return changes


def make_pod(replica_set: Object) -> Object:
    """Return a pod from the template of a ReplicaSet or Job; the API server completes its name."""
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
    """Return the sort key of pods for deletion: the pod with the least progress first."""
    meta, status = pod["metadata"], pod.get("status") or {}
    # The longer a pod has been ready, the smaller this number.
    ready_s = available_in_s(pod, 1e12, now) or 0.0
    counts = [c.get("restartCount", 0) for c in status.get("containerStatuses") or []]
    created = datetime.fromisoformat(meta["creationTimestamp"]).timestamp()
    return (
        bool(pod["spec"].get("nodeName")),
        _PHASES.get(status.get("phase", "Pending"), 0),
        is_ready(pod),
        annotated(pod, COST, 0),
        # Ready for the shortest time, most restarts, youngest.
        -ready_s,
        -max(counts, default=0),
        -created,
    )
