"""The verbs get and list."""

from collections.abc import Callable

from shoal_local.apiserver.errors import bad_request
from shoal_local.apiserver.kinds.resource import Resource
from shoal_local.apiserver.storage.selectors import field_selector, label_selector
from shoal_local.apiserver.verbs.call import ApiResponse, Call
from shoal_local.apiserver.verbs.state import ClusterState, listed, presented
from shoal_local.objects import Object

Predicate = Callable[[Object], bool]


def get(state: ClusterState, call: Call) -> ApiResponse:
    """Return the object that the request names."""
    resource = state.resource(call.target)
    return ApiResponse(presented(resource, state.existing(resource, call.target)))


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
