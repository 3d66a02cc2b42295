"""The scale subresource: replicas of anything, without knowing the rest of it."""

from typing import Any

from shoal_local.apiserver.errors import Cause, invalid
from shoal_local.apiserver.kinds.resource import Object, Resource
from shoal_local.apiserver.verbs.admission import clean
from shoal_local.apiserver.verbs.call import Call, Reply, dig
from shoal_local.apiserver.verbs.decoding import checked, decode_object
from shoal_local.apiserver.verbs.patching import patched
from shoal_local.apiserver.verbs.world import World, presented
from shoal_local.apiserver.verbs.writing import store_update

SCALE = Resource(
    "autoscaling", "v1", "Scale", "scale", definition="io.k8s.api.autoscaling.v1.Scale"
)
_KEPT = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


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
        told = f"Invalid value: {replicas}: must be greater than or equal to 0"
        raise invalid("Scale", "autoscaling", call.target.name, [Cause("spec.replicas", told)])
    path = _steps(resource.scale.spec)
    version = {k: v for k, v in scale["metadata"].items() if k in ("resourceVersion", "uid")}
    new = presented(resource, _with(live, path, replicas))
    new["metadata"] = {**new["metadata"], **version}
    return Reply(scale_of(resource, store_update(world, call, resource, live, new)))


def scale_of(resource: Resource, obj: Object) -> Object:
    """Return the Scale of an object."""
    meta = {key: value for key, value in obj["metadata"].items() if key in _KEPT}
    status = {"replicas": dig(obj, *_steps(resource.scale.status)) or 0}
    if selector := _selector(resource, obj):
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": meta,
        "spec": {"replicas": dig(obj, *_steps(resource.scale.spec)) or 0},
        "status": status,
    }


def _selector(resource: Resource, obj: Object) -> str:
    if resource.custom:
        return (
            str(dig(obj, *_steps(resource.scale.selector)) or "") if resource.scale.selector else ""
        )
    return selector_text(dig(obj, "spec", "selector") or {})


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
