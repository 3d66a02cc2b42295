"""The verbs create and update, the storage of all changed objects, and the initial objects."""

from collections.abc import Iterable
from datetime import datetime

import orjson

from shoal_local.apiserver.access.rbac import User
from shoal_local.apiserver.errors import Cause, already_exists, bad_request, conflict, forbidden, invalid, not_found
from shoal_local.apiserver.kinds.registry import ACCOUNTS, BY_KIND, NAMESPACES, PODS, Resource
from shoal_local.apiserver.lifecycle.validation import for_create, for_update, immutable_causes
from shoal_local.apiserver.patching.applying import Managers
from shoal_local.apiserver.verbs.admission import admit
from shoal_local.apiserver.verbs.call import ApiResponse, Call, Target, decode_object, strict_fields
from shoal_local.apiserver.verbs.state import ClusterState, presented
from shoal_local.objects import Object, key_of


def create_defaults(state: ClusterState, call: Call, namespace: str) -> None:
    """Create the missing default objects of a namespace: its service account, and the authority's certificate."""
    contents = {("ServiceAccount", "default"): {}, ("ConfigMap", "kube-root-ca.crt"): {"ca.crt": state.authority}}
    for (kind, name), data in contents.items():
        resource, meta = BY_KIND[kind], {"name": name, "namespace": namespace}
        if state.store.get(resource.key, (namespace, name)) is None:
            obj: Object = {"kind": kind, "apiVersion": "v1", "metadata": meta, **({"data": data} if data else {})}
            meta = for_create(obj, resource, uid=state.new_uid(), now=call.timestamp)
            state.write(call, resource, {**obj, "metadata": meta})


def create(state: ClusterState, call: Call) -> ApiResponse:
    """Store a new object."""
    resource = state.resource(call.target)
    obj = decode_object(call, resource)
    warnings = strict_fields(obj, call, state.schema(resource))
    return ApiResponse(presented(resource, store_new(state, call, resource, obj)), 201, warnings)


def store_new(
    state: ClusterState, call: Call, resource: Resource, obj: Object, managers: Managers | None = None
) -> Object:
    """Complete, check and store a new object."""
    obj = {**obj, "metadata": for_create(obj, resource, uid=state.new_uid(), now=call.timestamp)}
    name = (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
    if state.store.get(resource.key, name):
        raise already_exists(resource.plural, resource.group, name[1])
    check_namespace(state, resource, name)
    if resource.key == PODS:
        check_account(state, obj)
    if "status" in resource.subresources:
        # The status of a new object is written by its subresource only.
        obj.pop("status", None)
    stored = state.write(call, resource, admit(state, call, resource, obj, None, managers))
    if resource.key == NAMESPACES and not call.dry_run:
        create_defaults(state, call, name[1])
    return stored


def check_namespace(state: ClusterState, resource: Resource, name: tuple[str, str]) -> None:
    """Reject new objects in a namespace that does not exist or is being deleted."""
    if not resource.namespaced:
        return
    namespace = state.store.get(NAMESPACES, ("", name[0]))
    if namespace is None:
        raise not_found("namespaces", "", name[0])
    if namespace["metadata"].get("deletionTimestamp"):
        why = f"unable to create new content in namespace {name[0]} because it is being terminated"
        ending = Cause("metadata.namespace", f"namespace {name[0]} is being terminated", "NamespaceTerminating")
        raise forbidden(resource.plural, resource.group, name[1], why, [ending])


def check_account(state: ClusterState, pod: Object) -> None:
    """Reject a pod whose service account does not exist."""
    spec, meta = pod.get("spec") or {}, pod["metadata"]
    account = spec.get("serviceAccountName") or "default"
    space = meta.get("namespace", "")
    if state.store.get(ACCOUNTS, (space, account)) is None:
        why = f'error looking up service account {space}/{account}: serviceaccount "{account}" not found'
        raise forbidden("pods", "", meta["name"], why)


def update(state: ClusterState, call: Call) -> ApiResponse:
    """Replace an object or its status, if the request is based on the current version."""
    resource, live = state.existing(call.target)
    new = decode_object(call, resource)
    if (named := new["metadata"].get("name", "")) != call.target.name:
        raise bad_request(f"the name of the object ({named}) does not match the name on the URL ({call.target.name})")
    warnings = strict_fields(new, call, state.schema(resource))
    return ApiResponse(presented(resource, store_update(state, call, resource, live, new)), warnings=warnings)


def store_update(
    state: ClusterState, call: Call, resource: Resource, live: Object, new: Object, managers: Managers | None = None
) -> Object:
    """Check and store a new version of an object; an identical version is not written.

    Raises ApiError: 409, ``new`` is based on an older version; 422, it violates a rule.
    """
    check_version(resource, live, new)
    if causes := immutable_causes(new, live):
        raise invalid(resource.kind, resource.group, live["metadata"]["name"], causes)
    if "status" in resource.subresources:
        # The status endpoint changes the status only, the main endpoint everything else.
        source, base = (new, live) if call.target.subresource == "status" else (live, new)
        new = {key: value for key, value in base.items() if key != "status"}
        new |= {"status": source["status"]} if "status" in source else {}
    else:
        new = dict(new)
    new |= {"kind": live["kind"], "apiVersion": live["apiVersion"]}
    new["metadata"] = for_update(new, live, counted=False)
    new = admit(state, call, resource, new, live, managers)
    new["metadata"] = for_update(new, live, counted=resource.generation)
    # Compared with the stored form: a read by a newer definition is a change to be written.
    if new == state.store.get(resource.key, key_of(live)):
        return live
    if may_be_removed(new):
        return state.remove(call, resource, new)
    return state.write(call, resource, new)


def check_version(resource: Resource, live: Object, new: Object) -> None:
    """Reject a write that is based on an older version, or on another object of the same name."""
    old, meta = live["metadata"], new["metadata"]
    version = meta.get("resourceVersion")
    if version and version != old["resourceVersion"]:
        raise conflict(resource.plural, resource.group, old["name"])
    if meta.get("uid") and meta["uid"] != old["uid"]:
        why = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {old['uid']}"
        raise conflict(resource.plural, resource.group, old["name"], why)


def may_be_removed(obj: Object) -> bool:
    """Return whether a deleted object can be removed from the store now."""
    meta = obj["metadata"]
    waits = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
    return bool(meta.get("deletionTimestamp")) and not waits and not namespace_finalizers(obj)


def namespace_finalizers(obj: Object) -> list[str]:
    """Return the finalizers in a namespace's spec; [] for other kinds."""
    spec = (obj.get("spec") or {}) if obj["kind"] == "Namespace" else {}
    return spec.get("finalizers") or []


SYSTEM = User("system:apiserver", ("system:masters",))


def bootstrap(state: ClusterState, objects: Iterable[Object], now: datetime) -> None:
    """Create the initial objects that are missing."""
    for obj in objects:
        resource = BY_KIND[obj["kind"]]
        # A restored store has them already.
        if state.store.get(resource.key, key_of(obj)) is None:
            target = Target(resource.group, resource.version, resource.plural)
            create(state, Call("create", target, SYSTEM, now, body=orjson.dumps(obj), agent="apiserver"))
