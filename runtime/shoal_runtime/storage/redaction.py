"""Removal of secrets from messages of libraries and servers. Pure."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote, quote_plus, unquote

from shoal_schema.resource.credentials import ADDRESS, PLACE, PREFIXES

MOST: Final = 400
"""Characters of a message; servers may return whole pages."""
_SECRET: Final = re.compile(
    f"^({'|'.join(sorted(set(PREFIXES.values())))})|KEY|TOKEN|PASS|SECRET|SAS|CREDENTIAL|CONNECTION"
)
_OPEN: Final = re.compile("REGION$|ACCOUNT_NAME$|BUCKET|^HF_(HOME|HUB)")
_SHORT: Final = 6
"""Shorter secrets are kept: their letters occur in ordinary words."""
_USER: Final = re.compile(r"(?<=://)[^\s/@\"']+@")
_QUERY: Final = re.compile(r"\?[^\s\"'()<>]+")


def redacted_line(text: str, environment: Mapping[str, str]) -> str:
    """Return the first line of a text without secrets.

    Removed are the values of secret environment variables, and the user, password and query of each URL.
    """
    text = without_secrets(text, environment)
    # Addresses of servers may hold credentials that are in no variable.
    line = _QUERY.sub("", _USER.sub("", text.strip().partition("\n")[0]))
    return line if len(line) <= MOST else f"{line[:MOST]}..."


def without_secrets(text: str, environment: Mapping[str, str]) -> str:
    """Remove secrets of the environment from a text, also in encoded form."""
    secrets = {secret for name, value in environment.items() for secret in _secrets(name, value)}
    forms = {form for secret in secrets for form in _forms(secret) if len(form) >= _SHORT}
    # Longest first: a secret may contain another.
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "***")
    return text


def _secrets(name: str, value: str) -> Iterator[str]:
    """Yield the secret parts of a variable: user and password of a URL, or else the value."""
    if "://" in value:
        # Up to the last @: an unquoted password may contain others.
        user = value.partition("://")[2].rpartition("@")[0]
        yield from (
            part for each in (user, unquote(user)) for part in (each.partition(":")[2], *re.split("[:/?#@]", each))
        )
        if ADDRESS.search(name):
            return
    place = PLACE.search(name) and value.startswith(("/", "."))
    if _SECRET.search(name) and not _OPEN.search(name) and not place:
        yield from (value, *value.splitlines())


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret in each form that may occur in text: escaped, quoted, in base64."""
    for text in {secret, secret.strip()}:
        raw = text.encode(errors="surrogateescape")
        yield from (text, repr(text)[1:-1], repr(raw)[2:-1], json.dumps(text)[1:-1])
        yield from (quote(raw, safe=""), quote(raw), quote_plus(raw))
        for before in range(3):
            # Without the ends, which also encode parts of neighbouring bytes.
            inner = base64.b64encode(bytes(before) + raw)[(0, 2, 3)[before] :]
            whole = inner.rstrip(b"=")[: -1 if inner.endswith(b"=") else None].decode()
            yield from (whole, whole.replace("+", "-").replace("/", "_"))
