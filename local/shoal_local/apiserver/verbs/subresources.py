"""Subresources that are answered at once: binding, token and scale."""

from datetime import timedelta
from typing import Any

from shoal_local.apiserver.access.tokens import ISSUER, Account, make_token
from shoal_local.apiserver.errors import Cause, bad_request, conflict, invalid
from shoal_local.apiserver.kinds.resource import Resource
from shoal_local.apiserver.verbs.admission import clean, read_as
from shoal_local.apiserver.verbs.call import Call, Reply
from shoal_local.apiserver.verbs.decoding import checked, decode_object
from shoal_local.apiserver.verbs.patching import patched
from shoal_local.apiserver.verbs.world import World, presented
from shoal_local.apiserver.verbs.writing import may_go, store_update
from shoal_local.objects import Object, dig, timestamp

_SUCCESS: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
_MAX_LIFETIME_S = 10 * 365 * 86400

SCALE = Resource("autoscaling", "v1", "Scale", "scale", definition="io.k8s.api.autoscaling.v1.Scale")
_KEPT = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def bind(world: World, call: Call) -> Reply:
    """Assign a pod to the node that a Binding names."""
    resource = world.resource(call.target)
    pod = world.existing(resource, call.target)
    node = dig(read_as(world, call, "api.core.v1.Binding"), "target", "name")
    if not node:
        raise bad_request("Binding: target.name: Required value")
    if assigned := pod["spec"].get("nodeName"):
        name = pod["metadata"]["name"]
        raise conflict("pods/binding", "", name, f'pod {name} is already assigned to node "{assigned}"')
    status = pod.get("status", {})
    others = [c for c in status.get("conditions", []) if c["type"] != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": call.timestamp}
    bound = {"spec": {**pod["spec"], "nodeName": node}, "status": {**status, "conditions": [*others, scheduled]}}
    world.write(call, resource, {**pod, **bound})
    return Reply(_SUCCESS, 201)


def issue_token(world: World, call: Call) -> Reply:
    """Answer a TokenRequest for a service account."""
    resource = world.resource(call.target)
    account = world.existing(resource, call.target)
    request = read_as(world, call, "api.authentication.v1.TokenRequest")
    spec = dig(request, "spec") or {}
    lifetime_s = int(spec.get("expirationSeconds") or 3600)
    if not 600 <= lifetime_s <= _MAX_LIFETIME_S:
        raise bad_request(f"spec.expirationSeconds must be within 600 and {_MAX_LIFETIME_S}, not {lifetime_s}")
    audiences = tuple(spec.get("audiences") or (ISSUER,))
    meta = account["metadata"]
    holder = Account(meta["namespace"], meta["name"], meta["uid"])
    now_s = int(call.now.timestamp())
    token = make_token(holder, world.signing_key, now_s=now_s, lifetime_s=lifetime_s, audiences=audiences)
    until = timestamp(call.now + timedelta(seconds=lifetime_s))
    body = {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"], "creationTimestamp": call.timestamp},
        "spec": {"audiences": list(audiences), "expirationSeconds": lifetime_s},
        "status": {"token": token, "expirationTimestamp": until},
    }
    return Reply(body, 201)


def store_finalizers(world: World, call: Call, resource: Resource, live: Object, finalizers: list[str]) -> Object:
    """Store a namespace's finalizers, or let it go."""
    new = {**live, "spec": {**live.get("spec", {}), "finalizers": finalizers}}
    return world.remove(call, resource, new) if may_go(new) else world.write(call, resource, new)


def get_scale(world: World, call: Call) -> Reply:
    """Return the Scale of an object."""
    resource = world.resource(call.target)
    return Reply(scale_of(resource, world.existing(resource, call.target)))


def update_scale(world: World, call: Call) -> Reply:
    """Set the replicas from a Scale."""
    return _store(world, call, clean(world, SCALE, decode_object(call, SCALE)))


def patch_scale(world: World, call: Call) -> Reply:
    """Set the replicas from a patch of the Scale."""
    resource = world.resource(call.target)
    live = scale_of(resource, world.existing(resource, call.target))
    scale = checked(patched(world, call, SCALE, live), call, SCALE)
    return _store(world, call, clean(world, SCALE, scale))


def _store(world: World, call: Call, scale: Object) -> Reply:
    resource = world.resource(call.target)
    live = world.existing(resource, call.target)
    replicas = dig(scale, "spec", "replicas") or 0
    if not isinstance(replicas, int) or replicas < 0:
        message = f"Invalid value: {replicas}: must be greater than or equal to 0"
        raise invalid("Scale", "autoscaling", call.target.name, [Cause("spec.replicas", message)])
    path = _steps(resource.scale.spec)
    version = {k: v for k, v in scale["metadata"].items() if k in ("resourceVersion", "uid")}
    new = presented(resource, _with(live, path, replicas))
    new["metadata"] = {**new["metadata"], **version}
    return Reply(scale_of(resource, store_update(world, call, resource, live, new)))


def scale_of(resource: Resource, obj: Object) -> Object:
    """Return the Scale of an object."""
    meta = {key: value for key, value in obj["metadata"].items() if key in _KEPT}
    status = {"replicas": dig(obj, *_steps(resource.scale.status)) or 0}
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
    """Return a selector object as one line: ``app=web,tier in (a,b)``."""
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
    if not path:
        return value
    return {**(obj or {}), path[0]: _with((obj or {}).get(path[0]), path[1:], value)}
