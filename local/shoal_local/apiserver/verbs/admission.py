"""Admission: decode, default and validate objects; set field managers."""

from ipaddress import IPv4Network

from shoal_local.apiserver.errors import ApiError, Cause, bad_request, invalid, invalid_value
from shoal_local.apiserver.kinds.registry import CRDS, SERVICES, Resource
from shoal_local.apiserver.lifecycle.defaults import defaulted
from shoal_local.apiserver.lifecycle.validation import rule_causes
from shoal_local.apiserver.patching.applying import Manager, Managers, after_update, managed_fields_of, read_managers
from shoal_local.apiserver.patching.field_sets import compare
from shoal_local.apiserver.schemas.custom import definition_causes, established
from shoal_local.apiserver.schemas.decoding import decoded, required_causes
from shoal_local.apiserver.schemas.node import Node
from shoal_local.apiserver.verbs.call import Call, decode
from shoal_local.apiserver.verbs.state import ClusterState
from shoal_local.objects import Object, key_of

RESET: list[Object] = [{}]
"""The value of managedFields by which a client removes all managers."""


def admit(
    state: ClusterState,
    call: Call,
    resource: Resource,
    obj: Object,
    live: Object | None = None,
    managers: Managers | None = None,
) -> Object:
    """Return the object in the form in which it is stored.

    ``live``: the stored version, or None for a new object.
    ``managers``: the field managers after an apply; otherwise the sender owns the fields that it changes.

    Raises ApiError: 400 or 422, the object violates its schema or a rule of its kind.
    """
    obj, causes = _by_schema(state, resource, obj, live)
    if causes:
        raise invalid(resource.kind, resource.group, obj["metadata"].get("name", ""), causes)
    # Empty maps are dropped, and the owners of fields are computed below.
    meta = {key: value for key, value in obj["metadata"].items() if value or key not in ("annotations", "labels")}
    meta.pop("managedFields", None)
    if obj["metadata"].get("managedFields") == RESET:
        return {**obj, "metadata": meta}
    if managers is None:
        writer = Manager(call.manager, "Update", call.target.subresource)
        difference = compare(live or {}, {**obj, "metadata": meta}, state.schema(resource))
        version, now = resource.api_version, call.timestamp
        managers = after_update(read_managers(live), difference, writer, api_version=version, now=now)
    return {**obj, "metadata": meta | {"managedFields": managed_fields_of(managers)}}


def _by_schema(state: ClusterState, resource: Resource, obj: Object, live: Object | None) -> tuple[Object, list[Cause]]:
    """Return the object with its defaults, and the violations of its schema and rules."""
    if resource.custom:
        schema, meta = state.custom_schema(resource), state.schema(resource).child("metadata")
        obj = schema.admitted({**obj, "metadata": decoded(obj["metadata"], meta)})
        causes = list(required_causes(obj["metadata"], meta, inside="metadata"))
        return obj, causes or schema.causes(obj, live)
    obj = clean(state, resource, obj)
    causes = list(required_causes(obj, state.schema(resource)))
    if causes:
        return obj, causes
    obj = defaulted(resource.key, obj, state.schema(resource))
    # After the defaults, which include the type of the service.
    if resource.key == SERVICES:
        obj = with_cluster_ip(state, obj, live)
    if resource.key == CRDS:
        return established(obj), list(definition_causes(obj))
    return obj, rule_causes(resource.key, obj, live)


def read_as(state: ClusterState, call: Call, definition: str) -> Object:
    """Return the request's body as an object of a definition (``core.v1.Binding``), or {} without a body.

    Raises ApiError: 400, the body does not fit the definition.
    """
    node = Node({"$ref": f"#/$defs/io.k8s.{definition}"}, state.definitions)
    found = decoded(decode(call) if call.body else {}, node)
    return found or {}


def clean(state: ClusterState, resource: Resource, obj: Object) -> Object:
    """Decode an object of a built-in kind as Go does; keep a custom object.

    Raises ApiError: 400, a value has the wrong type.
    """
    if resource.custom:
        return obj
    try:
        return dict(decoded(obj, state.schema(resource)))
    except ApiError as error:
        kind = resource.kind
        head = f'{kind} in version "{resource.version}" cannot be handled as a {kind}: '
        raise bad_request(head + error.message) from None


def with_cluster_ip(state: ClusterState, service: Object, live: Object | None) -> Object:
    """Return the service with a cluster IP: requested, stored or new.

    Raises ApiError: 422, another service has the requested address.
    """
    spec = service["spec"]
    if spec["type"] == "ExternalName":
        return service
    kept = (live or {}).get("spec", {}).get("clusterIP")
    requested = spec.get("clusterIP") or kept
    stored = state.store.objects.get(SERVICES, {})
    taken = {s["spec"].get("clusterIP", "") for name, s in stored.items() if name != key_of(service)}
    if requested and requested != "None" and requested in taken:
        why = f"failed to allocate IP {requested}: provided IP is already allocated"
        cause = invalid_value("spec.clusterIPs", [requested], why)
        raise invalid("Service", "", service["metadata"]["name"], [cause])
    # In Kubernetes the first address belongs to the API server.
    network = IPv4Network(state.service_network)
    free = (str(network[number]) for number in range(2, network.num_addresses - 1))
    address = requested or next(address for address in free if address not in taken)
    return {**service, "spec": {**spec, "clusterIP": address, "clusterIPs": [address]}}
