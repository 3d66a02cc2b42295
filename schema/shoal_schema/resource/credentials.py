"""Check environment variables of model stores, whose libraries would print an invalid value. Pure."""

import re
from collections.abc import Mapping
from typing import Final

from shoal_schema.resource.uris import AUTHORITY

PREFIXES: Final[Mapping[str, str]] = {
    "s3": "AWS_",
    "gs": "GOOGLE_",
    "az": "AZURE_",
    "abfss": "AZURE_",
    "hf": "HF_",
    "models": "MLFLOW_TRACKING_",
    "runs": "MLFLOW_TRACKING_",
}
"""Scheme -> prefix of the variables with its server and credentials."""
PLACE: Final = re.compile("(FILE|PATH|DIR|APPLICATION_CREDENTIALS|SERVICE_ACCOUNT)$")
ADDRESS: Final = re.compile("(ENDPOINT|ENDPOINT_URL(_S3|_STS)?|BASE_URL|FULL_URI|TRACKING_URI)$")
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_KEY_FILE: Final = re.compile("GOOGLE_(APPLICATION_CREDENTIALS|SERVICE_ACCOUNT(_PATH)?)")
_ANY_TEXT: Final = re.compile("(PROFILE|PAGER|USERNAME|PASSWORD|TRACKING_URI)$")
"""Variables that may hold any text, because they are never sent verbatim."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def fault(scheme: str, environment: Mapping[str, str]) -> str:
    """Return the error in the first invalid variable, without its value; empty if all are valid.

    Args:
        scheme: scheme of the model's URI; variables of HTTP proxies are checked for every scheme.
        environment: environment variables; empty values are ignored.
    """
    prefix = PREFIXES.get(scheme)
    # Variables of other schemes are not read, so their values do not matter.
    for name, value in environment.items():
        proxy = name.upper() in _PROXIES
        if value and (proxy or (prefix and name.startswith(prefix))):
            is_url = proxy or ADDRESS.search(name) is not None
            if what := _text_fault(name, value, is_url=is_url) or (_url_fault(value, proxy=proxy) if is_url else ""):
                return f"{name} {what}"
    return ""


def _text_fault(name: str, value: str, *, is_url: bool) -> str:
    is_json = name.endswith("SERVICE_ACCOUNT_KEY")
    if not is_json:
        if value.endswith("\n"):
            return "ends in a newline, as the output of echo does. Remove it"
        if value != value.strip():
            return "begins or ends with a space. Remove it"
        if _CONTROL.search(value):
            return "holds a line break or another control character. Remove it"
    if _KEY_FILE.fullmatch(name):
        # A JSON key pasted instead of a path starts with a brace.
        path = "/" in value.partition("{")[0] or value.endswith(".json")
        return "" if path else "must be the path of a file. Put the key itself into GOOGLE_SERVICE_ACCOUNT_KEY"
    if value.isascii() or is_url or is_json or PLACE.search(name) or _ANY_TEXT.search(name):
        return ""
    return "holds a character that is not ASCII, which is never valid there. Copy it again"


def _url_fault(value: str, *, proxy: bool) -> str:
    """Return the error in a server's URL; empty if valid. The URL of an HTTP proxy may have no scheme."""
    value = f"http://{value}" if proxy and "://" not in value else value
    scheme, _, rest = value.partition("://")
    host = rest.partition("/")[0]
    if scheme in ("http", "https") and re.match(AUTHORITY, value) and "@" not in rest.removeprefix(host):
        return ""
    return (
        "must be the http:// or https:// URL of a server: an optional USER:PASSWORD@, a host, and an"
        " optional port up to 65535. In the password write / as %2F, ? as %3F, # as %23 and @ as %40"
    )
