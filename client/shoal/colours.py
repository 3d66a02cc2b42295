"""Colours on terminals that support them, unless NO_COLOR is set (no-color.org)."""

import os
from enum import IntEnum
from typing import TextIO


class Style(IntEnum):
    """Text styles, by their ECMA-48 numbers."""

    BOLD = 1
    RED = 31
    GREEN = 32


def styled(text: str, *styles: Style, stream: TextIO) -> str:
    """Return the text with escape sequences if ``stream`` shows colours, otherwise unchanged."""
    # SGR: ESC [ codes m, and code 0 resets.
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return f"\x1b[{';'.join(str(int(style)) for style in styles)}m{text}\x1b[0m"
