"""Virtual addresses of services: the lowest of the network that is free."""

from ipaddress import IPv4Network

from shoal_local.apiserver.errors import Cause, invalid
from shoal_local.apiserver.kinds.resource import Object
from shoal_local.apiserver.verbs.world import SERVICES, World


def with_cluster_ip(world: World, service: Object, live: Object | None) -> Object:
    """Return the service with the address it has, asks for, or is given now.

    Raises:
        ApiError: 422, another service has the address that this one asks for.
    """
    spec = service["spec"]
    if spec["type"] == "ExternalName":
        return service
    meta = service["metadata"]
    kept = (live or {}).get("spec", {}).get("clusterIP")
    asked = spec.get("clusterIP") or kept
    taken = _taken(world, (meta.get("namespace", ""), meta["name"]))
    if asked and asked != "None" and asked in taken:
        told = f'Invalid value: ["{asked}"]: failed to allocate IP {asked}: provided IP is already allocated'
        raise invalid("Service", "", meta["name"], [Cause("spec.clusterIPs", told)])
    address = asked or _free(world, taken)
    return {**service, "spec": {**spec, "clusterIP": address, "clusterIPs": [address]}}


def _taken(world: World, except_for: tuple[str, str]) -> set[str]:
    stored = world.store.objects.get(SERVICES, {})
    return {s["spec"].get("clusterIP", "") for name, s in stored.items() if name != except_for}


def _free(world: World, taken: set[str]) -> str:
    # The first address is the server's own in a real cluster.
    network = IPv4Network(world.service_network)
    numbers = range(2, network.num_addresses - 1)
    return next(a for n in numbers if (a := str(network[n])) not in taken)
