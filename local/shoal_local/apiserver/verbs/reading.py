"""get and list."""

from collections.abc import Callable

from shoal_local.apiserver.errors import bad_request
from shoal_local.apiserver.kinds.resource import Resource
from shoal_local.apiserver.storage.selectors import field_selector, label_selector
from shoal_local.apiserver.verbs.call import Call, Reply
from shoal_local.apiserver.verbs.world import World, listed, presented
from shoal_local.objects import Object

Predicate = Callable[[Object], bool]


def get(world: World, call: Call) -> Reply:
    """Return one object."""
    resource = world.resource(call.target)
    return Reply(presented(resource, world.existing(resource, call.target)))


def selection(call: Call, resource: Resource) -> Predicate:
    """Return the test that the call's namespace and selectors make."""
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


def list_objects(world: World, call: Call) -> Reply:
    """Return the objects of one kind as they are now: ``limit`` may be ignored, and is."""
    resource = world.resource(call.target)
    revision_in(call)
    wanted = selection(call, resource)
    objects = world.store.objects_of(resource.key, call.target.namespace)
    body = {
        "kind": resource.list_kind,
        "apiVersion": resource.api_version,
        "metadata": {"resourceVersion": str(world.store.revision)},
        "items": [listed(resource, world.as_read(resource, obj)) for obj in objects if wanted(obj)],
    }
    return Reply(body)


def revision_in(call: Call) -> int:
    """Return the call's resourceVersion; 0 when it has none. Raises ApiError: 400, it is not a number."""
    text = call.query.get("resourceVersion") or "0"
    if not text.isdigit():
        why = f'strconv.ParseUint: parsing "{text}": invalid syntax'
        raise bad_request(f'resourceVersion: Invalid value: "{text}": {why}')
    return int(text)
