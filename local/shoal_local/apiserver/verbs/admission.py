"""What every object passes on its way into the store. Clean, fill in defaults, check, note who owns what."""

from ipaddress import IPv4Network

from shoal_local.apiserver.errors import ApiError, Cause, bad_request, invalid
from shoal_local.apiserver.kinds.registry import CRDS
from shoal_local.apiserver.kinds.resource import Resource
from shoal_local.apiserver.lifecycle.custom_definitions import definition_causes, established
from shoal_local.apiserver.lifecycle.defaults import apply_defaults
from shoal_local.apiserver.lifecycle.validation import rule_causes
from shoal_local.apiserver.patching.field_sets import compare
from shoal_local.apiserver.patching.managers import Manager, Managers, after_update, managed_fields_of, read_managers
from shoal_local.apiserver.schemas.decoding import decoded, required_causes
from shoal_local.apiserver.schemas.node import Node
from shoal_local.apiserver.verbs.call import Call
from shoal_local.apiserver.verbs.decoding import decode
from shoal_local.apiserver.verbs.world import SERVICES, World
from shoal_local.objects import Object, key_of

RESET: list[Object] = [{}]


def admit(
    world: World,
    call: Call,
    resource: Resource,
    obj: Object,
    live: Object | None = None,
    managers: Managers | None = None,
) -> Object:
    """Return the object as it may be stored.

    ``live`` is the version before, None when the object is new. ``managers`` own the fields when an apply has settled
    that; else the caller owns what changes. Raises ApiError: 400 or 422, it breaks the schema or a rule of its kind.
    """
    obj, causes = _by_schema(world, resource, obj, live)
    if causes:
        raise invalid(resource.kind, resource.group, obj["metadata"].get("name", ""), causes)
    # Empty maps are not kept, and owners of fields are counted anew.
    meta = {key: value for key, value in obj["metadata"].items() if value or key not in ("annotations", "labels")}
    meta.pop("managedFields", None)
    if obj["metadata"].get("managedFields") == RESET:
        return {**obj, "metadata": meta}
    if managers is None:
        managers = _after(world, call, resource, {**obj, "metadata": meta}, live)
    return {**obj, "metadata": meta | {"managedFields": managed_fields_of(managers)}}


def _after(world: World, call: Call, resource: Resource, obj: Object, live: Object | None) -> Managers:
    writer = Manager(call.manager, "Update", call.target.subresource)
    difference = compare(live or {}, obj, world.schema(resource))
    version = resource.api_version
    return after_update(read_managers(live), difference, writer, api_version=version, now=call.timestamp)


def _by_schema(world: World, resource: Resource, obj: Object, live: Object | None) -> tuple[Object, list[Cause]]:
    if resource.custom:
        schema, meta = world.custom_schema(resource), world.schema(resource).child("metadata")
        obj = schema.admitted({**obj, "metadata": decoded(obj["metadata"], meta)})
        causes = list(required_causes(obj["metadata"], meta, "metadata"))
        return obj, causes or schema.causes(obj, live)
    obj = clean(world, resource, obj)
    causes = list(required_causes(obj, world.schema(resource)))
    if causes:
        return obj, causes
    apply_defaults(resource.key, obj)
    if resource.key == SERVICES:
        obj = with_cluster_ip(world, obj, live)
    if resource.key == CRDS:
        return established(obj), definition_causes(obj)
    return obj, rule_causes(resource.key, obj, live)


def read_as(world: World, call: Call, definition: str) -> Object:
    """Return the call's body as an object of a definition (``core.v1.Binding``); {} without one.

    Raises ApiError: 400, it is none.
    """
    node = Node({"$ref": f"#/$defs/io.k8s.{definition}"}, world.definitions)
    found = decoded(decode(call) if call.body else {}, node)
    return found or {}


def clean(world: World, resource: Resource, obj: Object) -> Object:
    """Return an object of a built-in kind as its Go type would hold it; a custom one as it is.

    Raises ApiError: 400, a value has the wrong type.
    """
    if resource.custom:
        return obj
    try:
        return dict(decoded(obj, world.schema(resource)))
    except ApiError as error:
        kind = resource.kind
        head = f'{kind} in version "{resource.version}" cannot be handled as a {kind}: '
        raise bad_request(head + error.message) from None


def with_cluster_ip(world: World, service: Object, live: Object | None) -> Object:
    """Return the service with the address it has, asks for, or is given now.

    Raises ApiError: 422, another service has the address that this one asks for.
    """
    spec = service["spec"]
    if spec["type"] == "ExternalName":
        return service
    kept = (live or {}).get("spec", {}).get("clusterIP")
    asked = spec.get("clusterIP") or kept
    stored = world.store.objects.get(SERVICES, {})
    taken = {s["spec"].get("clusterIP", "") for name, s in stored.items() if name != key_of(service)}
    if asked and asked != "None" and asked in taken:
        message = f'Invalid value: ["{asked}"]: failed to allocate IP {asked}: provided IP is already allocated'
        raise invalid("Service", "", service["metadata"]["name"], [Cause("spec.clusterIPs", message)])
    # The first address is the server's own in a real cluster.
    network = IPv4Network(world.service_network)
    free = (str(network[number]) for number in range(2, network.num_addresses - 1))
    address = asked or next(address for address in free if address not in taken)
    return {**service, "spec": {**spec, "clusterIP": address, "clusterIPs": [address]}}
