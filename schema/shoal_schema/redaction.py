"""Texts of others that may be told: without what may be secret, and without what a terminal obeys."""

import re
from typing import Final

# Before it is known to be a URL there may be anything in it, quotes too; no slash, and no end of a word.
_URL: Final = re.compile(r"\b(https?://)(?:[^\s/]*@)?([^\s?#\"'<>]*)(?:[?#][^\s\"'<>]*)?")


def redacted(text: str) -> str:
    """Return a text whose URLs hold no secrets; before it is cut, since a part of a URL is not known for one."""
    return _URL.sub(r"\1\2", text) if "://" in text else text


def visible(text: str) -> str:
    """Return text with all that a terminal would obey, and not show, written as escapes."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
