"""Reconciliation of a Deployment: its ReplicaSets, the next step of its rollout, and its status."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import datetime

from shoal_local.controllers.changes import Changes, Create, Delete, Patch, PostEvent, status_differs
from shoal_local.controllers.progress import deadline_in_s, deployment_status
from shoal_local.controllers.rolling import Bounds, ReplicaSetCounts, make_bounds, next_sizes
from shoal_local.objects import Object, is_deleting, reference_to

HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
_NOT_COPIED = {"kubectl.kubernetes.io/last-applied-configuration", REVISION}
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""No vowels and no digits that resemble them: a hash must not spell words."""


def template_hash(template: Object) -> str:
    """Return a hash of ten characters for the template."""
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:10])


def find_new(deployment: Object, replica_sets: Iterable[Object]) -> Object | None:
    """Return the oldest ReplicaSet with the Deployment's template."""
    template = _without_hash(deployment["spec"]["template"])
    same = [rs for rs in replica_sets if _without_hash(rs["spec"]["template"]) == template]
    # Two may have the same template after a race of two controllers: all choose the oldest.
    return min(same, key=lambda rs: str(rs["metadata"]["creationTimestamp"]), default=None)


def _without_hash(template: Object) -> Object:
    meta = template.get("metadata") or {}
    labels = {k: v for k, v in (meta.get("labels") or {}).items() if k != HASH_LABEL}
    # Null and absent fields are equal in a template.
    kept = {k: v for k, v in meta.items() if v is not None}
    return {**template, "metadata": {**kept, "labels": labels}}


def revision_of(obj: Object) -> int:
    """Return the revision number of a Deployment or ReplicaSet, or 0 without a valid one."""
    text = (obj["metadata"].get("annotations") or {}).get(REVISION, "0")
    return int(text) if text.isdigit() else 0


def make_replica_set(deployment: Object, revision: int, replicas: int) -> Object:
    """Return the ReplicaSet of the Deployment's current template."""
    meta, spec = deployment["metadata"], deployment["spec"]
    mark = {HASH_LABEL: template_hash(spec["template"])}
    template_meta = spec["template"].get("metadata") or {}
    labels = {**(template_meta.get("labels") or {}), **mark}
    selector = spec["selector"]
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{meta['name']}-{mark[HASH_LABEL]}",
            "namespace": meta["namespace"],
            "labels": labels,
            "annotations": {**copied_annotations(deployment), REVISION: str(revision)},
            "ownerReferences": [reference_to(deployment)],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": spec.get("minReadySeconds", 0),
            "selector": {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), **mark}},
            "template": {**spec["template"], "metadata": {**template_meta, "labels": labels}},
        },
    }


def copied_annotations(deployment: Object) -> dict[str, str]:
    """Return the annotations that a ReplicaSet copies from its Deployment, such as the change cause."""
    annotations = deployment["metadata"].get("annotations") or {}
    return {key: value for key, value in annotations.items() if key not in _NOT_COPIED}


def plan_deployment(deployment: Object, owned: Sequence[Object], now: datetime) -> Changes:
    """Return the next step for a Deployment and its ReplicaSets."""
    changes = Changes()
    if is_deleting(deployment):
        return changes
    bounds = bounds_of(deployment)
    new = find_new(deployment, owned)
    old = [rs for rs in owned if rs is not new]
    if new is None and not deployment["spec"].get("paused"):
        # The template is new: create its ReplicaSet, as large as the surge allows.
        revision = max(map(revision_of, old), default=0) + 1
        available = bounds.max_total - sum(_counts_of(rs).occupied for rs in old)
        size = max(0, min(bounds.replicas, available))
        made = make_replica_set(deployment, revision, size)
        changes.add(Create(made))
        if size:
            changes.add(_scaled(deployment, made["metadata"]["name"], 0, size))
    else:
        _resize(changes, deployment, new, old, bounds)
        if new is not None:
            _set_revision(changes, deployment, new, old)
    # Old ReplicaSets without pods beyond revisionHistoryLimit, oldest first.
    idle = sorted((rs for rs in old if not _counts_of(rs).occupied and not is_deleting(rs)), key=revision_of)
    excess = len(idle) - deployment["spec"].get("revisionHistoryLimit", 10)
    changes.add(*(Delete(rs) for rs in idle[: max(0, excess)]))
    status = deployment_status(deployment, new, owned, bounds=bounds, now=now)
    if status_differs(status, deployment):
        changes.add(Patch(deployment, {"status": status}, subresource="status"))
    # One second after the deadline, as times of the API are whole seconds.
    left_s = deadline_in_s({**deployment, "status": status}, now)
    changes.requeue(left_s + 1 if left_s else None)
    return changes


def bounds_of(deployment: Object) -> Bounds:
    """Return the rollout limits of a Deployment; Recreate allows no surge."""
    spec = deployment["spec"]
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return Bounds(spec["replicas"], 0, spec["replicas"])
    limits = strategy.get("rollingUpdate") or {}
    return make_bounds(spec["replicas"], limits.get("maxSurge", "25%"), limits.get("maxUnavailable", "25%"))


def _resize(changes: Changes, deployment: Object, new: Object | None, old: Sequence[Object], bounds: Bounds) -> None:
    sets = {rs["metadata"]["name"]: rs for rs in [*old, *([new] if new else [])]}
    if new is None or deployment["spec"].get("paused"):
        # While paused, only the newest ReplicaSet with pods follows a change of replicas.
        counts = [_counts_of(rs) for rs in sets.values()]
        active = sorted((c for c in counts if c.replicas), key=lambda c: c.created) or counts
        others = sum(c.replicas for c in active[:-1])
        sizes = {active[-1].name: max(0, bounds.replicas - others)} if active else {}
    else:
        sizes = next_sizes(bounds, _counts_of(new), [_counts_of(rs) for rs in old])
    for name, after in sizes.items():
        before = sets[name]["spec"]["replicas"]
        if after != before:
            changes.add(_scaled(deployment, name, before, after), Patch(sets[name], {"spec": {"replicas": after}}))


def _counts_of(rs: Object) -> ReplicaSetCounts:
    status, meta = rs.get("status") or {}, rs["metadata"]
    available, pods = status.get("availableReplicas", 0), status.get("replicas", 0)
    return ReplicaSetCounts(meta["name"], rs["spec"]["replicas"], available, meta["creationTimestamp"], pods)


def _scaled(deployment: Object, name: str, before: int, after: int) -> PostEvent:
    way = "up" if after > before else "down"
    message = f"Scaled {way} replica set {name} from {before} to {after}"
    return PostEvent(deployment, "Normal", "ScalingReplicaSet", message)


def _set_revision(changes: Changes, deployment: Object, new: Object, old: Sequence[Object]) -> None:
    """Give the current template the latest revision number: a rollback makes an old ReplicaSet the latest again."""
    revision = max(max(map(revision_of, old), default=0) + 1, revision_of(new))
    mark = {REVISION: str(revision)}
    wanted, known = {**copied_annotations(deployment), **mark}, new["metadata"].get("annotations") or {}
    if any(known.get(key) != value for key, value in wanted.items()):
        changes.add(Patch(new, {"metadata": {"annotations": wanted}}))
    if revision_of(deployment) != revision:
        changes.add(Patch(deployment, {"metadata": {"annotations": mark}}))
