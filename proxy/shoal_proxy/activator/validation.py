"""Validate the operator's table: an invalid entry affects only its own service."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

import msgspec

from shoal_schema.fields.addresses import parse_tcp_address
from shoal_schema.interfaces.activator import MAX_REASON_LENGTH, ActivatorService


class ValidatedServices(NamedTuple):
    """The valid services of a table, and by name the reason for each rejected one."""

    services: tuple[ActivatorService, ...]
    refused: Mapping[str, str]


def validate_services(services: Iterable[ActivatorService], names: Mapping[int, str], most: int) -> ValidatedServices:
    """Return the valid services: each name and port once, at most ``most``.

    Args:
        services: entries of the table.
        names: name of the service at each open port; these services take precedence.
        most: maximum number of services.
    """
    taken: dict[str, ActivatorService] = {}
    ports: dict[int, str] = {}
    refused: dict[str, str] = {}
    # Services that have their port already come first.
    for service in sorted(services, key=lambda each: names.get(each.port) != each.name):
        if service.name in taken:
            refused[service.name] = "it appears twice in the operator's table"
            continue
        if service.port in ports:
            refused[service.name] = (f"its port {service.port} is already used by {ports[service.port]}")[
                :MAX_REASON_LENGTH
            ]
            continue
        if len(taken) >= most:
            refused[service.name] = f"the limit of {most} services is reached (SHOAL_ACTIVATOR_MAX_SERVICES)"
            continue
        taken[service.name] = msgspec.structs.replace(service, addresses=tuple(filter(is_pod, service.addresses)))
        ports[service.port] = service.name
    return ValidatedServices(tuple(taken.values()), refused)


@lru_cache(maxsize=4096)
def is_pod(address: str) -> bool:
    """Return whether ``address`` is a ``HOST:PORT`` with an IP that pods can have."""
    try:
        parsed = parse_tcp_address(address)
        host = ip_address(parsed.host)
    except ValueError:
        return False
    # ::ffff:169.254.169.254 is an IPv4 address in IPv6 form.
    if isinstance(host, IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    # A link-local address is the node's or the cloud's metadata server, never a pod.
    special = host.is_unspecified or host.is_multicast or host.is_link_local
    return str(parsed) == address and parsed.port > 0 and not special
