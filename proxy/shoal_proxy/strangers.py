"""Whether a request to the admin port may come from a page in somebody's browser that is not ours.

A page can send a simple POST or GET anywhere without asking, and cannot read the answer unless its own name has been
bound to our address meanwhile. So three things are looked at:

    Host                       an address, or a name that nobody outside can own (DNS rebinding)
    Sec-Fetch-Site, Origin     what browsers say of the page; other clients send neither
    x-shoal-admin              for what changes something, or tells of single callers: a header that a page may send
                               only with leave, which is asked for with OPTIONS and never given

Pure.
"""

import re
from collections.abc import Collection, Mapping
from ipaddress import ip_address

from shoal_schema.headers import ADMIN

HEADER = ADMIN
ANY = "*"
_AUTHORITY = re.compile(r"(?P<host>[\w.-]+|\[[0-9A-Fa-f:.%\w]+\])(?::\d*)?", re.ASCII)
_INSIDE = ("localhost", "svc", "cluster.local", "internal")
"""Names that end so are no public ones."""
_OWN_SITE = ("none", "same-origin")


def refusal(method: str, headers: Mapping[str, str], hosts: Collection[str], *, guarded: bool = False) -> str:
    """Return why a request is not answered, or nothing.

    Args:
        method: of the request.
        headers: of the request; names in lower case.
        hosts: names that are ours, besides addresses and the cluster's names; with ``*`` any is.
        guarded: the answer tells of single callers.
    """
    authority = headers.get("host", "")
    host = _name(authority)
    if not (ANY in hosts or _is_inside(host) or host in hosts):
        return (
            f"the admin port does not answer to the name {host!r:.200}: ask by address,"
            " or add the name to SHOAL_PROXY_ADMIN_HOSTS"
        )
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != authority.lower():
        return "the admin port does not answer pages of another origin"
    if headers.get("sec-fetch-site", "none") not in _OWN_SITE and not _is_visit(method, headers):
        return "the admin port does not answer pages of another site"
    if (guarded or method not in ("GET", "HEAD")) and HEADER not in headers:
        return f"this {method} needs the header {HEADER}: 1, which no page of another site can send"
    return ""


def _name(authority: str) -> str:
    """Return the name or address of ``NAME:PORT`` or ``[ADDRESS]:PORT``; of anything else a name that nobody has."""
    found = _AUTHORITY.fullmatch(authority)
    return found["host"].lower().rstrip(".") if found else f"{authority}.?" if authority else ""


def _is_inside(host: str) -> bool:
    # A name without a dot is the machine's, a container's or a service's.
    if "." not in host and ":" not in host:
        return True
    if host.endswith(tuple(f".{suffix}" for suffix in _INSIDE)):
        return True
    try:
        ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True


def _is_visit(method: str, headers: Mapping[str, str]) -> bool:
    """Tell whether a person follows a link, of which the page it was on sees nothing."""
    return (
        method == "GET" and headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    )
