"""Texts of others that may be told: without what may be secret, and without what a terminal obeys."""

import re
from typing import Final

# A text that only resembles a URL may hold quotes before its @. A secret may hold slashes: a colon without a port shows
# one. What follows the @ of a digest is no host, and before the @ of models:/NAME@ALIAS is a name.
_URL: Final = re.compile(
    r"(?i)\b(?:([A-Z][A-Z0-9+.-]*://)(?:[^\s/]*@(?!sha256:))?|((?:models|runs):/+))"
    r"(?:[^\s/:]*:(?![0-9]+/)\S*@(?!sha256:))?"
    r"([^\s?#\"'<>]*)(?:[?#][^\s\"'<>]*)?"
)


def redacted(text: str) -> str:
    """Return a text whose URLs hold no secrets; before it is cut, since a part of a URL is not known for one."""
    return _URL.sub(r"\1\2\3", text) if ":/" in text else text


def visible(text: str) -> str:
    """Return text with all that a terminal would obey, and not show, written as escapes."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
