"""What a library or a server says, without what may be secret. Pure."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

MOST: Final = 400
"""Characters that are passed on: servers answer with pages."""
_SECRET: Final = re.compile("KEY|TOKEN|PASS|SECRET|SAS|CREDENTIAL|CONNECTION|_URI$")
_PLACE: Final = re.compile("(FILE|PATH|DIR|APPLICATION_CREDENTIALS|ENDPOINT)$")
_SHORT: Final = 6
_USER: Final = re.compile(r"(?<=://)[^\s/@\"']+@")
_QUERY: Final = re.compile(r"\?[^\s\"'()<>]+")


def safe(text: str, environment: Mapping[str, str]) -> str:
    """Return a text's first line without users, passwords and queries of URLs and without the environment's secrets."""
    for name, value in environment.items():
        if _SECRET.search(name) and not _PLACE.search(name) and len(value) >= _SHORT:
            text = text.replace(value, "***").replace(quote(value, safe=""), "***")
    line = _QUERY.sub("", _USER.sub("", text.strip().partition("\n")[0]))
    return line if len(line) <= MOST else f"{line[:MOST]}..."
