"""Texts that may be told: URLs in them without user, password, query and fragment, any of which may be secret."""

import re
from typing import Final

# Before it is known to be a URL there may be anything in it, quotes too; no slash, and no end of a word.
_URL: Final = re.compile(r"\b(https?://)(?:[^\s/]*@)?([^\s?#\"'<>]*)(?:[?#][^\s\"'<>]*)?")


def redacted(text: str) -> str:
    """Return a text whose URLs hold no secrets; before it is cut, since a part of a URL is not known for one."""
    return _URL.sub(r"\1\2", text) if "://" in text else text
