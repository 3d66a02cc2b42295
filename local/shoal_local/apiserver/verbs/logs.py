"""The log subresource: where the kubelet serves a container's log."""

from urllib.parse import urlencode

from shoal_local.apiserver.errors import bad_request, internal
from shoal_local.apiserver.kinds.resource import Object
from shoal_local.apiserver.storage.store import name_of
from shoal_local.apiserver.verbs.call import Call, dig
from shoal_local.apiserver.verbs.world import World

NODES = "/nodes"
_PASSED_ON = ("follow", "tailLines", "limitBytes", "sinceSeconds", "sinceTime", "timestamps", "previous")


def log_url(world: World, call: Call) -> str:
    """Return the kubelet's address of a container's log; '' while the pod is on no node.

    The node tells it: ``status.addresses`` (InternalIP) and
    ``status.daemonEndpoints.kubeletEndpoint.Port``.

    Raises:
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
    namespace, name = name_of(pod)
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
