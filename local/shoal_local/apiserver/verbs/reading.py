"""get and list."""

import base64
from collections.abc import Callable
from typing import Any

import orjson

from shoal_local.apiserver.errors import bad_request, expired
from shoal_local.apiserver.kinds.resource import Object, Resource, shown
from shoal_local.apiserver.storage.selectors import field_selector, label_selector
from shoal_local.apiserver.storage.store import TooOldError, name_of
from shoal_local.apiserver.verbs.call import Call, Reply
from shoal_local.apiserver.verbs.world import World, presented

Predicate = Callable[[Object], bool]
TOO_OLD = "The resourceVersion for the provided list is too old."
CONTINUE_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. "
    "You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve "
    "the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects "
    "that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


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
        fields = field_selector(text, resource.selectable)
        tests.append(lambda obj: fields(shown(resource, obj)))
    if name := call.target.name:
        tests.append(lambda obj: bool(obj["metadata"]["name"] == name))
    return lambda obj: all(test(obj) for test in tests)


def list_objects(world: World, call: Call) -> Reply:
    """Return objects of one kind, in chunks when ``limit`` is given.

    All chunks show the state at the revision of the first one.

    Raises:
        ApiError: 410, that revision's later changes are no longer all known.
    """
    resource = world.resource(call.target)
    revision_in(call)
    revision, after = _position(world, call)
    try:
        at = world.store.list_at(resource.key, call.target.namespace, revision)
    except TooOldError:
        raise expired(CONTINUE_TOO_OLD if after else TOO_OLD) from None
    wanted = selection(call, resource)
    items = [obj for obj in at if name_of(obj) > after and wanted(obj)]
    chunk, meta = _chunk(items, revision, int(call.number("limit") or 0))
    listed = [presented(resource, obj) for obj in chunk]
    return Reply({"kind": resource.list_kind, "apiVersion": resource.api_version, "metadata": meta, "items": listed})


def _position(world: World, call: Call) -> tuple[int, tuple[str, str]]:
    """Return the revision to show and the name after which to start."""
    if token := call.query.get("continue"):
        return _read_token(token)
    if call.query.get("resourceVersionMatch") == "Exact":
        return revision_in(call), ("", "")
    return world.store.revision, ("", "")


def revision_in(call: Call) -> int:
    """Return the call's resourceVersion; 0 when it has none.

    Raises:
        ApiError: 400, it is no number.
    """
    text = call.query.get("resourceVersion") or "0"
    if not text.isdigit():
        raise bad_request(
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    return int(text)


def _chunk(items: list[Object], revision: int, limit: int) -> tuple[list[Object], dict[str, Any]]:
    meta: dict[str, Any] = {"resourceVersion": str(revision)}
    if not 0 < limit < len(items):
        return items, meta
    token = base64.urlsafe_b64encode(orjson.dumps([revision, *name_of(items[limit - 1])])).decode()
    return items[:limit], meta | {"continue": token, "remainingItemCount": len(items) - limit}


def _read_token(token: str) -> tuple[int, tuple[str, str]]:
    try:
        revision, namespace, name = orjson.loads(base64.urlsafe_b64decode(token))
        return int(revision), (str(namespace), str(name))
    except ValueError:
        raise bad_request("continue key is not valid: it was not returned by a list call of this server") from None
