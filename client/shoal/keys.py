"""The API key that a client sends, read from a file."""

import re
from pathlib import Path

from shoal.errors import InvalidInput

_NAMED = re.compile(r"[-._A-Za-z0-9]+=(?P<key>\S{16,})")
_HASH = "sha256:"
"""Prefix of a hashed key, from which the key cannot be recovered."""


def key_of(file: Path) -> str:
    """Return the key in a file: a single key, or the first one of its ``NAME=KEY`` lines.

    Raises:
        InvalidInput: the file cannot be read, or has no key.
    """
    try:
        lines = file.read_text(encoding="ascii").split("\n")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not ASCII"
        raise InvalidInput(f"cannot read a key from {file}: {why}") from None
    # Empty lines and comments are allowed, as in the server's file.
    given = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    keys = [named["key"] if (named := _NAMED.fullmatch(line)) else line for line in given]
    found = next((key for key in keys if not key.startswith(_HASH)), None)
    if found is None:
        raise InvalidInput(f"{file} has no key: it must contain a single key, or NAME=KEY lines")
    return found


def key_in(file: Path | None) -> str | None:
    """Return the key in a file; None without a file."""
    return None if file is None else key_of(file)


def shown(key: str | None) -> dict[str, str]:
    """Return the ``authorization`` header for an API key; empty without a key."""
    return {} if key is None else {"authorization": f"Bearer {key}"}
