"""Virtual addresses of services: text from 10.96.0.0/16, the lowest that is free."""

from ipaddress import IPv4Address

from shoal_local.apiserver.errors import Cause, invalid
from shoal_local.apiserver.kinds.resource import Object
from shoal_local.apiserver.verbs.world import SERVICES, World

_FIRST = IPv4Address("10.96.0.1")
_COUNT = 65533
KUBERNETES = str(_FIRST)


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
        told = (
            f'Invalid value: ["{asked}"]: failed to allocate IP {asked}: provided IP is '
            "already allocated"
        )
        raise invalid("Service", "", meta["name"], [Cause("spec.clusterIPs", told)])
    address = asked or _free(taken)
    return {**service, "spec": {**spec, "clusterIP": address, "clusterIPs": [address]}}


def _taken(world: World, except_for: tuple[str, str]) -> set[str]:
    stored = world.store.objects.get(SERVICES, {})
    return {s["spec"].get("clusterIP", "") for name, s in stored.items() if name != except_for}


def _free(taken: set[str]) -> str:
    return next(a for n in range(1, _COUNT) if (a := str(_FIRST + n)) not in taken)
