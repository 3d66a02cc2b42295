"""Addresses of listeners and servers: ``unix:PATH``, ``HOST:PORT`` or ``http://HOST:PORT``."""

import ipaddress
import re

# An IPv6 address in brackets, or any other host, which may be empty.
_TCP = re.compile(r"(?:http://)?(?:\[([^\[\]]+)\]|([A-Za-z0-9._:%-]*)):([0-9]{1,5})/?")
_HOST = re.compile(r"(?:\[[^\[\]]+\]|[A-Za-z0-9._%-]+)")


class Address:
    """An address: a Unix socket's ``path``, or ``host`` and ``port``; port 0 picks a free one."""

    # Not a dataclass, which msgspec would decode from a JSON object: an address is a text.
    __slots__ = ("host", "path", "port")

    def __init__(self, host: str = "", port: int = 0, path: str = "") -> None:
        self.host = host
        self.port = port
        self.path = path

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


class TcpAddress(Address):
    """A TCP address: host and port."""

    __slots__ = ()


def parse_address(text: str) -> Address:
    """Parse ``unix:PATH`` or a TCP address; a missing host means ``0.0.0.0``.

    Raises:
        ValueError: the text is not an address.
    """
    if text.startswith("unix:") and len(text) > len("unix:"):
        return Address(path=text.removeprefix("unix:"))
    return parse_tcp_address(text)


def parse_tcp_address(text: str) -> TcpAddress:
    """Parse an address of a TCP port; brackets around IPv6 may be missing, as in ``$(POD_IP):8081``.

    Raises:
        ValueError: the text is not an address.
    """
    match = _TCP.fullmatch(text)
    if not match or int(match[3]) > 65535:
        raise ValueError(f"{text!r} is not an address")
    # An IPv6 address is validated; other host names are left to the resolver.
    host = match[1] or match[2] or "0.0.0.0"
    # ip_address raises ValueError for an invalid address.
    if match[1] or ":" in host:
        ipaddress.ip_address(host)
    return TcpAddress(host, int(match[3]))


class Origin:
    """The server of a URL: its address, and whether it uses TLS."""

    __slots__ = ("address", "secure")

    def __init__(self, address: Address, *, secure: bool) -> None:
        self.address = address
        self.secure = secure


def parse_origin(text: str) -> Origin:
    """Parse ``http://HOST[:PORT]``, ``https://HOST[:PORT]`` or ``unix:PATH``.

    Raises:
        ValueError: the text has none of these forms.
    """
    secure = text.startswith("https://")
    if secure:
        text = text.removeprefix("https://")
    # A URL without a port has that of its scheme.
    if _HOST.fullmatch(host := text.removeprefix("http://")):
        text = f"{host}:{443 if secure else 80}"
    return Origin(parse_address(text), secure=secure)
