"""Subresources without streaming: binding, token and scale."""

from datetime import timedelta
from typing import Any

from shoal_local.apiserver.access.tokens import ISSUER, Account, make_token
from shoal_local.apiserver.errors import Cause, bad_request, conflict, invalid
from shoal_local.apiserver.kinds.resource import Resource
from shoal_local.apiserver.verbs.admission import clean, read_as
from shoal_local.apiserver.verbs.call import ApiResponse, Call
from shoal_local.apiserver.verbs.decoding import checked, decode_object
from shoal_local.apiserver.verbs.patching import patched
from shoal_local.apiserver.verbs.state import ClusterState, presented
from shoal_local.apiserver.verbs.writing import may_be_removed, store_update
from shoal_local.objects import Object, dig, timestamp

_SUCCESS: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
_MAX_LIFETIME_S = 10 * 365 * 86400

SCALE = Resource("autoscaling", "v1", "Scale", "scale", definition="io.k8s.api.autoscaling.v1.Scale")
_KEPT = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def bind(state: ClusterState, call: Call) -> ApiResponse:
    """Assign a pod to the node of a Binding."""
    resource = state.resource(call.target)
    pod = state.existing(resource, call.target)
    node = dig(read_as(state, call, "api.core.v1.Binding"), "target", "name")
    if not node:
        raise bad_request("Binding: target.name: Required value")
    if assigned := pod["spec"].get("nodeName"):
        name = pod["metadata"]["name"]
        raise conflict("pods/binding", "", name, f'pod {name} is already assigned to node "{assigned}"')
    status = pod.get("status", {})
    others = [c for c in status.get("conditions", []) if c["type"] != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": call.timestamp}
    bound = {"spec": {**pod["spec"], "nodeName": node}, "status": {**status, "conditions": [*others, scheduled]}}
    state.write(call, resource, {**pod, **bound})
    return ApiResponse(_SUCCESS, 201)


def issue_token(state: ClusterState, call: Call) -> ApiResponse:
    """Respond to a TokenRequest for a service account."""
    resource = state.resource(call.target)
    account = state.existing(resource, call.target)
    request = read_as(state, call, "api.authentication.v1.TokenRequest")
    spec = dig(request, "spec") or {}
    lifetime_s = int(spec.get("expirationSeconds") or 3600)
    # The API's minimum is ten minutes.
    if not 600 <= lifetime_s <= _MAX_LIFETIME_S:
        raise bad_request(f"spec.expirationSeconds must be between 600 and {_MAX_LIFETIME_S}, not {lifetime_s}")
    audiences = tuple(spec.get("audiences") or (ISSUER,))
    meta = account["metadata"]
    holder = Account(meta["namespace"], meta["name"], meta["uid"])
    now_s = int(call.now.timestamp())
    token = make_token(holder, state.signing_key, now_s=now_s, lifetime_s=lifetime_s, audiences=audiences)
    until = timestamp(call.now + timedelta(seconds=lifetime_s))
    body = {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"], "creationTimestamp": call.timestamp},
        "spec": {"audiences": list(audiences), "expirationSeconds": lifetime_s},
        "status": {"token": token, "expirationTimestamp": until},
    }
    return ApiResponse(body, 201)


def store_finalizers(
    state: ClusterState, call: Call, resource: Resource, live: Object, finalizers: list[str]
) -> Object:
    """Store the finalizers of a namespace, or remove the namespace if none are left."""
    new = {**live, "spec": {**live.get("spec", {}), "finalizers": finalizers}}
    return state.remove(call, resource, new) if may_be_removed(new) else state.write(call, resource, new)


def get_scale(state: ClusterState, call: Call) -> ApiResponse:
    """Return the Scale of an object."""
    resource = state.resource(call.target)
    return ApiResponse(scale_of(resource, state.existing(resource, call.target)))


def update_scale(state: ClusterState, call: Call) -> ApiResponse:
    """Set an object's replicas from a Scale."""
    return _store(state, call, clean(state, SCALE, decode_object(call, SCALE)))


def patch_scale(state: ClusterState, call: Call) -> ApiResponse:
    """Set an object's replicas from a patch of its Scale."""
    resource = state.resource(call.target)
    live = scale_of(resource, state.existing(resource, call.target))
    scale = checked(patched(state, call, SCALE, live), call, SCALE)
    return _store(state, call, clean(state, SCALE, scale))


def _store(state: ClusterState, call: Call, scale: Object) -> ApiResponse:
    resource = state.resource(call.target)
    live = state.existing(resource, call.target)
    replicas = dig(scale, "spec", "replicas") or 0
    if not isinstance(replicas, int) or replicas < 0:
        message = f"Invalid value: {replicas}: must be greater than or equal to 0"
        raise invalid("Scale", "autoscaling", call.target.name, [Cause("spec.replicas", message)])
    path = _steps(resource.scale.spec)
    # Preconditions in the Scale apply to the object.
    version = {k: v for k, v in scale["metadata"].items() if k in ("resourceVersion", "uid")}
    new = presented(resource, _with(live, path, replicas))
    new["metadata"] = {**new["metadata"], **version}
    return ApiResponse(scale_of(resource, store_update(state, call, resource, live, new)))


def scale_of(resource: Resource, obj: Object) -> Object:
    """Return the Scale of an object."""
    meta = {key: value for key, value in obj["metadata"].items() if key in _KEPT}
    status = {"replicas": dig(obj, *_steps(resource.scale.status)) or 0}
    # The selector of a custom kind is text already.
    if not resource.custom:
        status["selector"] = selector_text(dig(obj, "spec", "selector") or {})
    elif resource.scale.selector and (selector := dig(obj, *_steps(resource.scale.selector))):
        status["selector"] = str(selector)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": meta,
        "spec": {"replicas": dig(obj, *_steps(resource.scale.spec)) or 0},
        "status": status,
    }


def selector_text(selector: Object) -> str:
    """Return the text of a selector object, such as ``app=web,tier in (a,b)``."""
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for rule in selector.get("matchExpressions") or []:
        values = f"({','.join(rule.get('values') or [])})"
        key = rule["key"]
        forms = {"In": f"{key} in {values}", "NotIn": f"{key} notin {values}", "Exists": key}
        parts.append(forms.get(rule["operator"], f"!{key}"))
    return ",".join(parts)


def _steps(path: str) -> list[str]:
    return path.strip(".").split(".")


def _with(obj: Any, path: list[str], value: Any) -> Any:
    """Return a copy of the object with the value at the path."""
    if not path:
        return value
    return {**(obj or {}), path[0]: _with((obj or {}).get(path[0]), path[1:], value)}
