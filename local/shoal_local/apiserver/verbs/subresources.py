"""Subresources: binding, token and scale; the addresses of logs and port-forwards; others fail."""

from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from shoal_local.apiserver.access.rbac import ISSUER, Account, Action, User, make_token
from shoal_local.apiserver.errors import ApiError, bad_request, conflict, internal, invalid, invalid_value
from shoal_local.apiserver.kinds.registry import NODES, Resource
from shoal_local.apiserver.verbs import access
from shoal_local.apiserver.verbs.admission import clean, read_as
from shoal_local.apiserver.verbs.call import SUCCESS, ApiResponse, Call, Target, checked, decode_object
from shoal_local.apiserver.verbs.patching import patched
from shoal_local.apiserver.verbs.state import ClusterState, presented
from shoal_local.apiserver.verbs.writing import store_update
from shoal_local.objects import Object, dig, key_of, other_conditions, timestamp

_MAX_LIFETIME_S = 10 * 365 * 86400

SCALE = Resource("autoscaling", "v1", "Scale", "scale", definition="io.k8s.api.autoscaling.v1.Scale")
_KEPT = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def bind(state: ClusterState, call: Call) -> ApiResponse:
    """Assign a pod to the node of a Binding."""
    resource, pod = state.existing(call.target)
    node = dig(read_as(state, call, "api.core.v1.Binding"), "target", "name")
    if not node:
        raise bad_request("Binding: target.name: Required value")
    if assigned := pod["spec"].get("nodeName"):
        name = pod["metadata"]["name"]
        raise conflict("pods/binding", "", name, f'pod {name} is already assigned to node "{assigned}"')
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": call.timestamp}
    status = {**pod.get("status", {}), "conditions": [*other_conditions(pod, "PodScheduled"), scheduled]}
    state.write(call, resource, {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": status})
    return ApiResponse(SUCCESS, 201)


def issue_token(state: ClusterState, call: Call) -> ApiResponse:
    """Respond to a TokenRequest for a service account."""
    _, account = state.existing(call.target)
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


def get_scale(state: ClusterState, call: Call) -> ApiResponse:
    """Return the Scale of an object."""
    return ApiResponse(scale_of(*state.existing(call.target)))


def update_scale(state: ClusterState, call: Call) -> ApiResponse:
    """Set an object's replicas from a Scale."""
    return _store(state, call, clean(state, SCALE, decode_object(call, SCALE)))


def patch_scale(state: ClusterState, call: Call) -> ApiResponse:
    """Set an object's replicas from a patch of its Scale."""
    live = scale_of(*state.existing(call.target))
    scale = checked(patched(state, call, SCALE, live), call, SCALE)
    return _store(state, call, clean(state, SCALE, scale))


def _store(state: ClusterState, call: Call, scale: Object) -> ApiResponse:
    resource, live = state.existing(call.target)
    replicas = dig(scale, "spec", "replicas") or 0
    if not isinstance(replicas, int) or replicas < 0:
        negative = invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid("Scale", "autoscaling", call.target.name, [negative])
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


_FORWARDED = ("follow", "tailLines", "limitBytes", "sinceSeconds", "sinceTime", "timestamps", "previous")

_INSTEAD = {
    "attach": "Read the container's output with `kubectl logs --follow`",
    "exec": "Containers are processes of this machine and share its files: run the command here",
    "ephemeralcontainers": "Containers are processes of this machine: attach a debugger here",
    "proxy": "Pods and services have addresses on this machine: `kubectl get pods,services --output wide`",
}
"""Alternatives to the subresources that are not served."""
_NEEDS_WEBSOCKET = (
    "port-forward is served over WebSocket only. Use kubectl 1.31 or newer, "
    "without KUBECTL_PORT_FORWARD_WEBSOCKETS=false"
)


def log_url(state: ClusterState, call: Call) -> str:
    """Return the URL of a container's log at the kubelet, or '' while the pod is on no node.

    The node's status has the address: InternalIP and ``daemonEndpoints.kubeletEndpoint.Port``. Raises ApiError: 400,
    the pod has no such container; 500, the node was deleted or has no address.
    """
    _, pod = state.existing(call.target)
    spec, container = pod["spec"], call.query.get("container", "")
    own = [c["name"] for c in spec["containers"]]
    first = [c["name"] for c in spec.get("initContainers", [])]
    if container and container not in own + first:
        raise bad_request(f"container {container} is not valid for pod {call.target.name}")
    if not container and len(own) > 1:
        choices = f"choose one of: [{' '.join(own)}]"
        extra = f" or one of the init containers: [{' '.join(first)}]" if first else ""
        raise bad_request(f"a container name must be specified for pod {call.target.name}, {choices}{extra}")
    container = container or own[0]
    node_name = pod["spec"].get("nodeName")
    if not node_name:
        return ""
    node = state.store.get(NODES, ("", node_name)) or {}
    addresses = {a["type"]: a["address"] for a in dig(node, "status", "addresses") or []}
    port = dig(node, "status", "daemonEndpoints", "kubeletEndpoint", "Port")
    if "InternalIP" not in addresses or not port:
        raise internal(f'node "{node_name}" has no address of a kubelet in its status')
    # The kubelet implements these options.
    query = {key: value for key, value in call.query.items() if key in _FORWARDED}
    namespace, name = key_of(pod)
    base = f"http://{addresses['InternalIP']}:{port}/containerLogs/{namespace}/{name}/{container}"
    return f"{base}?{urlencode(query)}" if query else base


def check_streaming(target: Target) -> None:
    """Reject subresources that need a streaming connection, and name the alternative.

    Raises ApiError: 501 for unsupported subresources, 400 for port-forward without WebSocket.
    """
    if target.plural == "pods" and target.subresource in _INSTEAD:
        message = f"shoal local does not serve {target.subresource}. {_INSTEAD[target.subresource]}"
        raise ApiError(501, "NotImplemented", message)
    if target.plural == "pods" and target.subresource == "portforward":
        raise bad_request(_NEEDS_WEBSOCKET)


def forward_address(state: ClusterState, user: User, target: Target) -> str:
    """Return the address of the pod of a port-forward.

    Raises ApiError: 403, the user may not forward ports; 400, the pod has no address; 404 or 501, the path is not a
    port-forward.
    """
    if target.subresource != "portforward":
        check_streaming(target)
    name = f"{target.plural}/{target.subresource}"
    access.check(state, user, Action("create", target.group, name, target.namespace, target.name))
    _, pod = state.existing(target)
    address = dig(pod, "status", "podIP")
    if not address:
        raise bad_request(f"pod {target.name} does not have an address yet. Wait until it runs")
    return str(address)
