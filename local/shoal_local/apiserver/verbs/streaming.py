"""Subresources that a connection of many streams serves, and those that nothing here serves."""

from shoal_local.apiserver.access.rbac import Action, User
from shoal_local.apiserver.errors import bad_request, not_implemented
from shoal_local.apiserver.verbs import access
from shoal_local.apiserver.verbs.call import Target, dig
from shoal_local.apiserver.verbs.world import World

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


def check_streaming(target: Target) -> None:
    """Refuse what needs a connection of many streams, and say what to do instead.

    Raises:
        ApiError: 501 for what is not served at all, 400 for what comes in another way.
    """
    if target.plural == "pods" and target.subresource in _INSTEAD:
        what = target.subresource
        raise not_implemented(f"the cluster of this machine does not serve {what}; {_INSTEAD[what]}")
    if target.plural == "pods" and target.subresource == "portforward":
        raise bad_request(_NEEDS_WEBSOCKET)


def forward_address(world: World, user: User, target: Target) -> str:
    """Return the address of the pod whose ports are to be forwarded.

    Raises:
        ApiError: 403, the user may not; 400, the pod has no address; 404 or 501, the path is another one.
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
