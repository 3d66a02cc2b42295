"""One pass over a Deployment: one step of its rollout, and its status."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from shoal_local.controllers.plans import Create, Delete, Patch, Plan, Tell, is_going, tells_more
from shoal_local.controllers.progress import deadline_in_s, deployment_status
from shoal_local.controllers.rolling import Bounds, Share, make_bounds, next_sizes, scaled_sizes
from shoal_local.controllers.templates import (
    DESIRED,
    MOST,
    copied_annotations,
    find_new,
    make_replica_set,
    revision_annotations,
    revision_of,
    size_annotations,
)

Object = dict[str, Any]


def plan_deployment(deployment: Object, owned: Sequence[Object], now: datetime) -> Plan:
    """Return the next step for a Deployment and the ReplicaSets that it owns."""
    plan = Plan()
    if is_going(deployment):
        return plan
    bounds = bounds_of(deployment)
    new = find_new(deployment, owned)
    old = [rs for rs in owned if rs is not new]
    paused = bool(deployment["spec"].get("paused"))
    if new is None and not paused:
        _plan_new(plan, deployment, old, bounds)
    else:
        _plan_sizes(plan, deployment, new, old, bounds)
        if new is not None:
            _plan_revision(plan, deployment, new, old)
    _plan_cleanup(plan, deployment, old)
    _plan_status(plan, deployment, new, owned, now)
    return plan


def bounds_of(deployment: Object) -> Bounds:
    """Return what the Deployment's strategy allows. Recreate allows no surge and needs nothing available."""
    spec = deployment["spec"]
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return Bounds(spec["replicas"], 0, spec["replicas"])
    limits = strategy.get("rollingUpdate") or {}
    return make_bounds(spec["replicas"], limits.get("maxSurge", "25%"), limits.get("maxUnavailable", "25%"))


def _plan_new(plan: Plan, deployment: Object, old: Sequence[Object], bounds: Bounds) -> None:
    revision = max(map(revision_of, old), default=0) + 1
    total = sum(rs["spec"]["replicas"] for rs in old)
    if _recreates(deployment):
        size = 0 if total or _pods_left(old) else bounds.replicas
    else:
        size = max(0, min(bounds.replicas, bounds.most - total))
    made = make_replica_set(deployment, revision, size, bounds.most)
    plan.add(Create(made))
    if size:
        plan.add(_told(deployment, made["metadata"]["name"], 0, size))


def _recreates(deployment: Object) -> bool:
    return (deployment["spec"].get("strategy") or {}).get("type") == "Recreate"


def _pods_left(sets: Sequence[Object]) -> bool:
    return any((rs.get("status") or {}).get("replicas", 0) for rs in sets)


def _plan_sizes(plan: Plan, deployment: Object, new: Object | None, old: Sequence[Object], bounds: Bounds) -> None:
    everything = [*old, *([new] if new else [])]
    sizes = _next_sizes(deployment, new, old, bounds)
    wanted = size_annotations(bounds.replicas, bounds.most)
    for rs in everything:
        before, after = rs["spec"]["replicas"], sizes.get(rs["metadata"]["name"])
        patch: Object = {}
        if after is not None and after != before:
            patch["spec"] = {"replicas": after}
            plan.add(_told(deployment, rs["metadata"]["name"], before, after))
        stale = any(_annotation(rs, key) != value for key, value in wanted.items())
        if (before or after or rs is new) and stale:
            patch["metadata"] = {"annotations": wanted}
        if patch:
            plan.add(Patch(rs, patch))


def _annotation(obj: Object, key: str) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(key, ""))


def _next_sizes(deployment: Object, new: Object | None, old: Sequence[Object], bounds: Bounds) -> dict[str, int]:
    everything = [*old, *([new] if new else [])]
    newest = new["metadata"]["name"] if new else ""
    resized = any(
        rs["spec"]["replicas"] and _annotation(rs, DESIRED) not in ("", str(bounds.replicas)) for rs in everything
    )
    shares = [_share(rs) for rs in everything]
    if new is None or deployment["spec"].get("paused") or (resized and not _recreates(deployment)):
        return scaled_sizes(bounds, shares, newest)
    if _recreates(deployment):
        sizes = {rs["metadata"]["name"]: 0 for rs in old if rs["spec"]["replicas"]}
        done = not sizes and not _pods_left(old)
        return {newest: bounds.replicas} if done else sizes
    return next_sizes(bounds, _share(new), [_share(rs) for rs in old])


def _share(rs: Object) -> Share:
    most = _annotation(rs, MOST)
    return Share(
        name=rs["metadata"]["name"],
        replicas=rs["spec"]["replicas"],
        available=(rs.get("status") or {}).get("availableReplicas", 0),
        created=rs["metadata"]["creationTimestamp"],
        planned_for=int(most) if most.isdigit() else 0,
    )


def _told(deployment: Object, name: str, before: int, after: int) -> Tell:
    way = "up" if after > before else "down"
    told = f"Scaled {way} replica set {name} from {before} to {after}"
    return Tell(deployment, "Normal", "ScalingReplicaSet", told)


def _plan_revision(plan: Plan, deployment: Object, new: Object, old: Sequence[Object]) -> None:
    """Number the present template as the latest: a roll-back makes an old one the latest again."""
    latest = max(map(revision_of, old), default=0) + 1
    revision = max(latest, revision_of(new))
    wanted = {**copied_annotations(deployment), **revision_annotations(new, revision)}
    if any(_annotation(new, key) != value for key, value in wanted.items()):
        plan.add(Patch(new, {"metadata": {"annotations": wanted}}))
    if revision_of(deployment) != revision:
        mark = revision_annotations({"metadata": {}}, revision)
        plan.add(Patch(deployment, {"metadata": {"annotations": mark}}))


def _plan_cleanup(plan: Plan, deployment: Object, old: Sequence[Object]) -> None:
    idle = [rs for rs in old if not rs["spec"]["replicas"] and not _pods_left([rs]) and not is_going(rs)]
    idle.sort(key=revision_of)
    excess = len(idle) - deployment["spec"].get("revisionHistoryLimit", 10)
    plan.add(*(Delete(rs) for rs in idle[: max(0, excess)]))


def _plan_status(plan: Plan, deployment: Object, new: Object | None, owned: Sequence[Object], now: datetime) -> None:
    bounds = bounds_of(deployment)
    status = deployment_status(deployment, new, owned, bounds=bounds, now=now)
    if tells_more(status, deployment):
        plan.add(Patch(deployment, {"status": status}, subresource="status"))
    left_s = deadline_in_s({**deployment, "status": status}, now)
    plan.look_again(left_s + 1 if left_s else None)
