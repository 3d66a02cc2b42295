"""Streaming subresources of pods: logs and port-forward; others fail."""

from urllib.parse import urlencode

from shoal_local.apiserver.access.rbac import Action, User
from shoal_local.apiserver.errors import bad_request, internal, not_implemented
from shoal_local.apiserver.verbs import access
from shoal_local.apiserver.verbs.call import Call, Target
from shoal_local.apiserver.verbs.state import ClusterState
from shoal_local.objects import dig, key_of

NODES = "/nodes"
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
    pod = state.existing(state.resource(call.target), call.target)
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
        raise not_implemented(f"shoal local does not serve {target.subresource}. {_INSTEAD[target.subresource]}")
    if target.plural == "pods" and target.subresource == "portforward":
        raise bad_request(_NEEDS_WEBSOCKET)


def forward_address(state: ClusterState, user: User, target: Target) -> str:
    """Return the address of the pod of a port-forward.

    Raises ApiError: 403, the user may not forward ports; 400, the pod has no address; 404 or 501, the path is not a
    port-forward.
    """
    if target.subresource != "portforward":
        check_streaming(target)
    resource = state.resource(target)
    name = f"{target.plural}/{target.subresource}"
    access.check(state, user, Action("create", target.group, name, target.namespace, target.name))
    pod = state.existing(resource, target)
    address = dig(pod, "status", "podIP")
    if not address:
        raise bad_request(f"pod {target.name} does not have an address yet. Wait until it runs")
    return str(address)
