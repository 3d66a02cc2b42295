"""One pass over a Deployment: one step of its rollout, and its status."""

from collections.abc import Sequence
from datetime import datetime

from shoal_local.controllers.changes import Changes, Create, Delete, Patch, Tell, tells_more
from shoal_local.controllers.progress import deadline_in_s, deployment_status
from shoal_local.controllers.rolling import Bounds, Share, make_bounds, next_sizes
from shoal_local.controllers.templates import REVISION, copied_annotations, find_new, make_replica_set, revision_of
from shoal_local.objects import Object, is_going


def plan_deployment(deployment: Object, owned: Sequence[Object], now: datetime) -> Changes:
    """Return the next step for a Deployment and the ReplicaSets that it owns."""
    changes = Changes()
    if is_going(deployment):
        return changes
    bounds = bounds_of(deployment)
    new = find_new(deployment, owned)
    old = [rs for rs in owned if rs is not new]
    if new is None and not deployment["spec"].get("paused"):
        _create(changes, deployment, old, bounds)
    else:
        _resize(changes, deployment, new, old, bounds)
        if new is not None:
            _number(changes, deployment, new, old)
    _clean_up(changes, deployment, old)
    status = deployment_status(deployment, new, owned, bounds=bounds, now=now)
    if tells_more(status, deployment):
        changes.add(Patch(deployment, {"status": status}, subresource="status"))
    left_s = deadline_in_s({**deployment, "status": status}, now)
    changes.look_again(left_s + 1 if left_s else None)
    return changes


def bounds_of(deployment: Object) -> Bounds:
    """Return what the Deployment's strategy allows. Recreate allows no surge and needs nothing available."""
    spec = deployment["spec"]
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return Bounds(spec["replicas"], 0, spec["replicas"])
    limits = strategy.get("rollingUpdate") or {}
    return make_bounds(spec["replicas"], limits.get("maxSurge", "25%"), limits.get("maxUnavailable", "25%"))


def _create(changes: Changes, deployment: Object, old: Sequence[Object], bounds: Bounds) -> None:
    revision = max(map(revision_of, old), default=0) + 1
    room = bounds.max_total - sum(_share(rs).held for rs in old)
    size = max(0, min(bounds.replicas, room))
    made = make_replica_set(deployment, revision, size)
    changes.add(Create(made))
    if size:
        changes.add(_scaled(deployment, made["metadata"]["name"], 0, size))


def _resize(changes: Changes, deployment: Object, new: Object | None, old: Sequence[Object], bounds: Bounds) -> None:
    sets = {rs["metadata"]["name"]: rs for rs in [*old, *([new] if new else [])]}
    if new is None or deployment["spec"].get("paused"):
        sizes = _paused_size(bounds, [_share(rs) for rs in sets.values()])
    else:
        sizes = next_sizes(bounds, _share(new), [_share(rs) for rs in old])
    for name, after in sizes.items():
        before = sets[name]["spec"]["replicas"]
        if after != before:
            changes.add(_scaled(deployment, name, before, after), Patch(sets[name], {"spec": {"replicas": after}}))


def _paused_size(bounds: Bounds, shares: Sequence[Share]) -> dict[str, int]:
    """Return the new size of the newest ReplicaSet that has pods: a rollout that pauses is scaled there."""
    active = sorted((s for s in shares if s.replicas), key=lambda s: s.created) or list(shares)
    if not active:
        return {}
    *others, newest = active
    return {newest.name: max(0, bounds.replicas - sum(share.replicas for share in others))}


def _share(rs: Object) -> Share:
    status, meta = rs.get("status") or {}, rs["metadata"]
    available, pods = status.get("availableReplicas", 0), status.get("replicas", 0)
    return Share(meta["name"], rs["spec"]["replicas"], available, meta["creationTimestamp"], pods)


def _scaled(deployment: Object, name: str, before: int, after: int) -> Tell:
    way = "up" if after > before else "down"
    message = f"Scaled {way} replica set {name} from {before} to {after}"
    return Tell(deployment, "Normal", "ScalingReplicaSet", message)


def _number(changes: Changes, deployment: Object, new: Object, old: Sequence[Object]) -> None:
    """Number the present template as the latest revision: a roll-back makes an old one the latest again."""
    revision = max(max(map(revision_of, old), default=0) + 1, revision_of(new))
    mark = {REVISION: str(revision)}
    wanted, known = {**copied_annotations(deployment), **mark}, new["metadata"].get("annotations") or {}
    if any(known.get(key) != value for key, value in wanted.items()):
        changes.add(Patch(new, {"metadata": {"annotations": wanted}}))
    if revision_of(deployment) != revision:
        changes.add(Patch(deployment, {"metadata": {"annotations": mark}}))


def _clean_up(changes: Changes, deployment: Object, old: Sequence[Object]) -> None:
    idle = sorted((rs for rs in old if not _share(rs).held and not is_going(rs)), key=revision_of)
    excess = len(idle) - deployment["spec"].get("revisionHistoryLimit", 10)
    changes.add(*(Delete(rs) for rs in idle[: max(0, excess)]))
