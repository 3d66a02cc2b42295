"""URIs of models as regular expressions that API servers (RE2) and Python evaluate alike."""

import re

from shoal_schema.resource.locations import MLFLOW, SCHEMES

PRINTABLE = r"[^\x00-\x1f\x7f]"
"""No control character: none is valid in a URI or path, and NUL would truncate a process argument."""
SCHEME = f"^(({'|'.join(each for each in SCHEMES if each not in MLFLOW)})://|({'|'.join(MLFLOW)}):/)"
ANY_SCHEME = "^[A-Za-z][A-Za-z0-9+.-]*:/"
URI = rf"{ANY_SCHEME}{PRINTABLE}+\Z"
WITH_HOST = "^(file|https?)://"
# Parts of an IPv6 address, in the names of RFC 3986.
_H16 = "[0-9A-Fa-f]{1,4}"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LS32 = rf"({_H16}:{_H16}|({_OCTET}\.){{3}}{_OCTET})"
# The forms of an IPv6 address (RFC 3986, section 3.2.2), by the number of groups before the "::".
_IPV6_FORMS = [f"({_H16}:){{6}}{_LS32}", f"::({_H16}:){{5}}{_LS32}"]
for _before in range(5):  # at most this many groups and one more
    _after = f"({_H16}:){{{4 - _before}}}{_LS32}" if _before < 4 else _LS32
    _IPV6_FORMS.append(f"(({_H16}:){{0,{_before}}}{_H16})?::{_after}")
_IPV6_FORMS += [f"(({_H16}:){{0,5}}{_H16})?::{_H16}", f"(({_H16}:){{0,6}}{_H16})?::"]
IPV6 = f"({'|'.join(_IPV6_FORMS)})"
"""An IPv6 address without a zone."""
# Parts of an authority: zone, port and host.
_ZONE = "(%25[A-Za-z0-9._~-]+)?"
_FIVE_DIGITS = "6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}"
PORT = f"({_FIVE_DIGITS}|[1-9][0-9]{{0,3}})"
"""A port, 1 to 65535."""
_PORT = f"({_FIVE_DIGITS}|[0-9]{{1,4}})?"
_HOST = rf"(\[{IPV6}{_ZONE}\]|[^\[\]@:/?# ]+)"
AUTHORITY = rf"^(file://[^\[\]/]*|https?://([^\[\]@/?#]*@)?{_HOST}(:{_PORT})?)([/?#]|$)"
"""A valid start of a URL: optional user, host, and optional port up to 65535."""
BAD_AUTHORITY = "must have a host after https:// (IPv6 in brackets), and a port of at most 65535"


def has_good_authority(uri: str) -> bool:
    """Return whether host and port of a URL are valid; paths and URLs of other schemes are always valid."""
    scheme, separator, rest = uri.partition("://")
    judged = separator and scheme.lower() in ("file", "http", "https")
    return not judged or re.match(AUTHORITY, f"{scheme.lower()}://{rest}") is not None
