"""From a call to the function that answers it."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import orjson

from shoal_local.apiserver.errors import bad_request, method_not_allowed
from shoal_local.apiserver.kinds.resource import SUBRESOURCE_KINDS, SUBRESOURCE_VERBS
from shoal_local.apiserver.schemas.protobuf import MEDIA_TYPE, read_protobuf
from shoal_local.apiserver.verbs import access, subresources
from shoal_local.apiserver.verbs.call import Call, Reply
from shoal_local.apiserver.verbs.deleting import delete
from shoal_local.apiserver.verbs.patching import is_apply, patch
from shoal_local.apiserver.verbs.reading import get, list_objects
from shoal_local.apiserver.verbs.streaming import check_streaming
from shoal_local.apiserver.verbs.world import World
from shoal_local.apiserver.verbs.writing import create, update

Answer = Callable[[World, Call], Reply]
VERBS: Mapping[str, Answer] = {
    "get": get,
    "list": list_objects,
    "create": create,
    "update": update,
    "patch": patch,
    "delete": delete,
}
SUBRESOURCES: Mapping[tuple[str, str], Answer] = {
    ("scale", "get"): subresources.get_scale,
    ("scale", "update"): subresources.update_scale,
    ("scale", "patch"): subresources.patch_scale,
    ("status", "get"): get,
    ("status", "update"): update,
    ("status", "patch"): patch,
    ("binding", "create"): subresources.bind,
    ("token", "create"): subresources.issue_token,
}
REVIEW = "selfsubjectaccessreviews"


def check_call(world: World, call: Call) -> None:
    """Refuse a call that is not allowed, or that the kind does not know.

    Raises ApiError: 403, 404 or 405; 501 or 400 for what would need a connection of many streams.
    """
    access.check(world, call.user, access.action_of(call))
    check_streaming(call.target)
    resource = world.resource(call.target)
    subresource = call.target.subresource
    if call.verb not in (SUBRESOURCE_VERBS[subresource] if subresource else resource.verbs):
        raise method_not_allowed()
    name = (call.target.namespace, call.target.name)
    if is_apply(call) and world.store.get(resource.key, name) is None:
        access.check(world, call.user, access.action_of(call, "create"))


def answer(world: World, call: Call) -> Reply:
    """Do what a call asks for; watches and logs, which stream, are not among it."""
    call, target = in_json(world, call), call.target
    if target.subresource:
        return SUBRESOURCES[target.subresource, call.verb](world, call)
    if target.plural == REVIEW:
        return access.review_access(world, call)
    return VERBS[call.verb](world, call)


def in_json(world: World, call: Call) -> Call:
    """Return the call with its body in JSON, if it came in protobuf.

    Raises ApiError: 415, this kind is not read from protobuf; 400, the body is broken.
    """
    if not call.body or call.content_type.split(";")[0].strip() != MEDIA_TYPE:
        return call
    target = call.target
    group, _, kind = SUBRESOURCE_KINDS.get(target.subresource, ("", "", ""))
    definition = world.resource(target).definition
    if kind:
        definition = f"io.k8s.api.{group.partition('.')[0] or 'core'}.v1.{kind}"
    try:
        body = read_protobuf(call.body, definition, world.definitions)
    except (ValueError, TypeError, OverflowError) as error:
        # A field of another wire type than its number says shows as any of the three.
        raise bad_request(f"the object provided is unrecognized: {error}") from None
    return replace(call, body=orjson.dumps(body), content_type="application/json")
