"""create and update: one way into the store for every change of an object."""

from shoal_local.apiserver.errors import Cause, already_exists, bad_request, conflict, forbidden, invalid, not_found
from shoal_local.apiserver.kinds.resource import Resource
from shoal_local.apiserver.lifecycle import metadata
from shoal_local.apiserver.patching.managers import Managers
from shoal_local.apiserver.verbs.admission import admit
from shoal_local.apiserver.verbs.call import Call, Reply
from shoal_local.apiserver.verbs.decoding import decode_object, strict_fields
from shoal_local.apiserver.verbs.namespace_defaults import create_defaults
from shoal_local.apiserver.verbs.world import World, presented
from shoal_local.objects import Object, key_of

NAMESPACES = "/namespaces"
PODS = "/pods"
ACCOUNTS = "/serviceaccounts"


def create(world: World, call: Call) -> Reply:
    """Store a new object."""
    resource = world.resource(call.target)
    obj = decode_object(call, resource)
    warnings = strict_fields(obj, call, world.schema(resource))
    return Reply(presented(resource, store_new(world, call, resource, obj)), 201, warnings)


def store_new(world: World, call: Call, resource: Resource, obj: Object, managers: Managers | None = None) -> Object:
    """Fill in, check and store a new object."""
    obj = {**obj, "metadata": metadata.for_create(obj, resource, uid=world.new_uid(), now=call.timestamp)}
    name = (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
    if world.store.get(resource.key, name):
        raise already_exists(resource.plural, resource.group, name[1])
    check_namespace(world, resource, name)
    if resource.key == PODS:
        check_account(world, obj)
    if "status" in resource.subresources:
        obj.pop("status", None)
    stored = world.write(call, resource, admit(world, call, resource, obj, None, managers))
    if resource.key == NAMESPACES and not call.dry_run:
        create_defaults(world, call, name[1])
    return stored


def check_namespace(world: World, resource: Resource, name: tuple[str, str]) -> None:
    """Refuse to create in a namespace that does not exist or is going away."""
    if not resource.namespaced:
        return
    namespace = world.store.get(NAMESPACES, ("", name[0]))
    if namespace is None:
        raise not_found("namespaces", "", name[0])
    if namespace["metadata"].get("deletionTimestamp"):
        why = f"unable to create new content in namespace {name[0]} because it is being terminated"
        ending = Cause("metadata.namespace", f"namespace {name[0]} is being terminated", "NamespaceTerminating")
        raise forbidden(resource.plural, resource.group, name[1], why, [ending])


def check_account(world: World, pod: Object) -> None:
    """Refuse a pod whose service account does not exist."""
    spec, meta = pod.get("spec") or {}, pod["metadata"]
    account = spec.get("serviceAccountName") or "default"
    space = meta.get("namespace", "")
    if world.store.get(ACCOUNTS, (space, account)) is None:
        why = f'error looking up service account {space}/{account}: serviceaccount "{account}" not found'
        raise forbidden("pods", "", meta["name"], why)


def update(world: World, call: Call) -> Reply:
    """Replace an object, or its status, if the caller saw its last version."""
    resource = world.resource(call.target)
    live = world.existing(resource, call.target)
    new = decode_object(call, resource)
    if (named := new["metadata"].get("name", "")) != call.target.name:
        raise bad_request(f"the name of the object ({named}) does not match the name on the URL ({call.target.name})")
    warnings = strict_fields(new, call, world.schema(resource))
    return Reply(presented(resource, store_update(world, call, resource, live, new)), warnings=warnings)


def store_update(
    world: World, call: Call, resource: Resource, live: Object, new: Object, managers: Managers | None = None
) -> Object:
    """Check and store the next version of an object; the same version again is no write.

    Raises ApiError: 409, ``new`` rests on an older version; 422, it breaks a rule.
    """
    check_version(resource, live, new)
    if causes := metadata.immutable_causes(new, live):
        raise invalid(resource.kind, resource.group, live["metadata"]["name"], causes)
    new = _only_its_part(resource, call.target.subresource, live, new)
    new |= {"kind": live["kind"], "apiVersion": live["apiVersion"]}
    new["metadata"] = metadata.for_update(new, live, counted=False)
    new = admit(world, call, resource, new, live, managers)
    new["metadata"] = metadata.for_update(new, live, counted=resource.generation)
    if new == world.store.get(resource.key, key_of(live)):
        return live
    if may_go(new):
        return world.remove(call, resource, new)
    return world.write(call, resource, new)


def check_version(resource: Resource, live: Object, new: Object) -> None:
    """Refuse a write that rests on an older version. Or was meant for another object of the same name."""
    old, meta = live["metadata"], new["metadata"]
    version = meta.get("resourceVersion")
    if version and version != old["resourceVersion"]:
        raise conflict(resource.plural, resource.group, old["name"])
    if meta.get("uid") and meta["uid"] != old["uid"]:
        why = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {old['uid']}"
        raise conflict(resource.plural, resource.group, old["name"], why)


def may_go(obj: Object) -> bool:
    """Return whether a deleted object is free to leave the store now."""
    meta = obj["metadata"]
    waits = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
    return bool(meta.get("deletionTimestamp")) and not waits and not namespace_finalizers(obj)


def namespace_finalizers(obj: Object) -> list[str]:
    """Return what a namespace waits for beside its metadata's finalizers; [] for other kinds."""
    spec = (obj.get("spec") or {}) if obj["kind"] == "Namespace" else {}
    return spec.get("finalizers") or []


def _only_its_part(resource: Resource, subresource: str, live: Object, new: Object) -> Object:
    """Keep what this endpoint may change: all but the status, or nothing but the status."""
    if "status" not in resource.subresources:
        return dict(new)
    source, base = (new, live) if subresource == "status" else (live, new)
    part = {key: value for key, value in base.items() if key != "status"}
    return part | ({"status": source["status"]} if "status" in source else {})
