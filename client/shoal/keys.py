"""The key that a caller shows, from a file."""

import re
from pathlib import Path

from shoal.errors import InvalidInput

_NAMED = re.compile(r"[-._A-Za-z0-9]+=(?P<key>\S{16,})")
_HASH = "sha256:"
"""What stands for a key that the file does not hold."""


def key_of(file: Path) -> str:
    """Return the key in a file: alone, or of the first of its ``NAME=KEY`` lines that holds one.

    Raises:
        InvalidInput: the file cannot be read, or holds none.
    """
    try:
        lines = file.read_text(encoding="ascii").split("\n")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not ASCII"
        raise InvalidInput(f"cannot read a key from {file}: {why}") from None
    given = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    keys = [named["key"] if (named := _NAMED.fullmatch(line)) else line for line in given]
    found = next((key for key in keys if not key.startswith(_HASH)), None)
    if found is None:
        raise InvalidInput(f"there is no key in {file}: it must hold one alone, or NAME=KEY lines")
    return found


def key_in(file: Path | None) -> str | None:
    """Return the key in a file, if there is one to be read."""
    return None if file is None else key_of(file)


def shown(key: str | None) -> dict[str, str]:
    """Return the header that shows a key, if there is one."""
    return {} if key is None else {"authorization": f"Bearer {key}"}
