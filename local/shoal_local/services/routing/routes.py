"""The routes of a cluster: each address and port of a service, and the pods behind it."""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Any

Object = dict[str, Any]
SERVICE_NAME = "kubernetes.io/service-name"
LOOPBACK = IPv4Network("127.0.0.0/8")


@dataclass(frozen=True, slots=True, order=True)
class Front:
    """Where a service is called."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Route:
    """Who answers for a front, and whose it is."""

    service: Object
    backends: tuple[tuple[str, int], ...]


def make_routes(
    services: Iterable[Object], slices: Iterable[Object], network: IPv4Network = LOOPBACK
) -> dict[Front, Route]:
    """Return the routes of all services whose address is in the network: others cannot be listened on."""
    by_service: dict[tuple[str, str], list[Object]] = {}
    for one in slices:
        meta = one["metadata"]
        name = (meta.get("labels") or {}).get(SERVICE_NAME, "")
        by_service.setdefault((meta["namespace"], name), []).append(one)
    routes = {}
    for service in services:
        meta, spec = service["metadata"], service["spec"]
        address = spec.get("clusterIP") or "None"
        if address == "None" or IPv4Address(address) not in network:
            continue
        own = by_service.get((meta["namespace"], meta["name"]), [])
        for port in spec.get("ports") or []:
            if port.get("protocol", "TCP") == "TCP":
                found = tuple(sorted(_backends(own, port.get("name") or "")))
                routes[Front(address, port["port"])] = Route(service, found)
    return routes


def _backends(slices: list[Object], port_name: str) -> set[tuple[str, int]]:
    """Return the ready endpoints; when there are none, those that still serve while they end."""
    ready: set[tuple[str, int]] = set()
    ending: set[tuple[str, int]] = set()
    for one in slices:
        numbers = [p["port"] for p in one.get("ports") or [] if (p.get("name") or "") == port_name]
        for endpoint in one.get("endpoints") or []:
            conditions = endpoint.get("conditions") or {}
            found = {(a, n) for a in endpoint["addresses"] for n in numbers}
            if conditions.get("ready"):
                ready |= found
            elif conditions.get("serving") and conditions.get("terminating"):
                ending |= found
    return ready or ending
