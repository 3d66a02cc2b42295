"""Redaction of secrets and control characters in untrusted text."""

import re
from typing import Final

# Malformed URLs may hold quotes before the @, and secrets may hold slashes: a colon without a port after it starts one.
# The @ of a digest precedes no host, and the @ of models:/NAME@ALIAS follows a name.
_URL: Final = re.compile(
    r"(?i)\b(?:([A-Z][A-Z0-9+.-]*://)(?:[^\s/]*@(?!sha256:))?|((?:models|runs):/+))"
    r"(?:[^\s/:]*:(?![0-9]+/)\S*@(?!sha256:))?"
    r"([^\s?#\"'<>]*)(?:[?#][^\s\"'<>]*)?"
)

_USER: Final = re.compile(r"[^\s/]*:(?!/)")


def redacted(text: str) -> str:
    """Return a text without the secrets in its URLs. Redact before truncating: a part of a URL is not recognized."""
    return _URL.sub(r"\1\2\3", text) if ":/" in text else text


def redacted_value(text: str) -> str:
    """Return an address or the value of a setting without secrets, even if it has no scheme."""
    # A space inside a password would hide its end.
    text = redacted("".join(text.split()) if "@" in text else text)
    return ",".join(map(_without_user, text.split(",")))


def _without_user(text: str) -> str:
    """Return ``USER:PASSWORD@HOST?NAME=VALUE`` as ``HOST``; other text unchanged."""
    before, _, host = text.rpartition("@")
    if _USER.match(before) and not host.startswith("sha256:"):
        text = host
    host, _, parameters = text.partition("?")
    return host if "=" in parameters else text


def visible(text: str) -> str:
    """Return text with control characters escaped for a terminal."""
    # repr writes control characters as escapes; [1:-1] strips its quotes.
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
