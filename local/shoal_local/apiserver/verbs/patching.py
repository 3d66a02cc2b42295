"""The patch verb: JSON, merge and strategic patches, server-side apply."""

import jsonpatch

from shoal_local.apiserver.errors import ApiError, bad_request, invalid, required_value, unsupported_media_type
from shoal_local.apiserver.kinds.registry import Resource
from shoal_local.apiserver.patching.applying import Applier, Manager, apply, read_managers
from shoal_local.apiserver.patching.merging import merge_patch, strategic_merge
from shoal_local.apiserver.verbs.admission import clean
from shoal_local.apiserver.verbs.call import (
    ApiResponse,
    Call,
    checked,
    decode,
    decode_object,
    strict_fields,
    unknown_fields,
)
from shoal_local.apiserver.verbs.state import ClusterState, presented
from shoal_local.apiserver.verbs.writing import check_version, store_new, store_update
from shoal_local.objects import Object

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
APPLY_PATCHES = (APPLY_PATCH, "application/apply-patch+json")


def is_apply(call: Call) -> bool:
    """Return whether the request is a server-side apply, which may create an object."""
    return call.verb == "patch" and call.content_type.split(";")[0].strip() in APPLY_PATCHES


def patch(state: ClusterState, call: Call) -> ApiResponse:
    """Change an object by one of the patch types."""
    if is_apply(call):
        return _apply(state, call, state.resource(call.target))
    resource, live = state.existing(call.target)
    new = checked(patched(state, call, resource, presented(resource, live)), call, resource)
    warnings = strict_fields(new, call, state.schema(resource))
    stored = store_update(state, call, resource, live, new)
    return ApiResponse(presented(resource, stored), warnings=warnings)


def _apply(state: ClusterState, call: Call, resource: Resource) -> ApiResponse:
    if not call.query.get("fieldManager"):
        missing = required_value("fieldManager", "is required for apply patch")
        raise invalid("PatchOptions", "meta.k8s.io", "", [missing])
    config, node = decode_object(call, resource), state.schema(resource)
    if config["metadata"].get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    named = config["metadata"].setdefault("name", call.target.name)
    if named != call.target.name:
        raise bad_request(f"the name of the object ({named}) does not match the name on the URL ({call.target.name})")
    for field in unknown_fields(config, node):
        subject = f"{call.target.namespace}/{named}; {resource.api_version}, Kind={resource.kind}"
        # Kubernetes uses 500 here too.
        message = f"failed to create typed patch object ({subject}): .{field}: field not declared in schema"
        raise ApiError(500, "", message)
    config = clean(state, resource, config)
    if "status" in resource.subresources:
        # The status endpoint writes the status only, the main endpoint everything else.
        config.pop("spec" if call.target.subresource == "status" else "status", None)
    live = state.find(resource, (call.target.namespace, call.target.name))
    # An apply creates a missing object, but not by its subresource.
    if live is None and call.target.subresource:
        _, live = state.existing(call.target)
    if live is not None:
        check_version(resource, live, config)
    manager = Manager(call.manager, "Apply", call.target.subresource)
    applier = Applier(manager, call.timestamp, call.flag("force"))
    base = {k: v for k, v in (live or {}).items() if k not in ("apiVersion", "kind")}
    applied, managers = apply(base, config, read_managers(live), applier, node)
    if live is None:
        stored = store_new(state, call, resource, applied, managers)
        return ApiResponse(presented(resource, stored), 201)
    stored = store_update(state, call, resource, live, applied, managers)
    return ApiResponse(presented(resource, stored))


def patched(state: ClusterState, call: Call, resource: Resource, live: Object) -> Object:
    """Return the object with the request's patch applied.

    Raises ApiError: 415, the kind does not support the patch type; 400 or 422, the patch is invalid.
    """
    kind = call.content_type.split(";")[0].strip()
    if kind == STRATEGIC_MERGE_PATCH and resource.custom:
        raise unsupported_media_type((JSON_PATCH, MERGE_PATCH, APPLY_PATCH))
    body = decode(call)
    if kind == JSON_PATCH:
        try:
            found = jsonpatch.apply_patch(live, body)
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
            message = f"the server rejected our request due to an error in our request: {error}"
            raise ApiError(422, "Invalid", message) from None
        except (TypeError, ValueError, AttributeError) as error:
            raise bad_request(f"error decoding patch: {error}") from None
    elif kind == MERGE_PATCH:
        found = merge_patch(live, body)
    elif kind == STRATEGIC_MERGE_PATCH:
        found = strategic_merge(live, body, state.schema(resource))
    else:
        raise unsupported_media_type((JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH, APPLY_PATCH))
    if not isinstance(found, dict):
        raise bad_request("the result of the patch is not an object")
    return found
