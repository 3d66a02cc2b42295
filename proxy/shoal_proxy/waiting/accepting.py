"""What of the operator's table a room goes by: nonsense in it hurts the service that it is said of, and no other."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

import msgspec

from shoal_schema.addresses import parse_tcp_address
from shoal_schema.waiting import MAX_REASON_LENGTH, RoomService


class Accepted(NamedTuple):
    """The services of a table that are gone by, with the addresses that are some; and by name, why not the others."""

    services: tuple[RoomService, ...]
    refused: Mapping[str, str]


def accept(services: Iterable[RoomService], names: Mapping[int, str], most: int) -> Accepted:
    """Return who of a table is served: each name and each port once, and no more than so many.

    Args:
        services: of the table.
        names: whose each port is now: nobody loses its place to a newcomer.
        most: how many are served at the most.
    """
    taken: dict[str, RoomService] = {}
    ports: dict[int, str] = {}
    refused: dict[str, str] = {}
    for service in sorted(services, key=lambda each: names.get(each.port) != each.name):
        if why := _why_not(service, taken, ports, most):
            refused[service.name] = why
            continue
        taken[service.name] = msgspec.structs.replace(service, addresses=tuple(filter(is_pod, service.addresses)))
        ports[service.port] = service.name
    return Accepted(tuple(taken.values()), refused)


def _why_not(service: RoomService, taken: Mapping[str, RoomService], ports: Mapping[int, str], most: int) -> str:
    if service.name in taken:
        return "it is in the operator's table twice"
    if service.port in ports:
        return f"its port {service.port} is that of {ports[service.port]}"[:MAX_REASON_LENGTH]
    return (
        f"{most} services have a port here, and no more may (SHOAL_WAITING_MAX_SERVICES)" if len(taken) >= most else ""
    )


@lru_cache(maxsize=4096)
def is_pod(address: str) -> bool:
    """Return whether this can be a pod's ``HOST:PORT``: no name, and nothing that no cluster gives a pod."""
    try:
        parsed = parse_tcp_address(address)
        host = ip_address(parsed.host)
    except ValueError:
        return False
    if isinstance(host, IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    special = host.is_unspecified or host.is_multicast or host.is_link_local
    return str(parsed) == address and parsed.port > 0 and not special
