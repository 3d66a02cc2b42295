"""delete: now, after a grace period, or once the finalizers are gone."""

from datetime import timedelta
from typing import Any

from shoal_local.apiserver.errors import bad_request, conflict
from shoal_local.apiserver.kinds.resource import Resource
from shoal_local.apiserver.verbs.admission import read_as
from shoal_local.apiserver.verbs.call import Call, Reply, Target
from shoal_local.apiserver.verbs.world import World, presented
from shoal_local.apiserver.verbs.writing import namespace_finalizers
from shoal_local.objects import Object, has_ended, key_of, timestamp

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
_FINALIZER = {"Foreground": FOREGROUND, "Orphan": ORPHAN}
_POLICIES = ("Background", *_FINALIZER)


def delete(world: World, call: Call) -> Reply:
    """Delete one object; return its last state."""
    resource = world.resource(call.target)
    live = world.existing(resource, call.target)
    options = _options(world, call)
    _check_preconditions(resource, live, options)
    return Reply(presented(resource, delete_object(world, call, resource, live, options)))


def _options(world: World, call: Call) -> dict[str, Any]:
    """Return DeleteOptions from the body, or from the query.

    Raises ApiError: 400, the propagation policy is unknown.
    """
    options = read_as(world, call, "apimachinery.pkg.apis.meta.v1.DeleteOptions")
    if policy := call.query.get("propagationPolicy"):
        options.setdefault("propagationPolicy", policy)
    if (grace_s := call.number("gracePeriodSeconds")) is not None:
        options.setdefault("gracePeriodSeconds", int(grace_s))
    if options.get("propagationPolicy", "Background") not in _POLICIES:
        raise bad_request(f"invalid propagationPolicy {options['propagationPolicy']!r}, must be one of {_POLICIES}")
    return options


def _check_preconditions(resource: Resource, live: Object, options: dict[str, Any]) -> None:
    wanted, meta = options.get("preconditions") or {}, live["metadata"]
    for field, told in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(field) and wanted[field] != meta[field]:
            why = (
                f"the {told} in the precondition ({wanted[field]}) does not match the {told} in record "
                f"({meta[field]}). The object might have been deleted and then recreated"
            )
            raise conflict(resource.kind, resource.group, meta["name"], why)


def delete_object(world: World, call: Call, resource: Resource, live: Object, options: dict[str, Any]) -> Object:
    """Mark the object as deleted, and take it away if nothing holds it."""
    meta = dict(live["metadata"])
    if policy := options.get("propagationPolicy"):
        others = [name for name in meta.get("finalizers") or [] if name not in _FINALIZER.values()]
        meta["finalizers"] = others + ([_FINALIZER[policy]] if policy in _FINALIZER else [])
    grace_s = _grace_s(resource, live, options)
    if not meta.get("finalizers"):
        meta.pop("finalizers", None)
    held = "finalizers" in meta or grace_s or namespace_finalizers(live)
    if not held:
        return world.remove(call, resource, {**live, "metadata": meta})
    new = {**live, "metadata": _marked(meta, call, resource, grace_s)}
    if resource.key == "/namespaces":
        new["status"] = {**(live.get("status") or {}), "phase": "Terminating"}
    return live if new == live else world.write(call, resource, new)


def _marked(meta: Object, call: Call, resource: Resource, grace_s: int) -> Object:
    """Return metadata that says when the object goes. A second deletion can only bring that nearer."""
    shorter = grace_s < meta.get("deletionGracePeriodSeconds", grace_s + 1)
    if meta.get("deletionTimestamp") and not shorter:
        return meta
    if "generation" in meta and not meta.get("deletionTimestamp"):
        meta["generation"] += 1
    meta["deletionTimestamp"] = timestamp(call.now + timedelta(seconds=grace_s))
    meta["deletionGracePeriodSeconds"] = grace_s
    return meta


def _grace_s(resource: Resource, obj: Object, options: dict[str, Any]) -> int:
    """Return how long the kubelet may take; only a pod that runs on a node gets any time."""
    if resource.key != "/pods" or not obj["spec"].get("nodeName") or has_ended(obj):
        return 0
    asked = options.get("gracePeriodSeconds")
    return int(obj["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked)


def target_of(resource: Resource, obj: Object) -> Target:
    """Return the path of an object."""
    namespace, name = key_of(obj)
    return Target(resource.group, resource.version, resource.plural, namespace, name)
