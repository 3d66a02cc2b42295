"""Protects the admin port from pages of other sites in a user's browser.

A page can send a simple GET or POST to any address, and read the response if its own host name is rebound to that
address. Three things are checked:

    Host                       an address, or a name that cannot be registered publicly (DNS rebinding)
    Sec-Fetch-Site, Origin     sent by browsers only; they describe the page
    x-shoal-admin              required to change state or read data of single requests: a header that a page may send
                               only after a CORS preflight, which is always rejected

Pure.
"""

import re
from collections.abc import Collection, Mapping
from ipaddress import ip_address

from shoal_schema.interfaces.headers import ADMIN

HEADER = ADMIN
ANY = "*"
_AUTHORITY = re.compile(r"(?P<host>[\w.-]+|\[[0-9A-Fa-f:.%\w]+\])(?::\d*)?", re.ASCII)
_INSIDE = ("localhost", "svc", "cluster.local", "internal")
"""Suffixes of names that are not public."""
_OWN_SITE = ("none", "same-origin")


def rejection_reason(method: str, headers: Mapping[str, str], hosts: Collection[str], *, guarded: bool = False) -> str:
    """Return why a request is rejected; empty if it is accepted.

    Args:
        method: HTTP method of the request.
        headers: headers of the request, with lower-case names.
        hosts: allowed host names, in addition to addresses and the cluster's names; ``*`` allows all.
        guarded: whether the response contains data of single requests.
    """
    authority = headers.get("host", "")
    # A malformed Host becomes a name that is never allowed.
    found = _AUTHORITY.fullmatch(authority)
    host = found["host"].lower().rstrip(".") if found else f"{authority}.?" if authority else ""
    if not (ANY in hosts or _is_inside(host) or host in hosts):
        return (
            f"the admin port does not serve the host name {host!r:.200}. Use its address,"
            " or add the name to SHOAL_PROXY_ADMIN_HOSTS"
        )
    origin = headers.get("origin")
    # Browsers send Origin with each POST, and with each request to another origin.
    if origin is not None and origin.partition("://")[2].lower() != authority.lower():
        return "the admin port does not serve pages of another origin"
    # A user who follows a link is allowed: the page with the link cannot read the response.
    follows_link = (
        method == "GET" and headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    )
    if headers.get("sec-fetch-site", "none") not in _OWN_SITE and not follows_link:
        return "the admin port does not serve pages of another site"
    if (guarded or method not in ("GET", "HEAD")) and HEADER not in headers:
        return f"this {method} request needs the header {HEADER}: 1, which a page of another site cannot send"
    return ""


def _is_inside(host: str) -> bool:
    # A name without a dot belongs to this machine, a container or a service.
    if "." not in host and ":" not in host:
        return True
    if host.endswith(tuple(f".{suffix}" for suffix in _INSIDE)):
        return True
    try:
        ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True
