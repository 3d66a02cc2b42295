"""Check the URLs and addresses to which webhooks are sent, against the hosts that the service lists.

An entry of the list is ``HOST``, ``*.DOMAIN`` or ``http://HOST``, each with an optional ``:PORT``. The syntax of URLs
is narrow, so that no parser can read another host from an accepted URL.
"""

import re
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final, NamedTuple

from shoal_proxy.errors import InvalidRequest

MAX_URL_LENGTH: Final = 2048
_DEFAULT_PORTS: Final = {"https": 443, "http": 80}
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_ENTRY: Final = re.compile(
    r"(?:(?P<scheme>http)://)?(?P<wild>\*\.)?"
    r"(?P<host>\[[0-9A-Fa-f:.]*\]|[^:/]*)(?::(?P<port>[0-9]{1,5}))?",
    re.ASCII,
)
_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z]{1,5})://"
    r"(?P<host>\[[0-9A-Fa-f:.]*\]|[A-Za-z0-9.-]*)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<target>(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*)?"
    r"(?:\?(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?)",
    re.ASCII,
)
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
"""A last label that resolvers read as a part of an IPv4 address."""
_NAT64: Final = IPv6Network("64:ff9b::/96")
_METADATA: Final = frozenset(map(ip_address, ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254")))
"""Addresses of clouds' metadata servers that are not link-local: of Azure, Alibaba, Oracle and AWS."""


class ListedHost(NamedTuple):
    """An entry of the hosts that webhooks may be sent to."""

    scheme: str
    host: str
    """In lower case; an IPv6 address without brackets; a wildcard's domain."""
    port: int
    wildcard: bool

    def matches(self, scheme: str, host: str, port: int) -> bool:
        """Return whether URLs with these parts are allowed by this entry."""
        if (scheme, port) != (self.scheme, self.port):
            return False
        return host.endswith(f".{self.host}") and not _is_address(host) if self.wildcard else host == self.host


class Callback(NamedTuple):
    """The parts of an allowed URL."""

    scheme: str
    host: str
    """In lower case; an IPv6 address without brackets."""
    port: int
    target: str
    """Path and query, verbatim."""

    @property
    def authority(self) -> str:
        """The value of the header ``Host``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


class ListedHosts:
    """The hosts that webhooks may be sent to.

    Args:
        entries: the texts of the list.

    Raises:
        ValueError: an entry is malformed.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self._entries = [parse_listed_host(entry) for entry in entries]

    def parse(self, url: str) -> Callback:
        """Return the parts of a client's URL.

        Raises:
            InvalidRequest: the URL is malformed, or its host, port or scheme is not listed.
        """
        if len(url) > MAX_URL_LENGTH:
            raise InvalidRequest(f"the callback URL is longer than {MAX_URL_LENGTH} characters")
        found = _URL.fullmatch(url)
        if found is None:
            raise InvalidRequest("the callback URL is malformed: expected https://HOST[:PORT][/PATH][?QUERY] in ASCII")
        scheme = found["scheme"].lower()
        if scheme not in _DEFAULT_PORTS:
            raise InvalidRequest("the callback URL must be https, or http for a host that is listed with http")
        try:
            host = canonical_host(found["host"].lower())
        except ValueError as error:
            raise InvalidRequest(f"the callback URL is malformed: {error}") from None
        port = int(found["port"] or _DEFAULT_PORTS[scheme])
        if not any(entry.matches(scheme, host, port) for entry in self._entries):
            raise InvalidRequest(
                "the callback URL's scheme, host and port are not listed in asynchronous.webhooks.allowedHosts"
            )
        target = found["target"]
        return Callback(scheme, host, port, target if target.startswith("/") else f"/{target}")

    def is_exact(self, host: str, port: int) -> bool:
        """Return whether an entry without a wildcard lists the host."""
        return any((entry.host, entry.port, entry.wildcard) == (host, port, False) for entry in self._entries)


def parse_listed_host(entry: str) -> ListedHost:
    """Return an entry of the list of hosts.

    Raises:
        ValueError: the entry is malformed.
    """
    found = _ENTRY.fullmatch(entry)
    if found is None:
        raise ValueError(f"{entry!r} is malformed: expected HOST, *.DOMAIN or http://HOST, with an optional :PORT")
    scheme, wildcard = found["scheme"] or "https", bool(found["wild"])
    host = canonical_host(found["host"])
    if wildcard and (scheme == "http" or _is_address(host) or "." not in host):
        raise ValueError(f"{entry!r} is malformed: a wildcard needs https and a domain of two labels")
    port = int(found["port"] or _DEFAULT_PORTS[scheme])
    if not 1 <= port <= 65535:
        raise ValueError(f"{entry!r} is malformed: the port must be 1 to 65535")
    return ListedHost(scheme, host, port, wildcard)


def canonical_host(host: str) -> str:
    """Return a host in lower case, an IPv6 address without brackets and shortened.

    Raises:
        ValueError: the host is neither a DNS name without a trailing dot nor an IP address in its usual notation.
    """
    if host.startswith("["):
        return str(IPv6Address(host[1:-1]))
    if len(host) > 253 or not _NAME.fullmatch(host):
        raise ValueError("the host must be a DNS name in lower case, without a trailing dot, or an IP address")
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        # Rejects 0177.0.0.1, 2130706433 and 127.1, which resolvers read as 127.0.0.1.
        return str(IPv4Address(host))
    return host


def refusal(address: str, *, exact: bool) -> str:
    """Return why webhooks may not be sent to an IP address; empty if they may.

    Args:
        address: the address, as resolved.
        exact: whether the host is listed without a wildcard, and so may have a private address.
    """
    for each in _embedded(ip_address(address)):
        if each.is_link_local or each.is_multicast or each.is_unspecified or each in _METADATA:
            return "link-local, multicast, unspecified and metadata addresses receive no webhooks"
        if isinstance(each, IPv4Address) and each.is_reserved:
            return "reserved addresses receive no webhooks"
        if not exact and not each.is_global:
            return "the address is not public, and the host is listed by a wildcard"
    return ""


def _embedded(address: IPv4Address | IPv6Address) -> Iterator[IPv4Address | IPv6Address]:
    """Yield the addresses that packets to ``address`` may reach."""
    if isinstance(address, IPv4Address):
        yield address
        return
    inner = (address.ipv4_mapped, address.sixtofour, *(address.teredo or ()))
    found = [each for each in inner if each is not None]
    if address in _NAT64 or 1 < int(address) < 2**32:
        # The last 32 bits of NAT64, and of IPv4-compatible addresses, without :: and ::1.
        found.append(IPv4Address(int(address) & 0xFFFF_FFFF))
    if address.ipv4_mapped is None:
        yield address
    yield from found


def _is_address(host: str) -> bool:
    return ":" in host or bool(_NUMBER.fullmatch(host.rpartition(".")[2]))
