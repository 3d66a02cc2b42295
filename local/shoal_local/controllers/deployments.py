"""Reconciliation of a Deployment: its ReplicaSets, the next step of its rollout, and its status.

Invariants of a rolling update: at most ``replicas + max_surge`` pods are requested, and available pods never fall below
``replicas - max_unavailable``. Unlike Kubernetes, a change of ``replicas`` during a rollout does not first scale the
old ReplicaSets in proportion. Source: kubernetes/kubernetes pkg/controller/deployment/rolling.go.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from shoal_local.controllers.changes import Changes, Create, Delete, Patch, PostEvent, seconds_since, status_differs
from shoal_local.objects import (
    Object,
    annotated,
    condition,
    is_deleting,
    make_condition,
    reference_to,
    share_of,
    timestamp,
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a rollout, in pods."""

    replicas: int
    max_surge: int
    max_unavailable: int

    @property
    def max_total(self) -> int:
        """Return the largest allowed number of pods during a rollout."""
        return self.replicas + self.max_surge

    @property
    def min_available(self) -> int:
        """Return the smallest allowed number of available pods in a rollout."""
        return self.replicas - self.max_unavailable


@dataclass(frozen=True, slots=True)
class ReplicaSetCounts:
    """The pods of one ReplicaSet: requested, available and existing."""

    name: str
    replicas: int
    available: int
    created: str = ""
    """Its creation time; sorts as text."""
    pods: int = 0
    """Pods that exist; more than ``replicas`` while old pods terminate."""

    @property
    def occupied(self) -> int:
        """Return the number of pods that count against ``max_total``."""
        return max(self.replicas, self.pods)


def make_bounds(replicas: int, max_surge: int | str, max_unavailable: int | str) -> Bounds:
    """Resolve percentages of ``replicas``: surge rounds up, unavailable down."""
    surge = share_of(max_surge, replicas)
    unavailable = share_of(max_unavailable, replicas, round_up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return Bounds(replicas, surge, min(unavailable, replicas))


def next_sizes(bounds: Bounds, new: ReplicaSetCounts, old: Sequence[ReplicaSetCounts]) -> dict[str, int]:
    """Return the next sizes of the ReplicaSets that change, by name.

    The old ReplicaSets shrink only when the new one keeps its size.
    """
    free = max(0, bounds.max_total - new.replicas - sum(share.occupied for share in old))
    size = min(bounds.replicas, new.replicas + free)
    if size != new.replicas:
        return {new.name: size}
    total = new.replicas + sum(share.replicas for share in old)
    # Unavailable pods of the new ReplicaSet may never become available: they free no old pods.
    spare = total - bounds.min_available - max(0, new.replicas - new.available)
    if spare <= 0:
        return {}
    # Unavailable old pods go first, so that they cannot block the rollout.
    left = _cut([(share, share.replicas - share.available) for share in sorted(old, key=lambda s: s.created)], spare)
    available = new.available + sum(share.available for share in old)
    # Then available ones, down to the minimum.
    left = _cut([(share, share.replicas) for share in left], available - bounds.min_available)
    before = {share.name: share.replicas for share in old}
    return {share.name: share.replicas for share in left if share.replicas != before[share.name]}


def _cut(shares: Sequence[tuple[ReplicaSetCounts, int]], budget: int) -> list[ReplicaSetCounts]:
    """Return ReplicaSets with at most ``budget`` replicas fewer in total.

    ``shares`` are pairs of a ReplicaSet and the number of replicas that may be removed from it.
    """
    left = []
    for share, limit in shares:
        taken = max(0, min(budget, limit))
        budget -= taken
        left.append(replace(share, replicas=share.replicas - taken))
    return left


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
    return {**make_condition(kind, status, reason, message, since), "lastUpdateTime": timestamp(now)}


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
    return annotated(obj, REVISION, 0)


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
