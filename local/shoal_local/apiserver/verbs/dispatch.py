"""The verbs get and list, and the dispatch of a request to the function of its verb."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import orjson

from shoal_local.apiserver.errors import ApiError, bad_request
from shoal_local.apiserver.kinds.registry import SUBRESOURCE_KINDS, SUBRESOURCE_VERBS, Resource, definition_of
from shoal_local.apiserver.schemas.protobuf import MEDIA_TYPE, read_protobuf
from shoal_local.apiserver.storage.selectors import field_selector, label_selector
from shoal_local.apiserver.verbs import access, subresources
from shoal_local.apiserver.verbs.call import ApiResponse, Call
from shoal_local.apiserver.verbs.deleting import delete, evict
from shoal_local.apiserver.verbs.patching import is_apply, patch
from shoal_local.apiserver.verbs.state import ClusterState, listed, presented
from shoal_local.apiserver.verbs.subresources import check_streaming
from shoal_local.apiserver.verbs.writing import create, update
from shoal_local.objects import Object

Predicate = Callable[[Object], bool]


def get(state: ClusterState, call: Call) -> ApiResponse:
    """Return the object that the request names."""
    return ApiResponse(presented(*state.existing(call.target)))


def selection(call: Call, resource: Resource) -> Predicate:
    """Return a test of objects by the request's namespace, name and selectors."""
    tests: list[Predicate] = []
    if namespace := call.target.namespace:
        tests.append(lambda obj: obj["metadata"].get("namespace") == namespace)
    if text := call.query.get("labelSelector"):
        labels = label_selector(text)
        tests.append(lambda obj: labels(obj["metadata"].get("labels") or {}))
    if text := call.query.get("fieldSelector"):
        tests.append(field_selector(text, resource.selectable))
    if name := call.target.name:
        tests.append(lambda obj: bool(obj["metadata"]["name"] == name))
    return lambda obj: all(test(obj) for test in tests)


def list_objects(state: ClusterState, call: Call) -> ApiResponse:
    """Return the current objects of one kind. ``limit`` is ignored, as the API allows."""
    resource = state.resource(call.target)
    revision_in(call)
    wanted = selection(call, resource)
    objects = state.store.objects_of(resource.key, call.target.namespace)
    body = {
        "kind": resource.list_kind,
        "apiVersion": resource.api_version,
        # A watch from this version continues without a gap.
        "metadata": {"resourceVersion": str(state.store.revision)},
        "items": [listed(resource, state.as_read(resource, obj)) for obj in objects if wanted(obj)],
    }
    return ApiResponse(body)


def revision_in(call: Call) -> int:
    """Return the request's resourceVersion, or 0 without one. Raises ApiError: 400, it is not a number."""
    text = call.query.get("resourceVersion") or "0"
    if not text.isdigit():
        why = f'strconv.ParseUint: parsing "{text}": invalid syntax'
        raise bad_request(f'resourceVersion: Invalid value: "{text}": {why}')
    return int(text)


Handler = Callable[[ClusterState, Call], ApiResponse]
VERBS: Mapping[str, Handler] = {
    "get": get,
    "list": list_objects,
    "create": create,
    "update": update,
    "patch": patch,
    "delete": delete,
}
SUBRESOURCES: Mapping[tuple[str, str], Handler] = {
    ("scale", "get"): subresources.get_scale,
    ("scale", "update"): subresources.update_scale,
    ("scale", "patch"): subresources.patch_scale,
    ("status", "get"): get,
    ("status", "update"): update,
    ("status", "patch"): patch,
    ("binding", "create"): subresources.bind,
    ("eviction", "create"): evict,
    ("token", "create"): subresources.issue_token,
}
REVIEW = "selfsubjectaccessreviews"


def check_call(state: ClusterState, call: Call) -> None:
    """Check that a request is allowed and that the kind supports its verb.

    Raises ApiError: 403, 404 or 405; 501 or 400 for subresources that need a streaming connection.
    """
    # Authorization first: without it, not even the existence of an object is disclosed.
    access.check(state, call.user, access.action_of(call))
    check_streaming(call.target)
    resource = state.resource(call.target)
    subresource = call.target.subresource
    if call.verb not in (SUBRESOURCE_VERBS[subresource] if subresource else resource.verbs):
        raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    name = (call.target.namespace, call.target.name)
    # An apply may create the object.
    if is_apply(call) and state.store.get(resource.key, name) is None:
        access.check(state, call.user, access.action_of(call, "create"))


def respond(state: ClusterState, call: Call) -> ApiResponse:
    """Execute a request, except watches and logs, which stream."""
    call, target = in_json(state, call), call.target
    if target.subresource:
        return SUBRESOURCES[target.subresource, call.verb](state, call)
    if target.plural == REVIEW:
        return access.review_access(state, call)
    return VERBS[call.verb](state, call)


def in_json(state: ClusterState, call: Call) -> Call:
    """Return the request with a protobuf body converted to JSON.

    Raises ApiError: 415, the kind is not supported in protobuf; 400, the body is malformed.
    """
    if not call.body or call.content_type.split(";")[0].strip() != MEDIA_TYPE:
        return call
    target = call.target
    definition = state.resource(target).definition
    # The body of a subresource has a kind of its own.
    if target.subresource in SUBRESOURCE_KINDS:
        group, _, kind = SUBRESOURCE_KINDS[target.subresource]
        definition = definition_of(group, kind)
    try:
        body = read_protobuf(call.body, definition, state.definitions)
    except (ValueError, TypeError, OverflowError) as error:
        # A field with an unexpected wire type raises any of the three.
        raise bad_request(f"the object provided is unrecognized: {error}") from None
    return replace(call, body=orjson.dumps(body), content_type="application/json")
