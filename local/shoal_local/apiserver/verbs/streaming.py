"""Subresources of pods that stream: where a log is, where a port is forwarded to, what nothing serves."""

from urllib.parse import urlencode

from shoal_local.apiserver.access.rbac import Action, User
from shoal_local.apiserver.errors import bad_request, internal, not_implemented
from shoal_local.apiserver.verbs import access
from shoal_local.apiserver.verbs.call import Call, Target
from shoal_local.apiserver.verbs.world import World
from shoal_local.objects import Object, dig, key_of

NODES = "/nodes"
_PASSED_ON = ("follow", "tailLines", "limitBytes", "sinceSeconds", "sinceTime", "timestamps", "previous")

_INSTEAD = {
    "attach": "read what the container prints with `kubectl logs --follow`",
    "exec": "containers are processes of this machine and share its files: run the command here",
    "ephemeralcontainers": "containers are processes of this machine: attach a debugger to them here",
    "proxy": "pods and services have addresses on this machine: `kubectl get pods,services --output wide`",
}
_NEEDS_WEBSOCKET = (
    "port-forward is served over WebSocket only: use kubectl 1.31 or newer, "
    "without KUBECTL_PORT_FORWARD_WEBSOCKETS=false"
)


def log_url(world: World, call: Call) -> str:
    """Return the kubelet's address of a container's log; '' while the pod is on no node.

    The node tells it: ``status.addresses`` (InternalIP) and ``status.daemonEndpoints.kubeletEndpoint.Port``. Raises
    ApiError: 400, the pod has no such container; 500, its node is gone or tells no address.
    """
    pod = world.existing(world.resource(call.target), call.target)
    container = _container(pod, call.query.get("container", ""))
    node_name = pod["spec"].get("nodeName")
    if not node_name:
        return ""
    node = world.store.get(NODES, ("", node_name)) or {}
    addresses = {a["type"]: a["address"] for a in dig(node, "status", "addresses") or []}
    port = dig(node, "status", "daemonEndpoints", "kubeletEndpoint", "Port")
    if "InternalIP" not in addresses or not port:
        raise internal(f'no address of a kubelet is known for node "{node_name}"')
    query = {key: value for key, value in call.query.items() if key in _PASSED_ON}
    namespace, name = key_of(pod)
    base = f"http://{addresses['InternalIP']}:{port}/containerLogs/{namespace}/{name}/{container}"
    return f"{base}?{urlencode(query)}" if query else base


def _container(pod: Object, asked: str) -> str:
    spec, name = pod["spec"], pod["metadata"]["name"]
    own = [c["name"] for c in spec["containers"]]
    first = [c["name"] for c in spec.get("initContainers", [])]
    if asked and asked not in own + first:
        raise bad_request(f"container {asked} is not valid for pod {name}")
    if not asked and len(own) > 1:
        choices = f"choose one of: [{' '.join(own)}]"
        extra = f" or one of the init containers: [{' '.join(first)}]" if first else ""
        raise bad_request(f"a container name must be specified for pod {name}, {choices}{extra}")
    return asked or str(own[0])


def check_streaming(target: Target) -> None:
    """Refuse what needs a connection of many streams, and say what to do instead.

    Raises ApiError: 501 for what is not served at all, 400 for what comes in another way.
    """
    if target.plural == "pods" and target.subresource in _INSTEAD:
        what = target.subresource
        raise not_implemented(f"shoal local does not serve {what}; {_INSTEAD[what]}")
    if target.plural == "pods" and target.subresource == "portforward":
        raise bad_request(_NEEDS_WEBSOCKET)


def forward_address(world: World, user: User, target: Target) -> str:
    """Return the address of the pod whose ports are to be forwarded.

    Raises ApiError: 403, the user may not; 400, the pod has no address; 404 or 501, the path is another one.
    """
    if target.subresource != "portforward":
        check_streaming(target)
    resource = world.resource(target)
    name = f"{target.plural}/{target.subresource}"
    access.check(world, user, Action("create", target.group, name, target.namespace, target.name))
    pod = world.existing(resource, target)
    address = dig(pod, "status", "podIP")
    if not address:
        raise bad_request(f"pod {target.name} does not have an address yet: wait until it runs")
    return str(address)
